//! A node's verdicts on a traffic probe from three sources: the objects, the tables compiled from them, and the
//! kernel's programs with the installed tables. A difference between any two is a fault.
//!
//! The programs judge a packet in `BPF_PROG_TEST_RUN`. The kernel does not forward it, and its source port is 0, which
//! no connection uses. The agent removes the probe's side effects: the conntrack entry of a packet that can create one
//! (every protocol except TCP, SCTP and ICMP; packets of the node, in every protocol), and the drop in the agent's
//! counters and events. The kernel's counters keep the drop, so it appears in the counters of the next agent.

pub mod packet;
pub mod tables;
