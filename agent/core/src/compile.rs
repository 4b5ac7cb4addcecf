//! From cluster state to table contents, incrementally.
//!
//! The rules of all policies that select a local endpoint in a direction make a
//! [`rules::direction_policy::DirectionPolicy`]; the pods that direction policies name are peer sets ([`sets::registry`]), and what their
//! blocks grant, summed up by a sweep ([`crate::ports::blocks`]), divides the address space into groups
//! ([`sets::block_groups`]). The sets of peer sets and groups that addresses have ([`sets::partition`]) are their
//! classes ([`sets::classes`]); a row ([`tables::rows`]) holds what its direction policy allows each class. A change is
//! followed along exactly these lines: an endpoint's new direction policy brings and drops peer sets and places, these touch
//! addresses, these change class, and [`ordering`] orders the flips.

mod compiler;
mod image;
mod ordering;
mod report;
mod rules;
mod sets;
mod slots;
mod snapshot;
mod tables;
mod update;

pub use compiler::{CompileError, Compiler};
pub use image::{Allowed, EndpointImage, Granted, Image};
pub use report::{EndpointInfo, Problem};
pub use sets::set::{HairpinService, PeerSet, ServiceTarget};
pub use snapshot::Essentials;
pub use tables::element::{Cursor, Expected};
pub use tables::endpoints::WAITING;
