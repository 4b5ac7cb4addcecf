//! Netlink's words for links and addresses (`linux/if_link.h`, `linux/if_addr.h`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::device::{Device, PASSED_ON};
use super::table::Veth;
use crate::netlink::{Message, attributes, word};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;

const LINK_HEADER: usize = 16;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_SLAVE_KIND: u16 = 4;

const ADDRESS_HEADER: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RT_SCOPE_LINK: u8 = 253;

const ROUTE_HEADER: usize = 12;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTN_UNICAST: u8 = 1;
/// Routes of these origins are made by what others send: redirects and router advertisements.
const LEARNT: [u8; 2] = [1, 9];

/// What a link message says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LinkEvent {
    /// A veth is this.
    Now(Veth),
    /// A link that is no veth is this.
    Other(u32, Device),
    /// A link, of whatever kind, is gone from the namespace.
    Gone(u32),
}

/// A route to one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostRoute {
    pub(super) to: IpAddr,
    /// Index of the interface that it leads out of.
    pub(super) by: u32,
    /// It is there, or gone.
    pub(super) there: bool,
}

/// A request for the routes in our namespace.
pub(super) fn routes_request(family: AddressFamily) -> RouteNetlinkMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family;
    RouteNetlinkMessage::GetRoute(message)
}

/// Reads a route message; `None` for what is no route of the node's own to a single address.
pub(super) fn host_route(message: Message<'_>) -> Option<HostRoute> {
    // struct rtmsg: family, length of the destination, of the source, TOS, table, protocol, scope, type.
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

/// A request for one link, or for all.
pub(super) fn links_request(index: Option<u32>) -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index.unwrap_or_default();
    RouteNetlinkMessage::GetLink(message)
}

/// A request for the addresses of an interface in another namespace.
pub(super) fn addresses_request(namespace: i32, index: u32) -> RouteNetlinkMessage {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Unspec;
    message.header.index = index;
    message.attributes.push(AddressAttribute::TargetNetNsId(namespace));
    RouteNetlinkMessage::GetAddress(message)
}

/// A request for an interface in another namespace (`IFLA_TARGET_NETNSID`, kernel 4.16).
pub(super) fn link_inside_request(namespace: i32, index: u32) -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.push(LinkAttribute::IfNetnsId(namespace));
    RouteNetlinkMessage::GetLink(message)
}

/// The hardware address of an Ethernet interface in a link message.
pub(super) fn station(message: Message<'_>) -> Option<[u8; 6]> {
    let mut all = message.attributes(LINK_HEADER);
    let (_, value) = all.find(|(kind, _)| *kind == IFLA_ADDRESS)?;
    value.try_into().ok().filter(|station| *station != [0; 6])
}

/// Reads a link message; `None` for what is of no interest.
pub(super) fn link_event(message: Message<'_>) -> Option<LinkEvent> {
    let family = *message.payload.first()?;
    let index = message.word(4)?;
    // A bridge tells of its ports in the same words (AF_BRIDGE): a port that leaves the bridge is
    // not a link that is gone.
    if i32::from(family) != libc::AF_UNSPEC {
        return None;
    }
    match message.kind {
        RTM_NEWLINK => link(message, index),
        RTM_DELLINK => Some(LinkEvent::Gone(index)),
        _ => None,
    }
}

/// What a link message reports of veths whose other sides are in another namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutsideVeth {
    /// One is there, by interface index.
    There(u32),
    /// A link, of whatever kind, is gone from the namespace.
    Gone(u32),
    /// A side of a veth is in our namespace, and the other one, of that index, leads here: no event tells that of the
    /// other one.
    Home(u32),
}

impl OutsideVeth {
    /// The index of one that is there.
    pub(super) fn index(self) -> Option<u32> {
        if let Self::There(index) = self { Some(index) } else { None }
    }
}

/// Reads a link message; `None` for links that are no such veth.
pub(super) fn outside_veth(message: Message<'_>) -> Option<OutsideVeth> {
    match link_event(message)? {
        LinkEvent::Now(veth) if veth.namespace.is_some() => Some(OutsideVeth::There(veth.index)),
        LinkEvent::Now(veth) => (!veth.leads_away).then_some(OutsideVeth::Home(veth.peer)),
        LinkEvent::Gone(index) => Some(OutsideVeth::Gone(index)),
        LinkEvent::Other(..) => None,
    }
}

/// The bridge that a link is a port of; `None` for a link that is no port, or sends nothing into a bridge.
pub(super) fn bridge(message: Message<'_>) -> Option<u32> {
    let (mut master, mut kinds) = (None, (String::new(), String::new()));
    for (kind, value) in message.attributes(LINK_HEADER) {
        match kind {
            IFLA_MASTER => master = word(value),
            IFLA_LINKINFO => {
                kinds = (info(value, IFLA_INFO_KIND), info(value, IFLA_INFO_SLAVE_KIND));
            }
            _ => {}
        }
    }
    let (own, of_master) = kinds;
    master.filter(|_| of_master == "bridge" && !PASSED_ON.contains(&own.as_str()))
}

/// A text of `IFLA_LINKINFO`.
fn info(value: &[u8], wanted: u16) -> String {
    let found = attributes(value).find(|(kind, _)| *kind == wanted);
    found.map(|(_, value)| text(value)).unwrap_or_default()
}

fn link(message: Message<'_>, index: u32) -> Option<LinkEvent> {
    let mut link_kind = String::new();
    let mut veth = Veth { index, ..Veth::default() };
    for (kind, value) in message.attributes(LINK_HEADER) {
        match kind {
            IFLA_ADDRESS => veth.hardware = value.to_vec(),
            IFLA_IFNAME => veth.name = text(value),
            IFLA_LINK => veth.peer = word(value)?,
            IFLA_LINK_NETNSID => {
                veth.leads_away = true;
                veth.namespace = word(value).map(u32::cast_signed);
            }
            IFLA_LINKINFO => link_kind = info(value, IFLA_INFO_KIND),
            _ => {}
        }
    }
    if link_kind != "veth" {
        // struct ifinfomsg: the ARPHRD_* type is its second half word.
        let hardware_type = u16::from_ne_bytes(*message.payload.get(2..)?.first_chunk::<2>()?);
        let device = Device::new(veth.name, &link_kind, hardware_type, veth.leads_away);
        return Some(LinkEvent::Other(index, device));
    }
    // A negative identifier stands for a namespace that could not be given one.
    veth.namespace = veth.namespace.filter(|&id| id >= 0);
    Some(LinkEvent::Now(veth))
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// A request for all addresses in our namespace.
pub(super) fn own_addresses_request() -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetAddress(AddressMessage::default())
}

/// The global address in an address message about the given interface. Tentative addresses count:
/// the pod will use them in a moment.
pub(super) fn peer_address(message: Message<'_>, index: u32) -> Option<IpAddr> {
    (message.word(4) == Some(index)).then(|| global_address(message)).flatten()
}

/// The address in an address message, if its scope is wider than a link.
pub(super) fn global_address(message: Message<'_>) -> Option<IpAddr> {
    let (family, scope) = (*message.payload.first()?, *message.payload.get(3)?);
    if message.kind != RTM_NEWADDR || scope >= RT_SCOPE_LINK {
        return None;
    }
    // IFA_ADDRESS is the other end's where the interface is point-to-point; IFA_LOCAL is ours then.
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
