//! What discovery tells.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netpold_core::bindings::Veth;

use super::device::Device;

/// What discovery tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A veth whose other side is in another namespace came or changed. It is told as soon as it is there, its
    /// addresses may follow.
    Veth(Veth),
    /// The veth of this interface index went.
    VethGone(u32),
    /// The node's own addresses are these now: those of all interfaces in our namespace, but for
    /// loopback, link-local and [`SERVICE_DEVICE`](super::SERVICE_DEVICE).
    OwnAddresses(Vec<IpAddr>),
    /// All interfaces of the node but for the veths that are told of one by one, by index: these now.
    Devices(BTreeMap<u32, Device>),
    /// The interfaces, veths or others, that are ports of a bridge, by index, with the bridge's: these now.
    Ports(BTreeMap<u32, u32>),
    /// Everything that was there at the start has been sent: one listing got every answer.
    InSync,
}
