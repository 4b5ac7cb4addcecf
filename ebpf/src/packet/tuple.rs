//! The flow that a packet belongs to.

use crate::packet::{family::Family, icmp, parse::Transport};

/// The flow a packet belongs to or, for an ICMP error, is about.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowTuple<F: Family> {
    pub(crate) remote: F::Address,
    pub(crate) protocol: u8,
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
}

impl<F: Family> FlowTuple<F> {
    /// The flow of a packet that the pod sent, or was sent. ICMP echo: the identifier and
    /// [`icmp::kind`].
    #[must_use]
    #[inline(always)]
    pub fn new(remote: F::Address, transport: &Transport, sent: bool) -> Self {
        let (local_port, remote_port) = if icmp::is_icmp(transport.protocol) {
            let message = (transport.destination >> 8) as u8;
            (transport.source, icmp::kind(transport.protocol, message))
        } else if sent {
            (transport.source, transport.destination)
        } else {
            (transport.destination, transport.source)
        };
        Self { remote, protocol: transport.protocol, local_port, remote_port }
    }
}
