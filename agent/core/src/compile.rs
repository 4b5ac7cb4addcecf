//! Compiles cluster state into table contents, incrementally.
//!
//! The rules of all policies that select a local endpoint in a direction form a direction policy ([`rules`]). Its peers
//! are sets of pods, and its ipBlocks divide the address space into block groups. The peer sets and the block group of
//! an address are its membership; each distinct membership is a class ([`sets`]). A row holds the ports that a
//! direction policy allows to each class ([`tables`]).
//!
//! A change follows the same lines and touches nothing else: a new direction policy of an endpoint adds and removes
//! peer sets and prefixes, these change the membership of addresses, and some addresses change class ([`update`]).
//! [`ordering`] decides which addresses flip before the endpoints and which after. [`consumption`] chooses the policies
//! to close if a table is full.

mod compiled;
mod compiler;
mod consumption;
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
pub use compiler::{Compiler, CompilerInput};
pub use image::{Allowed, EndpointImage, GrantedPorts, TableImage};
pub use report::{EndpointInfo, Problem};
pub use sets::set::{HairpinService, PeerSet, ServiceTarget};
pub use snapshot::StateSnapshot;
pub use tables::DesiredTables;
pub use tables::element::{Cursor, DesiredElement};
pub use tables::endpoints::WAITING;
