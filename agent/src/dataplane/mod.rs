//! The kernel's side of the agent.

pub mod test_run;
