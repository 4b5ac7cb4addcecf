//! Events of discovery.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netpold_core::bindings::Veth;

use crate::device::Device;

/// Event of discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiscoveryEvent {
    /// A veth with its peer in another network namespace appeared or changed. The first event, when the link appears,
    /// may lack the addresses of the peer; a later event has them.
    Veth(Veth),
    /// The veth with this interface index is gone.
    VethGone(u32),
    /// Current addresses of the node, of any scope: of all interfaces in the agent's network namespace, without `127.0.0.0/8`,
    /// `::1`, `fe80::/10` and the addresses of devices for Services ([`SERVICE_DEVICE`](crate::SERVICE_DEVICE)).
    OwnAddresses(Vec<IpAddr>),
    /// All current interfaces of the node by index, without the veths of [`DiscoveryEvent::Veth`].
    Devices(BTreeMap<u32, Device>),
    /// All current bridge ports, including veths: index of the bridge by index of the port.
    Ports(BTreeMap<u32, u32>),
    /// The events of one complete listing have been sent.
    InSync,
}
