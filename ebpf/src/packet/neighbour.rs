//! Messages between the hosts of a link, without which no packet is delivered: ARP, neighbour discovery and multicast
//! listener discovery.
//!
//! They pass regardless of policy, so only in their exact form, to the destinations that they are meant for, and from a
//! pod only with its own addresses. Any other packet that resembles them is judged by policy.

use crate::{
    endpoint::EndpointRef,
    packet::{
        bytes::{Bytes, Window as _, short},
        family::{Family as _, V6, is_link_local, is_multicast},
        icmp::{ADVERTISEMENT, SOLICITATION},
        parse::{Network, Transport},
        protocol::ICMPV6,
    },
    reason::Reason,
};

/// Length of an ARP packet (RFC 826) of IPv4 over Ethernet, padded to a frame of 60 bytes.
const ARP_PADDED: u32 = 46;

const LISTENER_QUERY: u8 = 130;
const LISTENER_REPORT: u8 = 131;
const LISTENER_DONE: u8 = 132;
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const REDIRECT: u8 = 137;
const LISTENER_REPORT_V2: u8 = 143;

/// Options of neighbour discovery, each of 8 bytes: the sender's link-layer address, the target's, and the nonce of
/// enhanced duplicate address detection (RFC 7527).
const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;
const NONCE: u8 = 14;
/// Longest router advertisement that passes to a pod regardless of policy.
const MAX_ADVERTISEMENT: u32 = 512;
/// Maximum number of records in a listener report, and of sources in a record or a query.
const MAX_RECORDS: u16 = 8;
const MAX_SOURCES: u16 = 8;

const UNSPECIFIED: [u64; 2] = [0; 2];
const ALL_NODES: [u64; 2] = of(0xff02 << 48, 1);
const ALL_ROUTERS: [u64; 2] = of(0xff02 << 48, 2);
const ALL_REPORTS: [u64; 2] = of(0xff02 << 48, 0x16);
/// `ff02::1:ff00:0/104`
const SOLICITED_NODE: u64 = 0x1_ff00_0000;

/// Address as words in memory order, from host byte order.
const fn of(high: u64, low: u64) -> [u64; 2] {
    [high.to_be(), low.to_be()]
}

/// Hardware address that an address contains, first octet highest: the modified EUI-64 format (RFC 4291 appendix A),
/// the kernel's default for link-local addresses.
#[inline(always)]
const fn station_in(address: [u64; 2]) -> Option<u64> {
    let interface = u64::from_be(address[1]);
    let station = (interface >> 40) << 24 | interface & 0xff_ffff;
    if interface >> 24 & 0xffff == 0xfffe { Some(station ^ 1 << 41) } else { None }
}

/// Kind of a message of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NeighbourDiscovery {
    /// No message of the link, or not in its exact form.
    No,
    /// Message to a multicast or link-local address: it stays on the link.
    OnLink,
    /// Message to any other address, which may be beyond the link.
    Single,
    /// Claim of an address that is not the pod's, or of being a router.
    Claim,
}

/// Whether an ICMPv6 type makes a claim about the sender that its source address does not prove. A solicitation from
/// the unspecified `source` claims its target (RFC 4862 section 5.4.3): a host that is about to use the target gives
/// it up.
#[inline(always)]
pub(crate) const fn is_claim(kind: u8, source: [u64; 2]) -> bool {
    let nobody = source[0] | source[1] == 0;
    matches!(kind, ROUTER_ADVERTISEMENT | ADVERTISEMENT | REDIRECT)
        || kind == SOLICITATION && nobody
}

/// Whether a message is part of neighbour discovery (RFC 4861).
#[inline(always)]
pub(crate) const fn is_discovery(transport: &Transport) -> bool {
    let kind = (transport.destination >> 8) as u8;
    transport.protocol == ICMPV6 && matches!(kind, ROUTER_SOLICITATION..=REDIRECT)
}

/// Whether a packet has the type of a message of the link.
#[inline(always)]
pub(crate) fn may_be_one<A>(network: &Network<A>, transport: &Transport) -> bool {
    let kind = (transport.destination >> 8) as u8;
    network.protocol == ICMPV6
        && matches!(kind, LISTENER_QUERY..=REDIRECT | LISTENER_REPORT_V2)
        && !network.fragment.is_later()
}

/// Claim of an ARP packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArpClaim {
    /// The sender's address; in a probe, which has none, the target's (RFC 5227 section 2.1.1): a host that probes for
    /// the same address gives it up.
    pub(crate) address: u32,
    /// The sender's hardware address, first octet highest.
    pub(crate) station: u64,
}

/// Claim of an ARP packet after a link header.
///
/// # Errors
/// [`Reason::Malformed`] unless the packet is a request or a reply of IPv4 over Ethernet of the right length;
/// [`Reason::Truncated`], or [`Reason::Deferred`].
#[inline(always)]
pub(crate) fn arp_claim<B: Bytes>(bytes: &B, offset: u32) -> Result<ArpClaim, Reason> {
    let packet = bytes.window::<28>(offset).ok_or(short::<B>())?;
    let is_one = packet.be32(0) == 0x0001_0800
        && matches!(packet.be32(4), 0x0604_0001 | 0x0604_0002)
        && bytes.length() <= offset + ARP_PADDED;
    // Read as 16-bit halves: the address is aligned to these only.
    let sender = u32::from(packet.be16(14)) << 16 | u32::from(packet.be16(16));
    let address = if sender == 0 { packet.be32(24) } else { sender };
    let station = u64::from(packet.be32(8)) << 16 | u64::from(packet.be16(12));
    if is_one { Ok(ArpClaim { address, station }) } else { Err(Reason::Malformed) }
}

/// ICMPv6 message after the IPv6 header.
struct Message<'a, B> {
    bytes: &'a B,
    network: &'a Network<[u64; 2]>,
    kind: u8,
    /// The sending pod, if it may only use its own addresses.
    sender: Option<EndpointRef>,
    /// Whether a pod sent the message.
    sent: bool,
}

/// Kind of an IPv6 packet in neighbour and multicast listener discovery. `sender`: the sending pod, if it may only use
/// its own addresses. `sent`: whether a pod sent it.
#[inline(always)]
pub(crate) fn discovery<B: Bytes>(
    bytes: &B,
    network: &Network<[u64; 2]>,
    transport: &Transport,
    sender: Option<EndpointRef>,
    sent: bool,
) -> NeighbourDiscovery {
    let (kind, code) = ((transport.destination >> 8) as u8, transport.destination as u8);
    if network.protocol != ICMPV6 {
        return NeighbourDiscovery::No;
    }
    let message = Message { bytes, network, kind, sender, sent };
    let is_whole = !network.fragment.more && code == 0;
    match kind {
        ROUTER_SOLICITATION..=ADVERTISEMENT => message.neighbour(is_whole),
        REDIRECT if sender.is_some() => NeighbourDiscovery::Claim,
        LISTENER_QUERY..=LISTENER_DONE | LISTENER_REPORT_V2
            if is_whole && message.is_listener() == Some(true) =>
        {
            NeighbourDiscovery::OnLink
        }
        _ => NeighbourDiscovery::No,
    }
}

impl<B: Bytes> Message<'_, B> {
    /// Length of the message in bytes.
    #[inline(always)]
    fn length(&self) -> u32 {
        self.network.end.wrapping_sub(self.network.payload)
    }

    /// Whether an address is, or may be, the pod's. Link-local addresses are in no table; one that contains another
    /// hardware address than the pod's is not the pod's.
    #[inline(always)]
    fn may_be_own(&self, address: [u64; 2]) -> bool {
        self.sender.is_none_or(|pod| {
            let another =
                station_in(address).is_some_and(|it| pod.station() != 0 && pod.station() != it);
            is_link_local(address) && !another || V6::owns(pod, address)
        })
    }

    /// Kind of a message of neighbour discovery (RFC 4861 section 4).
    #[inline(always)]
    fn neighbour(&self, is_whole: bool) -> NeighbourDiscovery {
        let sound = is_whole && self.is_neighbour().unwrap_or(false);
        let claims = self.sender.is_some() && is_claim(self.kind, self.network.source);
        if claims && !(is_whole && self.is_own_claim().unwrap_or(false)) {
            return NeighbourDiscovery::Claim;
        }
        let to = self.network.destination;
        match sound {
            false => NeighbourDiscovery::No,
            true if is_multicast(to) || is_link_local(to) => NeighbourDiscovery::OnLink,
            true => NeighbourDiscovery::Single,
        }
    }

    /// Whether the target of an advertisement, or of a solicitation from the unspecified address, is the pod's. An
    /// advertisement of a link-local target must have it as source.
    #[inline(always)]
    fn is_own_claim(&self) -> Option<bool> {
        if !matches!(self.kind, ADVERTISEMENT | SOLICITATION) || self.length() < 24 {
            return Some(false);
        }
        let target = self.bytes.window::<24>(self.network.payload)?.words(8);
        let itself = self.kind == SOLICITATION
            || !is_link_local(target)
            || V6::same(target, self.network.source);
        Some(itself && self.may_be_own(target))
    }

    /// Whether the message has the exact form: hop limit 255, no extension header, no bytes that receivers ignore, at
    /// most one option, and a destination that it is meant for.
    #[inline(always)]
    fn is_neighbour(&self) -> Option<bool> {
        let Network { source, destination, hop_limit, start, payload, .. } = *self.network;
        if hop_limit != 255 || payload != start + 40 {
            return Some(false);
        }
        if self.kind == ROUTER_ADVERTISEMENT {
            let fits = self.length() >= 16 && self.length() <= MAX_ADVERTISEMENT;
            return Some(!self.sent && fits && is_link_local(source));
        }
        let nobody = V6::same(source, UNSPECIFIED);
        if is_multicast(source) || (!nobody && !self.may_be_own(source)) {
            return Some(false);
        }
        let reserved = self.bytes.window::<8>(payload)?.be32(4);
        let fixed = if self.kind == ROUTER_SOLICITATION { 8 } else { 24 };
        let right = match self.kind {
            ROUTER_SOLICITATION => {
                reserved == 0 && (V6::same(destination, ALL_ROUTERS) || is_link_local(destination))
            }
            kind => {
                let target = self.bytes.window::<24>(payload)?.words(8);
                let fits = if kind == SOLICITATION {
                    reserved == 0 && self.asks(target, nobody)
                } else {
                    // All bits but router, solicited and override are reserved.
                    let to_one = !is_multicast(destination);
                    reserved << 3 == 0 && !nobody && (to_one || V6::same(destination, ALL_NODES))
                };
                fits && !is_multicast(target)
            }
        };
        Some(right && self.has_one_option(fixed, nobody)?)
    }

    /// Whether a solicitation goes to its target, or to the target's solicited-node group (RFC 4291 section 2.7.1).
    #[inline(always)]
    fn asks(&self, target: [u64; 2], nobody: bool) -> bool {
        let to = self.network.destination;
        let group = SOLICITED_NODE | u64::from_be(target[1]) & 0xff_ffff;
        V6::same(to, of(0xff02 << 48, group)) || (!nobody && V6::same(to, target))
    }

    /// Whether the message ends after its fixed part, or after one option of its kind.
    #[inline(always)]
    fn has_one_option(&self, fixed: u32, nobody: bool) -> Option<bool> {
        if self.length() == fixed {
            return Some(true);
        }
        if self.length() != fixed + 8 {
            return Some(false);
        }
        let option = self.bytes.window::<8>(self.network.payload + fixed)?;
        let allowed = match option.byte(0) {
            SOURCE_LINK => !nobody && self.kind != ADVERTISEMENT,
            TARGET_LINK => self.kind == ADVERTISEMENT,
            NONCE => self.kind == SOLICITATION,
            _ => false,
        };
        Some(allowed && option.byte(1) == 1)
    }

    /// Whether the message has the form of RFC 2710 and RFC 3810: hop limit 1 after a router alert (RFC 2711), from a
    /// link-local or the unspecified address, to a group. Pods send no queries.
    #[inline(always)]
    fn is_listener(&self) -> Option<bool> {
        let Network { source, destination, hop_limit, start, payload, .. } = *self.network;
        let local = is_link_local(source) || V6::same(source, UNSPECIFIED);
        if hop_limit != 1 || !local || !is_multicast(destination) || payload != start + 48 {
            return Some(false);
        }
        // The hop-by-hop header is the first one, directly after the IPv6 header.
        let options = self.bytes.window::<8>(start + 40)?;
        let (kind, value, padding) = (options.be16(2), options.be16(4), options.be16(6));
        let alert = kind == 0x0502 && value == 0 && matches!(padding, 0x0100 | 0);
        if !alert || self.bytes.window::<8>(start)?.byte(6) != 0 {
            return Some(false);
        }
        match self.kind {
            LISTENER_QUERY => Some(!self.sent && self.is_query()?),
            LISTENER_REPORT_V2 => Some(V6::same(destination, ALL_REPORTS) && self.is_report()?),
            kind => {
                let group = self.bytes.window::<24>(payload)?.words(8);
                let to = if kind == LISTENER_REPORT { group } else { ALL_ROUTERS };
                let right = is_multicast(group) && V6::same(destination, to);
                let reserved = self.bytes.window::<8>(payload)?.be32(4);
                Some(right && self.length() == 24 && reserved == 0)
            }
        }
    }

    /// Whether the message is a query of either version.
    #[inline(always)]
    fn is_query(&self) -> Option<bool> {
        if self.length() == 24 {
            return Some(true);
        }
        let sources = self.bytes.window::<28>(self.network.payload)?.be16(26);
        let length = 28 + 16 * u32::from(sources);
        Some(sources <= MAX_SOURCES && self.length() == length)
    }

    /// Whether the message is a report of version 2: group records without auxiliary data, and no bytes after them.
    #[inline(always)]
    fn is_report(&self) -> Option<bool> {
        let header = self.bytes.window::<8>(self.network.payload)?;
        let (reserved, records) = (header.be16(4), header.be16(6));
        if reserved != 0 || records == 0 || records > MAX_RECORDS {
            return Some(false);
        }
        let mut at = self.network.payload + 8;
        for number in 0..MAX_RECORDS {
            if number >= records {
                break;
            }
            let record = self.bytes.window::<20>(at)?;
            let (kind, group) = (record.byte(0), record.byte(4));
            let (auxiliary, sources) = (record.byte(1), record.be16(2));
            let right = matches!(kind, 1..=6) && auxiliary == 0 && group == 0xff;
            if !right || sources > MAX_SOURCES {
                return Some(false);
            }
            at += 20 + 16 * u32::from(sources);
        }
        Some(at == self.network.end)
    }
}
