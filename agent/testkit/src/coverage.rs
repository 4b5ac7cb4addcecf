//! Counts the compared packets by kind, so that the comparison cannot be vacuous.

use std::collections::BTreeMap;
use std::fmt;

use crate::generate::{GeneratedCluster, OpeningPacket};
use crate::oracle::Seen;
use netpold_core::explain::{Cause, Judgement};
use netpold_core::model::{Action, Change, Direction, Peer, PortMatch, Rule, Tier};

/// Tier, action, direction, kind of peer and kind of port.
type PacketKind = (Tier, Action, Direction, &'static str, &'static str);

/// Counts of packets by kind.
#[derive(Default)]
pub struct Coverage {
    /// Allowed and denied packets.
    all: [u64; 2],
    /// Allowed and denied packets in an isolated direction.
    isolated: [u64; 2],
    /// Allowed and denied packets by direction, family and protocol.
    packets: BTreeMap<(&'static str, u8, &'static str), [u64; 2]>,
    /// Explained packets by cause, kind of peer and kind of port.
    reasons: BTreeMap<String, u64>,
    /// Rules of ClusterNetworkPolicies that decided or passed.
    tiers: BTreeMap<PacketKind, u64>,
    /// Packets dropped by XDP: openings at an uplink, all at an uplink, sent by pods.
    early: [u64; 3],
}

impl Coverage {
    /// Adds packets dropped by XDP.
    pub fn early(&mut self, dropped: [u64; 3]) {
        for (sum, count) in self.early.iter_mut().zip(dropped) {
            *sum += count;
        }
    }

    /// Counts a packet.
    pub fn packet(&mut self, packet: &OpeningPacket, allowed: bool, isolated: bool) {
        let verdict = usize::from(!allowed);
        self.all[verdict] += 1;
        if !isolated {
            return;
        }
        self.isolated[verdict] += 1;
        let direction = if packet.direction == Direction::Ingress { "ingress" } else { "egress" };
        let family = if packet.remote.is_ipv4() { 4 } else { 6 };
        let protocol = match packet.protocol {
            6 => "TCP",
            17 => "UDP",
            132 => "SCTP",
            _ => "other",
        };
        self.packets.entry((direction, family, protocol)).or_default()[verdict] += 1;
    }

    /// Counts the cause of a verdict.
    pub fn explained(&mut self, state: &GeneratedCluster, judgement: &Judgement) {
        let mut count = |reason: String| *self.reasons.entry(reason).or_default() += 1;
        count(format!("{:?}", judgement.cause));
        let (Cause::Rule, Some(by)) = (judgement.cause, &judgement.allowed_by) else { return };
        let rule = state.objects.iter().find_map(|object| {
            if let Change::Policy(policy) = object
                && policy.key == by.policy
            {
                policy.rules(by.direction)?.get(by.index)
            } else {
                None
            }
        });
        if let Some(rule) = rule {
            count(format!("{} {}", judgement.direction, peer_kind(rule, by.peer)));
            count(format!("{} {}", judgement.direction, port_kind(rule, by.port)));
        }
    }

    /// Counts the tier rules that decided about a packet.
    pub fn tiers(&mut self, seen: Seen<'_>) {
        for (policy, rule) in seen.deciding() {
            let (peer, port) = seen.matching_items(rule);
            let (peer, port) = (peer_kind(&rule.matches, peer), port_kind(&rule.matches, port));
            let kind = (policy.tier, rule.action, seen.direction, peer, port);
            *self.tiers.entry(kind).or_default() += 1;
        }
    }

    /// Adds another thread's counts.
    pub fn add(&mut self, other: &Self) {
        for verdict in 0..2 {
            self.all[verdict] += other.all[verdict];
            self.isolated[verdict] += other.isolated[verdict];
        }
        self.early(other.early);
        for (key, counts) in &other.packets {
            let sum = self.packets.entry(*key).or_default();
            sum[0] += counts[0];
            sum[1] += counts[1];
        }
        for (kind, count) in &other.tiers {
            *self.tiers.entry(*kind).or_default() += count;
        }
        for (key, count) in &other.reasons {
            *self.reasons.entry(key.clone()).or_default() += count;
        }
    }

    /// Asserts that every kind occurred, in sensible proportion.
    pub fn check(&self) {
        let [allowed, denied] = self.isolated;
        let isolated = allowed + denied;
        assert!(self.all[0] + self.all[1] >= 10_000_000, "too few packets\n{self}");
        assert!(isolated * 10 > self.all[0] + self.all[1], "too few isolated\n{self}");
        assert!(allowed * 10 > isolated && denied * 10 > isolated, "one-sided\n{self}");
        assert_eq!(self.packets.len(), 16, "{self}");
        assert!(self.early.iter().all(|count| *count > 100_000), "XDP is not held to much\n{self}");
        for (what, [allowed, denied]) in &self.packets {
            assert!(*allowed > 1000 && *denied > 1000, "{what:?}\n{self}");
        }
        for direction in ["ingress", "egress"] {
            for kind in PEER_KINDS.iter().chain(&PORT_KINDS) {
                let count = self.reasons.get(&format!("{direction} {kind}")).copied();
                assert!(count > Some(30), "{direction} {kind}: {count:?}\n{self}");
            }
        }
        for cause in ["NotIsolated", "Rule", "NoRule", "OwnNode", "Backend"] {
            assert!(self.reasons.get(cause) > Some(&500), "{cause}\n{self}");
        }
        for kind in kinds_of_tiers() {
            assert!(self.tiers.get(&kind) > Some(&30), "{kind:?}\n{self}");
        }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "[allowed, denied] {:?}, isolated {:?}", self.all, self.isolated)?;
        writeln!(f, "dropped by XDP: {:?}", self.early)?;
        for (what, counts) in &self.packets {
            writeln!(f, "  {what:?}: {counts:?}")?;
        }
        self.tiers.iter().try_for_each(|(what, count)| writeln!(f, "  {what:?}: {count}"))?;
        self.reasons.iter().try_for_each(|(what, count)| writeln!(f, "  {what}: {count}"))
    }
}

const PEER_KINDS: [&str; 6] = [
    "everyone",
    "pods of the own namespace",
    "every pod of namespaces",
    "pods of namespaces",
    "block",
    "block with except",
];
const NODES: &str = "nodes";
/// Domain names, which generated clusters do not have.
const DOMAINS: &str = "domain names";
const PORT_KINDS: [&str; 5] = ["no ports", "whole protocol", "one port", "range", "named port"];

/// All kinds of rules that a tier can have.
fn kinds_of_tiers() -> Vec<PacketKind> {
    let mut kinds = Vec::new();
    for tier in [Tier::Admin, Tier::Baseline] {
        for direction in Direction::BOTH {
            let peers = match direction {
                Direction::Ingress => &[PEER_KINDS[2], PEER_KINDS[3]][..],
                Direction::Egress => &[PEER_KINDS[2], PEER_KINDS[3], PEER_KINDS[4], NODES],
            };
            for action in [Action::Accept, Action::Deny, Action::Pass] {
                let of = |peer| PORT_KINDS.map(|port| (tier, action, direction, peer, port));
                let all = peers.iter().copied().flat_map(of);
                // Only pods have named ports.
                let named = |kind: &PacketKind| kind.4 == PORT_KINDS[4];
                let of_pods = |kind: &PacketKind| kind.3 != PEER_KINDS[4] && kind.3 != NODES;
                kinds.extend(all.filter(|kind| of_pods(kind) || !named(kind)));
            }
            kinds.push((tier, Action::Deny, direction, PEER_KINDS[0], PORT_KINDS[0]));
        }
    }
    kinds
}

fn peer_kind(rule: &Rule, index: Option<usize>) -> &'static str {
    match index.zip(rule.peers.as_ref()).map(|(index, peers)| &peers[index]) {
        None => PEER_KINDS[0],
        Some(Peer::Pods { namespaces: None, .. }) => PEER_KINDS[1],
        Some(Peer::Pods { pods, .. }) if pods.requirements.is_empty() => PEER_KINDS[2],
        Some(Peer::Pods { .. }) => PEER_KINDS[3],
        Some(Peer::Block(block)) if block.except.is_empty() => PEER_KINDS[4],
        Some(Peer::Block(_)) => PEER_KINDS[5],
        Some(Peer::Nodes(_)) => NODES,
        Some(Peer::Domain(_)) => DOMAINS,
    }
}

fn port_kind(rule: &Rule, index: Option<usize>) -> &'static str {
    match index.zip(rule.ports.as_ref()).map(|(index, ports)| &ports[index].port) {
        None => PORT_KINDS[0],
        Some(PortMatch::Any) => PORT_KINDS[1],
        Some(PortMatch::Range(first, last)) if first == last => PORT_KINDS[2],
        Some(PortMatch::Range(..)) => PORT_KINDS[3],
        Some(PortMatch::Named(_)) => PORT_KINDS[4],
    }
}
