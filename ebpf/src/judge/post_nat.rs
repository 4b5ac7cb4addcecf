//! Verdicts on packets after translation (NAT), where they leave the node or reach a pod.
//!
//! At the sender's veth a packet to a Service still has the Service's address. It passes if policy allows that address
//! or some backend, with its sender's slot as a mark ([`crate::layout::mark`]). After the translation the sender's row
//! is read for the packet's new address and port. If the destination is still an address that may be translated, the
//! packet was not translated: then only the literal grants of the address count ([`untranslated`]).
//!
//! A reply to such an address passed at the sender's veth because its flow came from that address. If the node's
//! conntrack no longer has that flow, the kernel treats the reply as a new flow and may translate it to any backend. So
//! it passes here only if conntrack also treats it as a reply, or leaves its destination unchanged
//! ([`crate::judge::connection`]). Otherwise it is judged like any other packet.
//!
//! A packet that was not judged at its sender's veth is judged here for the first time ([`crate::judge::proof`]): its
//! source must be the sender's, and it counts as no reply. Answers to questions that the sender asks by TCP do not count
//! for 30 s.

use crate::{
    direction::Egress,
    endpoint::EndpointRef,
    judge::{
        connection::Course,
        fragment::DatagramKey,
        opaque::Opaque,
        policy::EndpointPolicy,
        proof::{Origin, Rebuilt},
    },
    layout::{ANY_ISOLATES_EGRESS, CLASS_TRANSLATED, EP_CHECK_SOURCE, untranslated},
    packet::{
        bytes::{Bytes, Window as _, short},
        family::{Family as _, V4, V6},
        neighbour::{arp_claim, is_discovery},
        parse::{self, Network, Transport, is_extension},
        protocol::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ICMPV6},
    },
    reason::Reason,
    tables::{TableFamily, Tables, local_endpoints::LocalEndpoints},
    verdict::PacketVerdict,
};

/// [`FragmentKey::direction`](crate::layout::FragmentKey) of pod egress after the translation: the record at the
/// sender's veth has the address before translation, this one the address after.
const TRANSLATED_EGRESS: u32 = 1 + 4;

/// Judges a packet for its sender, at the exit `ifindex`. `link`: its type and the offset of the IP header, as
/// [`parse::link`] returns them. `reply`: the packet's course if it is marked as a reply. `agent_lives` is called only
/// if the verdict depends on it.
#[inline(always)]
pub fn judge<B: Bytes, T: Tables + LocalEndpoints>(
    bytes: &B,
    link: Result<(u16, u32), Reason>,
    tables: &T,
    origin: Origin,
    ifindex: u32,
    reply: Option<Course>,
    agent_lives: impl FnOnce() -> bool,
) -> PacketVerdict {
    if matches!(origin, Origin::Final) {
        return PacketVerdict::from(Ok(Reason::NotEndpoint));
    }
    // Matched here: otherwise the compiler keeps a type and an offset that are not initialized in the error case.
    let link = match link {
        Ok(link) => Ok(link),
        Err(reason) => return PacketVerdict::from(Err(reason)),
    };
    let (sender, judged) = match origin {
        Origin::Final => return PacketVerdict::from(Ok(Reason::NotEndpoint)),
        // The sender's policy is gone, so no grant is left.
        Origin::Marked(None) => return PacketVerdict::from(Err(Reason::ServiceBackend)),
        Origin::Marked(Some(sender)) => (sender, true),
        Origin::Unjudged(sender) => (sender, false),
        Origin::Rebuilt(rebuilt) => match rebuilt_sender(bytes, link, tables, rebuilt) {
            Ok(sender) => (sender, false),
            Err(verdict) => return verdict.into(),
        },
        Origin::BridgePort { isolated, open } => {
            let drops = match local_source(bytes, link, tables) {
                Ok(Some(_)) => isolated,
                Ok(None) => !open && agent_lives(),
                Err(Reason::NotIp) => isolated || !open && agent_lives(),
                Err(reason) => return PacketVerdict::from(Err(reason)),
            };
            let verdict = if drops { Err(Reason::SpoofedSource) } else { Ok(Reason::NotEndpoint) };
            return PacketVerdict::from(verdict);
        }
    };
    if !judged && sender.rows().has_names() {
        doubt_all_ports(tables, sender);
    }
    // The pod reaches itself through its own Service. The source address does not show this, since it is masqueraded.
    if judged && sender.ifindex() == ifindex {
        return PacketVerdict::from(Ok(Reason::Loopback));
    }
    let reply = reply.filter(|_| judged);
    if reply.is_some_and(Course::confirms_reply) {
        return PacketVerdict::from(Ok(Reason::Reply));
    }
    let untracked = reply.is_some_and(|course| !course.is_known());
    let policy = EndpointPolicy::new(tables, sender.rows());
    let check_source = !judged && sender.flags() & EP_CHECK_SOURCE != 0;
    if !policy.is_isolated() && !check_source {
        return PacketVerdict::from(Ok(Reason::NotIsolated));
    }
    // The verifier goes through the parser once instead of once for each origin.
    let opaque = Opaque::new(tables, u64::from(policy.rows().egress()));
    let [check_source, judged, untracked] =
        [check_source, judged, untracked].map(|flag| opaque.flag(flag));
    let packet = Translated { tables, sender, policy, check_source, judged, untracked };
    match link {
        Ok((ETHERTYPE_IPV4, offset)) => packet.ip::<V4, B>(bytes, offset),
        Ok((ETHERTYPE_IPV6, offset)) => packet.ip::<V6, B>(bytes, offset),
        Ok(_) => Err(Reason::NotIp),
        Err(reason) => Err(reason),
    }
    .into()
}

/// Ends the reading of all of a sender's connections to resolvers: the packet may belong to one of them, and was not
/// read at the veth ([`crate::names::stream`]). Its source port may have been translated since.
#[inline(always)]
fn doubt_all_ports<T: Tables>(tables: &T, sender: EndpointRef) {
    tables.doubt_endpoint(sender.id());
}

/// Endpoint to judge as the sender of a packet that the kernel rebuilt.
///
/// # Errors
/// A settled verdict.
#[inline(always)]
fn rebuilt_sender<B: Bytes, T: Tables + LocalEndpoints>(
    bytes: &B,
    link: Result<(u16, u32), Reason>,
    tables: &T,
    rebuilt: Rebuilt,
) -> Result<EndpointRef, Result<Reason, Reason>> {
    let local = local_source(bytes, link, tables).map_err(Err)?;
    let isolates =
        || tables.settings().is_some_and(|settings| settings.holds_for_any(ANY_ISOLATES_EGRESS));
    match (rebuilt, local) {
        (Rebuilt::Fragment, Some(_)) => Err(Err(Reason::SpoofedSource)),
        (Rebuilt::Fragment, None) if isolates() => Err(Err(Reason::SpoofedSource)),
        (Rebuilt::Opening, Some(slot)) => tables.endpoint(slot).ok_or(Err(Reason::ServiceBackend)),
        _ => Err(Ok(Reason::NotEndpoint)),
    }
}

/// Judges a packet without the proof that a bridge hands to the node, see [`crate::judge::proof`]. A packet that claims
/// an endpoint's address drops; a packet that claims any other address is judged like one whose source belongs to no
/// endpoint.
#[inline(always)]
pub fn judge_at_bridge<B: Bytes, T: Tables + LocalEndpoints>(
    bytes: &B,
    link: Result<(u16, u32), Reason>,
    tables: &T,
    origin: Origin,
    agent_lives: impl FnOnce() -> bool,
) -> PacketVerdict {
    let Origin::BridgePort { isolated, open } = origin else {
        return PacketVerdict::from(Ok(Reason::NotEndpoint));
    };
    let (local, claims) = match link {
        Ok((ETHERTYPE_ARP, offset)) => match arp_claim(bytes, offset) {
            Ok(claim) => (tables.local4(claim.address).is_some(), true),
            Err(_) => (true, true),
        },
        Ok((ETHERTYPE_IPV6, offset)) => {
            let next = bytes.window::<40>(offset).map_or(ICMPV6, |header| header.byte(6));
            let local = local_source(bytes, link, tables);
            (!matches!(local, Ok(None)), next == ICMPV6 || is_extension(next))
        }
        _ => match local_source(bytes, link, tables) {
            Ok(local) => (local.is_some(), false),
            Err(Reason::NotIp) => (false, false),
            // Unreadable, so it may claim any address.
            Err(_) => (true, true),
        },
    };
    let drops = if local { isolated || claims } else { !open && agent_lives() };
    PacketVerdict::from(if drops { Err(Reason::SpoofedSource) } else { Ok(Reason::NotEndpoint) })
}

/// Slot of the endpoint with the packet's source address.
#[inline(always)]
fn local_source<B: Bytes, T: LocalEndpoints>(
    bytes: &B,
    link: Result<(u16, u32), Reason>,
    tables: &T,
) -> Result<Option<u32>, Reason> {
    let local = match link? {
        (ETHERTYPE_IPV4, offset) => {
            tables.local4(bytes.window::<20>(offset).ok_or(short::<B>())?.be32(12))
        }
        (ETHERTYPE_IPV6, offset) => {
            tables.local6(bytes.window::<40>(offset).ok_or(short::<B>())?.words(8))
        }
        _ => return Err(Reason::NotIp),
    };
    Ok(local)
}

/// Whether a packet that no program has judged yet may claim an address: neighbour discovery, and IPv6 that cannot be
/// parsed.
#[inline(always)]
pub fn may_claim<B: Bytes>(bytes: &B, link: Result<(u16, u32), Reason>) -> bool {
    let Ok((ETHERTYPE_IPV6, offset)) = link else { return false };
    let Ok(mut network) = V6::network(bytes, offset, false) else { return true };
    if network.protocol != ICMPV6 && !is_extension(network.protocol) {
        return false;
    }
    V6::extensions(bytes, &mut network).is_err()
        || parse::transport(bytes, &network, false).map_or(true, |read| is_discovery(&read))
}

/// Offsets of the IPv4 options of a packet that no program has judged yet: they may name a route beyond its
/// destination ([`parse::has_route`]).
#[inline(always)]
pub fn options<B: Bytes>(bytes: &B, link: Result<(u16, u32), Reason>) -> Option<(u32, u32)> {
    let Ok((ETHERTYPE_IPV4, offset)) = link else { return None };
    let header = bytes.window::<20>(offset)?;
    let (begin, end) = (offset + 20, offset + u32::from(header.byte(0) & 0xf) * 4);
    (end > begin).then_some((begin, end))
}

/// Judgement of a packet for its sender.
struct Translated<'a, T> {
    tables: &'a T,
    sender: EndpointRef,
    policy: EndpointPolicy<'a, Egress, T>,
    check_source: bool,
    /// Whether the sender's own program has judged the packet.
    judged: bool,
    /// Whether the packet was sent as a reply, and is unknown to the node's conntrack.
    untracked: bool,
}

impl<T: Tables> Translated<'_, T> {
    #[inline(always)]
    fn ip<F: TableFamily, B: Bytes>(&self, bytes: &B, offset: u32) -> Result<Reason, Reason> {
        let mut network = F::network(bytes, offset, false)?;
        if self.check_source && !F::owns(self.sender, network.source) {
            return Err(Reason::SpoofedSource);
        }
        if !self.policy.is_isolated() {
            return Ok(Reason::NotIsolated);
        }
        if self.untracked && self.is_as_sent::<F>(&network) {
            return Ok(Reason::Reply);
        }
        F::extensions(bytes, &mut network)?;
        let read = parse::transport(bytes, &network, false)?;
        let opaque = Opaque::new(self.tables, u64::from(self.policy.rows().egress()));
        // The hop limit shows that no router forwarded the packet, so it goes to a neighbour.
        if opaque.number((self.judged && F::is_solicitation(&network, &read)).into()) != 0 {
            return Ok(Reason::Neighbour);
        }
        let class = opaque.class(untranslated(F::class(self.tables, network.destination)));
        let mut transport = Transport {
            protocol: opaque.number(read.protocol.into()) as u8,
            source: opaque.number(read.source),
            destination: opaque.number(read.destination),
            ..read
        };
        if network.fragment.is_later() {
            if self.policy.allows_every_port(class) {
                return Ok(Reason::Allowed);
            }
            let first = self.datagram::<F>(&network).first(self.tables)?;
            transport.protocol = first.protocol;
            transport.destination = first.remote_port;
        }
        if !self.policy.allows(class, &transport) {
            return Err(if self.judged { Reason::ServiceBackend } else { Reason::Policy });
        }
        if network.fragment.is_first() {
            self.datagram::<F>(&network).record_ports(self.tables, &transport, true);
        }
        Ok(Reason::Allowed)
    }

    /// Whether a reply to an address that may be translated still has such a destination, and its sender's source.
    /// After encapsulation (IPsec) it has neither.
    #[inline(always)]
    fn is_as_sent<F: TableFamily>(&self, network: &Network<F::Address>) -> bool {
        let checked = self.sender.flags() & EP_CHECK_SOURCE != 0;
        F::class(self.tables, network.destination) & CLASS_TRANSLATED != 0
            && (!checked || F::owns(self.sender, network.source))
    }

    #[inline(always)]
    fn datagram<F: TableFamily>(&self, network: &Network<F::Address>) -> DatagramKey {
        let (remote, local) = (network.destination, network.source);
        DatagramKey::new::<F>(self.sender.id(), TRANSLATED_EGRESS, remote, local, &network.fragment)
    }
}
