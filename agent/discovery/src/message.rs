//! Netlink messages about links, addresses and routes (`linux/if_link.h`, `linux/if_addr.h`, `linux/rtnetlink.h`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netpold_dataplane::netlink::link::{
    IFLA_ADDRESS, IFLA_IFNAME, IFLA_LINK, IFLA_LINK_NETNSID, IFLA_LINKINFO, IFLA_MASTER,
    IFLA_NEW_NETNSID, LINK_HEADER, link_kind, master_kind, text,
};
use netpold_dataplane::netlink::{MessageBody, word};

use crate::device::{Device, PASSED_ON};
use crate::table::{HostRoute, VethLink};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;

const ADDRESS_HEADER: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RT_SCOPE_LINK: u8 = 253;

const ROUTE_HEADER: usize = 12;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTN_UNICAST: u8 = 1;
/// `RTPROT_REDIRECT` and `RTPROT_RA`: other hosts cause these routes, by redirects and router advertisements.
const LEARNT: [u8; 2] = [1, 9];

/// Content of a link message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LinkEvent {
    /// A veth appeared or changed.
    Now(VethLink),
    /// A link other than a veth appeared or changed.
    Other(u32, Device),
    /// A link of any kind left the namespace.
    Gone(u32),
}

/// Builds a request for the routes in the agent's namespace.
pub(super) fn routes_request(family: AddressFamily) -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family;
    RouteNetlinkMessage::GetRoute(message)
}

/// Parses a route message; `None`: not a unicast route of the node's own to a single address.
pub(super) fn host_route(message: MessageBody<'_>) -> Option<HostRoute> {
    // struct rtmsg: family, lengths of destination and source, TOS, table, protocol, scope, type.
    let &[family, length, _, _, _, origin, _, kind, ..] = message.payload else { return None };
    let there = match message.kind {
        RTM_NEWROUTE => true,
        RTM_DELROUTE => false,
        _ => return None,
    };
    let (mut to, mut by) = (None, None);
    for (attribute, value) in message.attributes(ROUTE_HEADER) {
        match attribute {
            RTA_DST => to = address(family, value),
            RTA_OIF => by = word(value),
            _ => {}
        }
    }
    let to = to?;
    let single = u32::from(length) == if to.is_ipv4() { Ipv4Addr::BITS } else { Ipv6Addr::BITS };
    (single && kind == RTN_UNICAST && !LEARNT.contains(&origin)).then_some(HostRoute {
        to,
        by: by?,
        there,
    })
}

/// Builds a request for one link, or for all.
pub(super) fn links_request(index: Option<u32>) -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index.unwrap_or_default();
    RouteNetlinkMessage::GetLink(message)
}

/// Builds a request for the addresses of an interface in another namespace.
pub(super) fn addresses_request(namespace: i32, index: u32) -> RouteNetlinkMessage {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Unspec;
    message.header.index = index;
    message.attributes.push(AddressAttribute::TargetNetNsId(namespace));
    RouteNetlinkMessage::GetAddress(message)
}

/// Builds a request for an interface in another namespace (`IFLA_TARGET_NETNSID`, kernel 4.16).
pub(super) fn link_inside_request(namespace: i32, index: u32) -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.push(LinkAttribute::IfNetnsId(namespace));
    RouteNetlinkMessage::GetLink(message)
}

/// Returns the hardware address of an Ethernet interface from a link message.
pub(super) fn station(message: MessageBody<'_>) -> Option<[u8; 6]> {
    let mut all = message.attributes(LINK_HEADER);
    let (_, value) = all.find(|(kind, _)| *kind == IFLA_ADDRESS)?;
    value.try_into().ok().filter(|station| *station != [0; 6])
}

/// Parses a link message; `None`: a message of another type or family.
pub(super) fn link_event(message: MessageBody<'_>) -> Option<LinkEvent> {
    let family = *message.payload.first()?;
    let index = message.word(4)?;
    // Bridges send messages about their ports with AF_BRIDGE. RTM_DELLINK then reports a port that left the bridge, not
    // a link that is gone.
    if i32::from(family) != libc::AF_UNSPEC {
        return None;
    }
    match message.kind {
        RTM_NEWLINK => link(message, index),
        RTM_DELLINK => Some(LinkEvent::Gone(index)),
        _ => None,
    }
}

/// Content of a link message about veths with a peer in another namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutsideVeth {
    /// A veth with a peer in another namespace is present, by its interface index.
    Present(u32),
    /// One end of a veth left for another namespace; the peer with this index is in the agent's namespace.
    Left { index: u32, peer: u32 },
    /// A link of any other kind left the agent's namespace.
    Gone(u32),
    /// Both ends of a veth are in the agent's namespace: the peer with this index is a veth of the agent's namespace
    /// too. No event reports this for the peer itself.
    BothEndsHere(u32),
}

impl OutsideVeth {
    /// Returns the index of a veth that is present.
    pub(super) fn index(self) -> Option<u32> {
        if let Self::Present(index) = self { Some(index) } else { None }
    }
}

/// Parses a link message; `None`: a link of another kind, or a veth with a peer in a namespace without an identifier.
pub(super) fn outside_veth(message: MessageBody<'_>) -> Option<OutsideVeth> {
    match link_event(message)? {
        LinkEvent::Now(veth) if veth.namespace.is_some() => Some(OutsideVeth::Present(veth.index)),
        LinkEvent::Now(veth) => (!veth.leads_away).then_some(OutsideVeth::BothEndsHere(veth.peer)),
        // The kernel composes the message before the link moves.
        LinkEvent::Gone(index) => Some(match link(message, index) {
            Some(LinkEvent::Now(veth)) if !veth.leads_away && veth.peer != 0 && moves(message) => {
                OutsideVeth::Left { index, peer: veth.peer }
            }
            _ => OutsideVeth::Gone(index),
        }),
        LinkEvent::Other(..) => None,
    }
}

/// Whether a link that left the namespace moved to another one, instead of being deleted.
fn moves(message: MessageBody<'_>) -> bool {
    message.attributes(LINK_HEADER).any(|(kind, _)| kind == IFLA_NEW_NETNSID)
}

/// Returns the bridge of a link that is a port; `None`: no port, or a port of a kind in [`PASSED_ON`].
pub(super) fn bridge(message: MessageBody<'_>) -> Option<u32> {
    let (mut master, mut kinds) = (None, (String::new(), String::new()));
    for (kind, value) in message.attributes(LINK_HEADER) {
        match kind {
            IFLA_MASTER => master = word(value),
            IFLA_LINKINFO => kinds = (link_kind(value), master_kind(value)),
            _ => {}
        }
    }
    let (own, of_master) = kinds;
    master.filter(|_| of_master == "bridge" && !PASSED_ON.contains(&own.as_str()))
}

fn link(message: MessageBody<'_>, index: u32) -> Option<LinkEvent> {
    let mut own = String::new();
    let mut veth = VethLink { index, ..VethLink::default() };
    for (kind, value) in message.attributes(LINK_HEADER) {
        match kind {
            IFLA_ADDRESS => veth.hardware = value.to_vec(),
            IFLA_IFNAME => veth.name = text(value),
            IFLA_LINK => veth.peer = word(value)?,
            IFLA_LINK_NETNSID => {
                veth.leads_away = true;
                veth.namespace = word(value).map(u32::cast_signed);
            }
            IFLA_LINKINFO => own = link_kind(value),
            _ => {}
        }
    }
    if own != "veth" {
        // struct ifinfomsg: the ARPHRD_* type is the second 16-bit field.
        let hardware_type = u16::from_ne_bytes(*message.payload.get(2..)?.first_chunk::<2>()?);
        let device = Device::new(veth.name, &own, hardware_type, veth.leads_away);
        return Some(LinkEvent::Other(index, device));
    }
    // The kernel reports a negative identifier if it could not assign one.
    veth.namespace = veth.namespace.filter(|&id| id >= 0);
    Some(LinkEvent::Now(veth))
}

/// Builds a request for all addresses in the agent's namespace.
pub(super) fn own_addresses_request() -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetAddress(AddressMessage::default())
}

/// Returns the global address in an address message about the given interface. Tentative addresses count: the pod is
/// about to use them.
pub(super) fn peer_address(message: MessageBody<'_>, index: u32) -> Option<IpAddr> {
    (message.word(4) == Some(index)).then(|| global_address(message)).flatten()
}

/// Returns the address in an address message if its scope is wider than a link.
fn global_address(message: MessageBody<'_>) -> Option<IpAddr> {
    let scope = *message.payload.get(3)?;
    (scope < RT_SCOPE_LINK).then(|| any_address(message)).flatten()
}

/// Returns the address in an address message, of any scope, except loopback and link-local addresses: every node has
/// those, and the compiler knows their networks (`127.0.0.0/8`, `::1`, `fe80::/10`). netfilter translates packets to node
/// ports at each returned address.
pub(super) fn own_address(message: MessageBody<'_>) -> Option<IpAddr> {
    any_address(message).filter(|address| match address {
        IpAddr::V4(address) => !address.is_loopback(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    })
}

fn any_address(message: MessageBody<'_>) -> Option<IpAddr> {
    let family = *message.payload.first()?;
    if message.kind != RTM_NEWADDR {
        return None;
    }
    // On a point-to-point interface IFA_ADDRESS is the peer's address, and IFA_LOCAL the interface's own.
    let mut found = (None, None);
    for (kind, value) in message.attributes(ADDRESS_HEADER) {
        match kind {
            IFA_LOCAL => found.0 = address(family, value),
            IFA_ADDRESS => found.1 = address(family, value),
            _ => {}
        }
    }
    found.0.or(found.1)
}

fn address(family: u8, value: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => Some(Ipv4Addr::from(*value.first_chunk::<4>()?).into()),
        libc::AF_INET6 => Some(Ipv6Addr::from(*value.first_chunk::<16>()?).into()),
        _ => None,
    }
}
