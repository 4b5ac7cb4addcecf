//! Flow of a packet, from the endpoint's view.

use crate::packet::{family::Family, icmp, parse::Transport};

/// Flow that a packet belongs to; for an ICMP error, the flow of the quoted packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowTuple<F: Family> {
    pub(crate) remote: F::Address,
    pub(crate) protocol: u8,
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
}

impl<F: Family> FlowTuple<F> {
    /// Flow of a packet that the pod sent (`sent`) or received. For ICMP the ports are the identifier and
    /// [`icmp::exchange_type`].
    #[must_use]
    #[inline(always)]
    pub fn new(remote: F::Address, transport: &Transport, sent: bool) -> Self {
        let (local_port, remote_port) = if icmp::is_icmp(transport.protocol) {
            let message = (transport.destination >> 8) as u8;
            (transport.source, icmp::exchange_type(transport.protocol, message))
        } else if sent {
            (transport.source, transport.destination)
        } else {
            (transport.destination, transport.source)
        };
        Self { remote, protocol: transport.protocol, local_port, remote_port }
    }
}
