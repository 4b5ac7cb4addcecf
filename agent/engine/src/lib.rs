//! The agent's engine: keeps the tables up to date, and answers questions about them.
//!
//! | module | content |
//! |---|---|
//! | [`Engine`], [`interfaces`] | applies changes, repairs, and answers for the status |
//! | [`events`], [`observe`] | drops and flows as they happen, and their watchers |
//! | [`denied`] | denied packets counted by workload |
//! | [`flows`], [`probe`], [`trace`] | answers about the node's flows, a probe, and a pod's packets |
//! | [`rule_use`], [`learn`] | traffic by rule and by workload, saved by [`kept`] |
//! | [`metrics`], [`publish`] | metrics, and reports to the API about the policy in force |
//! | [`admin`], [`lines`], [`questions`] | the control socket, streams on it, and the access of its requests to the engine |

pub mod admin;
pub mod denied;
mod engine;
pub mod events;
pub mod flows;
pub mod kept;
pub mod learn;
pub mod lines;
pub mod metrics;
pub mod observe;
pub mod probe;
pub mod publish;
pub mod questions;
pub mod rule_use;
pub mod trace;

pub use engine::denials::denials;
pub use engine::enforcement::{EnforcementState, PodEnforcement, PolicyEnforcement};
pub use engine::error::EngineError;
pub use engine::flows::{flow_reader, name_remotes};
pub use engine::report::{hindrances, to_tell_of_node};
pub use engine::room::compile_with_room;
pub use engine::unsupported::unsupported_policies;
pub use engine::watched_events::watched_events;
pub use engine::{Engine, interfaces};
