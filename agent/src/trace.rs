//! `netpold trace`: each step of the judgement of a pod's packets.
//!
//! The agent loads the traced variant of the programs over the tables in force and has it judge at the pod's
//! interface in the place of the ordinary ones. It puts those back when the time is over, when the client ends
//! however it does, and when it ends itself; an agent that was killed is followed by one that replaces whatever is
//! attached. Verdicts are the same, and no packet goes unjudged: programs are replaced in one step.

mod args;
mod client;
mod packet;
mod render;
mod request;
mod server;
mod steps;

pub use args::TraceArgs;
pub use client::run;
pub use packet::{Line, Packet, Shown};
pub use request::{Peer, Request};
pub use server::{TRACE_REQUEST, Target, Tracer, Tracing};
pub use steps::RawPacket;
