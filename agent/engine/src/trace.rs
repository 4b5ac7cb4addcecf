//! Traces of a pod's packets: loads the traced programs for a limited time, and reports each step of their judgements.

mod clauses;
mod server;
mod steps;

pub(crate) use clauses::clauses;
pub use server::{TraceTarget, Tracer, Tracing};
pub use steps::RawPacket;
