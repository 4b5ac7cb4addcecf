//! Places of an agent: its control socket, its pins.

use std::time::Duration;

/// Default path of the agent's control socket.
pub const DEFAULT_SOCKET: &str = "/run/netpold/netpold.sock";

/// Longest time for a client's request, and for the agent's answer.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Default pin root.
pub const DEFAULT_BPFFS: &str = "/sys/fs/bpf/netpold";
