//! `netpold trace`: each step of the judgement of a pod's packets.
//!
//! The agent loads the traced variant of the programs over the tables in force, and attaches it at the pod's interface
//! in place of the ordinary programs. The ordinary programs return when the time is over, when the client disconnects
//! for any reason, and when the agent exits; after a kill, the next agent replaces any attached program. Verdicts are
//! the same, and no packet goes unjudged: programs are replaced in one step.

mod args;
mod client;
mod render;

pub use args::TraceArgs;
pub use client::run;
