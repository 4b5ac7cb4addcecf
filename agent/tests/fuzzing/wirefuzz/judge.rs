//! Decides whether a frame may have arrived, from its real sender and the preceding packets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use netpold_core::model::Direction;
use netpold_testbed::Offload;

use crate::wirefuzz::read::{self, ICMP, ICMPV6, Parsed, Tuple};
use crate::wirefuzz::traits::Trait;
use crate::wirefuzz::world::{PORTS, Party, World};

/// Sent packet, in one or more frames.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) sender: usize,
    pub(crate) frames: Vec<Vec<u8>>,
    pub(crate) traits: BTreeSet<Trait>,
    /// Offload request of the frames.
    pub(crate) offload: Offload,
    /// Intended packet, unfragmented and without tunnels around it.
    pub(crate) parsed: Option<Parsed>,
}

/// Number of a sender that is not a party, usually a node.
const NO_PARTY: usize = usize::MAX;
/// First port of sockets without a chosen port; generated packets use lower ports.
const EPHEMERAL: u16 = 32768;

impl Sent {
    /// Returns the packet as intended, and as read from each frame.
    fn forms(&self) -> impl Iterator<Item = Parsed> {
        let frames = self.frames.iter().filter_map(|frame| read::frame(frame));
        self.parsed.clone().into_iter().chain(frames)
    }
}

/// Packets sent and received so far.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Flows with packets sent by each party.
    sent_flows: BTreeMap<usize, BTreeSet<Tuple>>,
    /// Flows with packets received by each party, with the real senders.
    received_flows: BTreeMap<usize, BTreeMap<Tuple, BTreeSet<usize>>>,
}

impl History {
    /// Records the flows of a sent packet.
    pub(crate) fn record_sent(&mut self, world: &World, sent: &Sent) {
        let own = &world.parties[sent.sender].addresses;
        let flows = self.sent_flows.entry(sent.sender).or_default();
        for parsed in sent.forms() {
            for mut tuple in parsed.tuples() {
                flows.insert(tuple);
                // The source may be unspecified or link-local: the flow is recorded with the sender's own address too.
                tuple.from.0 = own[usize::from(tuple.to.0.is_ipv6())];
                flows.insert(tuple);
            }
        }
    }

    /// Records the flows of a frame that arrived, with its real sender.
    pub(crate) fn record_arrival(
        &mut self,
        world: &World,
        (receiver, frame): (usize, &[u8]),
        sender: usize,
    ) {
        if let Some(parsed) = read::frame(frame) {
            let flows = self.received_flows.entry(receiver).or_default();
            for mut tuple in parsed.tuples() {
                flows.entry(tuple).or_default().insert(sender);
                let to = &mut tuple.to.0;
                if is_for_many(*to) {
                    *to = world.parties[receiver].addresses[usize::from(to.is_ipv6())];
                    flows.entry(tuple).or_default().insert(sender);
                }
            }
        }
    }

    /// Records a frame without a valid cookie; the party with the frame's source address counts as the sender.
    pub(crate) fn record_by_source(&mut self, world: &World, receiver: usize, frame: &[u8]) {
        let Some(parsed) = read::frame(frame) else { return };
        if parsed.others.is_empty() && parsed.tuple.from.1.max(parsed.tuple.to.1) >= EPHEMERAL {
            // The packet belongs to the test's own flows, which run alongside the generated packets.
            return;
        }
        let claims = |party: &Party| party.addresses.contains(&parsed.tuple.from.0);
        let sender = world.parties.iter().position(claims).unwrap_or(NO_PARTY);
        self.record_arrival(world, (receiver, frame), sender);
    }

    /// Returns the flows with packets that a party received, for answers to them.
    pub(crate) fn received_flows(&self, party: usize) -> Option<&BTreeMap<Tuple, BTreeSet<usize>>> {
        self.received_flows.get(&party)
    }

    /// Returns the parties that sent a packet of this flow, with any source.
    fn senders(&self, tuple: &Tuple) -> Vec<usize> {
        let sender =
            |(party, flows): (&usize, &BTreeSet<Tuple>)| flows.contains(tuple).then_some(*party);
        self.sent_flows.iter().filter_map(sender).collect()
    }

    /// Returns the flows with packets that a party sent, for errors about them.
    pub(crate) fn sent_flows(&self, party: usize) -> Option<&BTreeSet<Tuple>> {
        self.sent_flows.get(&party)
    }
}

/// Checks that a frame may have arrived.
///
/// # Errors
/// The reason why the frame must not have arrived.
pub(crate) fn judge(
    world: &World,
    history: &History,
    (receiver, frame): (usize, &[u8]),
    sent: &Sent,
) -> Result<(), String> {
    if receiver == sent.sender
        || (is_outside(world, receiver) && is_outside(world, effective_sender(world, sent)))
    {
        return Ok(());
    }
    let (from, to) = (&world.parties[sent.sender], &world.parties[receiver]);
    let never = sent.traits.iter().find(|of| from.pod.is_some() && of.is_never_allowed());
    if let Some(of) = never.filter(|_| !is_error_of_node(world, sent, frame)) {
        return Err(format!("no packet of {} with {of:?} may reach {}", from.name, to.name));
    }
    if from.is_bridged_to(to) && is_of_link(from, frame) {
        return Ok(());
    }
    let Some(parsed) = read::frame(frame) else {
        let open = |party: &Party, direction| isolation(world, party, direction).is_none();
        return (open(from, Direction::Egress) && open(to, Direction::Ingress))
            .then_some(())
            .ok_or_else(|| "the frame is not IP, and sender or receiver is isolated".into());
    };
    // Packets that bypass the veth's program reach the node with any source, and the node answers (THREATS.md).
    let from_address = parsed.tuple.from.0;
    let of_node = world.nodes.iter().flatten().any(|address| *address == from_address)
        || !parsed.quoted.is_empty()
            && !world.parties.iter().any(|party| party.addresses.contains(&from_address));
    if sent.traits.contains(&Trait::Bounced) && of_node {
        return Ok(());
    }
    let family = usize::from(parsed.tuple.to.0.is_ipv6());
    let exchange = Exchange { world, history, parsed: &parsed, sent, receiver, family };
    if !exchange.may_leave() {
        let why = format!("{} may not send the packet to {}", from.name, to.name);
        return Err(exchange.describe(&why));
    }
    if !exchange.may_enter() {
        let why = format!("{} may not receive the packet from {}", to.name, from.name);
        return Err(exchange.describe(&why));
    }
    Ok(())
}

/// Returns whether a frame is an ICMP error of a node about a packet that bypassed the veth's program: the packet reached
/// the node itself (THREATS.md).
fn is_error_of_node(world: &World, sent: &Sent, frame: &[u8]) -> bool {
    sent.traits.contains(&Trait::Bounced)
        && read::frame(frame).is_some_and(|parsed| {
            !parsed.quoted.is_empty()
                && world.nodes.iter().flatten().any(|it| *it == parsed.tuple.from.0)
        })
}

/// Returns whether a frame is a link message that a bridge's pods may exchange under any policy: ARP with the padding
/// of the shortest frame, or a solicitation with at most one option, both with the sender's own address.
fn is_of_link(from: &Party, frame: &[u8]) -> bool {
    let Some((kind, packet)) = read::untagged(frame) else { return false };
    let [IpAddr::V4(own), IpAddr::V6(own6)] = from.addresses else { return false };
    match kind {
        0x0806 => {
            packet.len() <= 46
                && matches!(packet, [0, 1, 8, 0, 6, 4, 0, 1 | 2, ..])
                && packet.get(14..18) == Some(&own.octets()[..])
        }
        0x86dd => {
            packet.len() <= 72
                && packet.get(6..8) == Some(&[ICMPV6, 255])
                && packet.get(8..24) == Some(&own6.octets()[..])
                && packet.get(40..42) == Some(&[135, 0])
        }
        _ => false,
    }
}

/// Returns whether an address is multicast, broadcast or link-local.
fn is_for_many(address: IpAddr) -> bool {
    let of_link = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    of_link || address.is_multicast() || address == IpAddr::from([255; 4])
}

fn is_outside(world: &World, party: usize) -> bool {
    world.parties.get(party).is_some_and(|party| party.pod.is_none())
}

/// Returns the number of the party that counts as a packet's sender. A pod that may send to the other node's tunnel
/// device counts as a host outside there; its own node's device passes no packet of the pod.
pub(crate) fn effective_sender(world: &World, sent: &Sent) -> usize {
    let from = &world.parties[sent.sender];
    let own = world.nodes[from.node][0];
    let by_a_tunnel = sent.traits.contains(&Trait::Tunnel)
        && sent.frames.iter().filter_map(|frame| read::frame(frame)).all(|it| it.tuple.to.0 != own)
        && isolation(world, from, Direction::Egress).is_none();
    let outside = (0..world.parties.len()).find(|party| is_outside(world, *party));
    outside.filter(|_| by_a_tunnel).unwrap_or(sent.sender)
}

/// Returns the tuples of a quoted packet's flow in its direction. Requests and replies of an echo share an identifier
/// and a flow: an error may quote a reply where a request was sent.
fn forms(quoted: &Tuple) -> impl Iterator<Item = Tuple> {
    let Tuple { protocol, from, to } = *quoted;
    let echo = Tuple { protocol, from: (from.0, to.1), to: (to.0, from.1) };
    let is_echo = matches!(protocol, ICMP | ICMPV6);
    std::iter::once(*quoted).chain(is_echo.then_some(echo))
}

/// Returns the party if policy denies any of its packets in a direction.
fn isolation<'a>(world: &World, party: &'a Party, direction: Direction) -> Option<&'a Party> {
    let pod = party.pod.as_ref()?;
    // An unassigned address, with a protocol and port that no rule names.
    let nobody = IpAddr::from([198, 18, 0, 1]);
    (!world.oracle.judge_translated(pod, direction, nobody, 254, 0)).then_some(party)
}

struct Exchange<'a> {
    world: &'a World,
    history: &'a History,
    parsed: &'a Parsed,
    sent: &'a Sent,
    receiver: usize,
    family: usize,
}

impl Exchange<'_> {
    fn party(&self, number: usize) -> &Party {
        &self.world.parties[number]
    }

    /// Returns the reason with the recorded packets between the frame's ports.
    fn describe(&self, why: &str) -> String {
        let Tuple { protocol, from, to } = self.parsed.tuple;
        let near = |tuple: &&Tuple| {
            let ports = [tuple.from.1, tuple.to.1];
            tuple.protocol == protocol
                && ports.contains(&from.1)
                && ports.contains(&to.1)
                && (tuple.from.0 == to.0 || tuple.to.0 == to.0)
        };
        let sent = self.history.sent_flows(self.receiver).into_iter().flatten().filter(near);
        let received = self.history.received_flows(self.sent.sender).into_iter();
        let received = received.flat_map(BTreeMap::keys).filter(near);
        let sent: Vec<_> = sent.take(9).collect();
        let received: Vec<_> = received.take(9).collect();
        let mut text = format!(
            "{why}: {:?}\n  the receiver sent {sent:?}\n  the sender received {received:?}",
            self.parsed
        );
        // Real senders of the opposite direction.
        let tuples: BTreeSet<_> =
            self.sent.forms().chain([self.parsed.clone()]).map(|form| form.tuple).collect();
        for tuple in tuples {
            let asked = tuple.reversed();
            let received = self.history.received_flows(self.sent.sender);
            let from = received.and_then(|flows| flows.get(&asked));
            let by = self.history.senders(&asked);
            let _ = write!(text, "\n  {asked:?}: sent by {by:?}, to the sender by {from:?}");
        }
        text
    }

    /// Returns whether policy allows a party one of the packet's interpretations.
    fn allows(&self, who: usize, direction: Direction, remote: IpAddr) -> bool {
        let Some(pod) = &self.party(who).pod else { return true };
        let judge = |protocol: u8, port: u16| {
            let protocol = if protocol == ICMPV6 { ICMP } else { protocol };
            self.world.oracle.judge_translated(pod, direction, remote, protocol, port)
        };
        // The kernel may have fragmented the packet after other headers than its sender did.
        let mut whole = self.sent.forms().flat_map(|form| form.meanings);
        let later = self.parsed.is_later
            && whole.any(|(protocol, _)| PORTS.iter().any(|port| judge(protocol, *port)));
        later || self.parsed.meanings.iter().any(|(protocol, port)| judge(*protocol, *port))
    }

    fn may_leave(&self) -> bool {
        let (sender, receiver) = (self.sent.sender, self.receiver);
        let addresses = &self.party(receiver).addresses;
        if self.allows(sender, Direction::Egress, addresses[self.family]) {
            return true;
        }
        self.parsed.quoted.iter().any(|quoted| self.may_ask(quoted))
            // The frame may be the sender's kernel's answer to a packet that the sender forged to itself.
            || self.sent.forms().chain([self.parsed.clone()]).any(|form| self.answers(&form))
    }

    /// Returns whether the packet answers the receiver, or is an error about one of the receiver's packets.
    fn answers(&self, form: &Parsed) -> bool {
        if form.quoted.iter().any(|quoted| forms(quoted).any(|tuple| self.was_received(&tuple))) {
            return true;
        }
        if self.parsed.is_later {
            return self.history.received_flows(self.sent.sender).is_some_and(|flows| {
                let same = |(tuple, who): (&Tuple, &BTreeSet<usize>)| {
                    form.tuples().any(|own| own.protocol == tuple.protocol)
                        && self.is_of_receiver(who)
                };
                flows.iter().any(same)
            });
        }
        (!form.is_opening && self.was_received(&form.tuple.reversed()))
            || form.others.iter().any(|other| self.was_received(&other.reversed()))
    }

    /// Returns whether an error is about an answer of the receiver to a request that policy allows the sender.
    fn may_ask(&self, quoted: &Tuple) -> bool {
        let Some(pod) = &self.party(self.sent.sender).pod else { return true };
        let (address, port) = quoted.from;
        let protocol = if quoted.protocol == ICMPV6 { ICMP } else { quoted.protocol };
        self.party(self.receiver).addresses.contains(&address)
            && self.world.oracle.judge_translated(pod, Direction::Egress, address, protocol, port)
    }

    /// Returns whether the sender received this packet from the receiver, or from an address that identifies no
    /// party: a link-local address, or an address of another node, which may have lost the flow and then translates
    /// the answer to a node port.
    fn was_received(&self, tuple: &Tuple) -> bool {
        let own = self.party(self.sent.sender).node;
        let mut nodes = self.world.nodes.iter().enumerate();
        let far = nodes.any(|(node, it)| node != own && it.contains(&tuple.from.0));
        let received = self.history.received_flows(self.sent.sender);
        let senders = received.and_then(|flows| flows.get(tuple));
        senders.is_some_and(|who| far || is_for_many(tuple.from.0) || self.is_of_receiver(who))
    }

    /// Returns whether the receiver is among these senders. A host outside may send with the receiver's address:
    /// netpold cannot detect that, and answers go to the receiver.
    fn is_of_receiver(&self, who: &BTreeSet<usize>) -> bool {
        who.iter().any(|other| *other == self.receiver || is_outside(self.world, *other))
    }

    fn may_enter(&self) -> bool {
        let (sender, receiver) = (self.sent.sender, self.receiver);
        // The claimed source decides the verdict on a host outside.
        let source = if is_outside(self.world, effective_sender(self.world, self.sent)) {
            self.parsed.tuple.from.0
        } else {
            self.party(sender).addresses[self.family]
        };
        if self.allows(receiver, Direction::Ingress, source) {
            return true;
        }
        let Some(sent) = self.history.sent_flows(receiver) else { return false };
        if self.parsed.quoted.iter().any(|quoted| self.concerns(quoted)) {
            return true;
        }
        if self.parsed.is_later {
            let mut whole = self.sent.forms().flat_map(|form| form.quoted);
            // Behind a Service, the error quotes the packet as sent by the receiver to the Service.
            let led = |quoted: &Tuple| {
                let same = |asked: &&Tuple| {
                    asked.to.0 == self.parsed.tuple.from.0
                        && (asked.protocol, asked.from) == (quoted.protocol, quoted.from)
                };
                sent.iter().filter(same).any(|asked| self.concerns(asked))
            };
            if whole.any(|quoted| self.concerns(&quoted) || led(&quoted)) {
                return true;
            }
            // A fragment has the Fragment header's next header, which differs from the transport protocol if options
            // follow: the whole packet has the transport protocol.
            let whole: Vec<_> = self.sent.forms().collect();
            let protocols = whole.iter().flat_map(Parsed::tuples).map(|tuple| tuple.protocol);
            return protocols.chain([self.parsed.tuple.protocol]).any(|protocol| {
                sent.iter().any(|tuple| tuple.protocol == protocol)
                    && self.may_request(source, protocol, None)
            });
        }
        let outside = is_outside(self.world, effective_sender(self.world, self.sent));
        let meant = self.sent.parsed.as_ref().filter(|_| !outside).unwrap_or(self.parsed);
        let port = meant.tuple.from.1;
        self.parsed.tuples().enumerate().any(|(number, tuple)| {
            // An answer to a multicast packet answers each receiver.
            let mut asked = tuple.reversed();
            asked.from.0 = self.party(receiver).addresses[self.family];
            (number > 0 || !self.parsed.is_opening)
                && sent.contains(&asked)
                && self.may_request(
                    source,
                    tuple.protocol,
                    Some(if number > 0 { tuple.from.1 } else { port }),
                )
        })
    }

    /// Returns whether the quoted packet is the receiver's own, of a flow that policy now allows in either direction.
    fn concerns(&self, quoted: &Tuple) -> bool {
        let Some(pod) = &self.party(self.receiver).pod else { return true };
        let Tuple { protocol, mut from, to } = *quoted;
        if is_for_many(from.0) {
            // An error to a multicast address about a multicast packet counts as an error to each receiver.
            from.0 = self.party(self.receiver).addresses[self.family];
        }
        let quoted = &Tuple { from, ..*quoted };
        let protocol = if protocol == ICMPV6 { ICMP } else { protocol };
        let history = self.history;
        let was_sent = history
            .sent_flows(self.receiver)
            .is_some_and(|flows| forms(quoted).any(|form| flows.contains(&form)));
        let was_received = history
            .received_flows(self.receiver)
            .is_some_and(|flows| forms(quoted).any(|form| flows.contains_key(&form.reversed())));
        let oracle = &self.world.oracle;
        let may_ask =
            self.is_of_node(to.0) || oracle.judge(pod, Direction::Egress, to.0, protocol, to.1);
        (was_sent && may_ask)
            || (was_received
                && oracle.judge_translated(pod, Direction::Ingress, to.0, protocol, from.1))
    }

    /// Returns whether an interface of the receiver's node has the address; every pod reaches it, also without an
    /// object.
    fn is_of_node(&self, address: IpAddr) -> bool {
        self.world.interfaces[self.party(self.receiver).node].contains(&address)
    }

    /// Returns whether the receiver may send to the port from which the sender answers; without a port, to any port.
    fn may_request(&self, source: IpAddr, protocol: u8, port: Option<u16>) -> bool {
        let Some(pod) = &self.party(self.receiver).pod else { return true };
        let protocol = if protocol == ICMPV6 { ICMP } else { protocol };
        // A host outside may also answer with a Service's address.
        let outside = is_outside(self.world, effective_sender(self.world, self.sent));
        let judge = |port: u16| {
            let oracle = &self.world.oracle;
            self.is_of_node(source)
                || oracle.judge_translated(pod, Direction::Egress, source, protocol, port)
                || (outside && oracle.judge(pod, Direction::Egress, source, protocol, port))
        };
        port.map_or_else(|| PORTS.iter().any(|port| judge(*port)), judge)
    }
}
