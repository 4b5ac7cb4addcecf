//! A node's verdicts on a traffic probe from three sources: the objects, the tables compiled from them, and the
//! kernel's programs with the installed tables. A difference between any two is a fault.
//!
//! The programs judge a packet in `BPF_PROG_TEST_RUN`. The kernel does not forward it, and its source port is 0, which
//! no connection uses. The agent removes its traces: the flow of a packet that can create one (UDP, protocols without
//! ports, packets of the node), and the drop in the agent's counters and events. The kernel's counters keep the drop,
//! so the next agent shows it.

pub mod packet;
pub mod tables;
