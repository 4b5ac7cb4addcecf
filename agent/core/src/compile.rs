//! From cluster state to table contents, incrementally.
//!
//! The rules of all policies that select a local endpoint in a direction make a direction policy
//! ([`rules`]). The pods that its rules select are peer sets, and its ipBlocks divide the address space
//! into block groups; the peer sets and the group of an address are its membership, which is numbered as
//! a class ([`sets`]). A row holds what a direction policy allows each class ([`tables`]).
//!
//! A change follows these lines and nothing else: a new direction policy of an endpoint adds and drops
//! peer sets and prefixes, these touch addresses, some of those change class ([`update`]). [`ordering`]
//! decides which addresses flip before the endpoints and which after.

mod compiled;
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

pub use compiled::CompileError;
pub use compiler::{Compiler, News};
pub use image::{Allowed, EndpointImage, Granted, Image};
pub use report::{EndpointInfo, Problem};
pub use sets::set::{HairpinService, PeerSet, ServiceTarget};
pub use snapshot::StateSnapshot;
pub use tables::DesiredTables;
pub use tables::element::{Cursor, DesiredElement};
pub use tables::endpoints::WAITING;
