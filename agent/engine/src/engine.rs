//! Turns cluster changes into an enforced revision: compile, write, attach, and retry after failures.
//!
//! The engine writes nothing before every source is in sync. A failed write never leaves a mixture, because the
//! operations are ordered so that every prefix is consistent. The installed content is unknown after a failed write, so
//! the next attempt builds a new generation, with a growing pause between attempts.

mod bypass;
mod counters;
mod denials;
mod enforcement;
mod error;
mod flows;
mod health;
pub mod interfaces;
mod interference;
mod measure;
mod observed;
mod pace;
mod probe;
mod reconciler;
mod report;
mod resolved;
mod room;
mod second;
mod steps;
mod succession;
mod successor;
mod traced;
mod unproven;
mod unsupported;

pub use denials::denials;
pub use enforcement::{EnforcementState, PodEnforcement, PolicyEnforcement};
pub use error::EngineError;
pub use flows::{flow_reader, name_remotes};
pub use observed::observed;
pub use report::{hindrances, to_tell_of_node};
pub use room::install;
pub use steps::Engine;
pub use unsupported::unsupported_policies;
