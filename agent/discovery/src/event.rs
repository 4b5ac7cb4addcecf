//! Events of discovery.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netpold_core::bindings::Veth;

use crate::device::Device;

/// Event of discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A veth with its peer in another namespace appeared or changed. The event is sent when the link appears; the
    /// addresses may follow.
    Veth(Veth),
    /// The veth with this interface index is gone.
    VethGone(u32),
    /// Current addresses of the node: of all interfaces in our namespace, except loopback, link-local and
    /// [`SERVICE_DEVICE`](crate::SERVICE_DEVICE).
    OwnAddresses(Vec<IpAddr>),
    /// All current interfaces of the node by index, without the veths of [`Event::Veth`].
    Devices(BTreeMap<u32, Device>),
    /// All current bridge ports, veths or others: index of the port to index of the bridge.
    Ports(BTreeMap<u32, u32>),
    /// Everything present at the start has been sent: one listing was complete.
    InSync,
}
