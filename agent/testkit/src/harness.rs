//! A compiler with tables in memory and an oracle, led through the same states of a cluster.

use std::fmt::Write;

use crate::generate::{GeneratedCluster, NODE, OpeningPacket, shrink_all};
use crate::hooks::{Begun, HookDisagreement, Hooks};
use crate::oracle::{Oracle, Seen};
use crate::world::World;
use netpold_core::explain::{Explainer, Judgement, Verdict};
use netpold_core::model::{Direction, Key, Pod};
use netpold_core::probe::IpProtocol;
use netpold_ebpf::direction::{Egress, Ingress};
use netpold_ebpf::endpoint::Rows;
use netpold_ebpf::judge::reject::is_requested;
use netpold_ebpf::layout::{CLASS_TRANSLATED, Endpoint, ROW_NOT_ISOLATED};

use crate::coverage::Coverage;

/// The compared implementations.
pub struct Subject {
    /// The cluster's state.
    pub state: GeneratedCluster,
    /// The compiled state.
    pub world: World,
    /// A literal reading of the same state.
    pub oracle: Oracle,
    /// The packet path over the compiled tables.
    pub hooks: Hooks,
}

/// A seed on which tables and oracle disagree.
pub struct Disagreement {
    /// The seed.
    pub seed: u64,
    /// The states that lead to the disagreement, which is in the last one.
    pub states: Vec<GeneratedCluster>,
    /// The packet with the disagreement.
    pub packet: OpeningPacket,
}

impl Default for Subject {
    fn default() -> Self {
        Self::new()
    }
}

impl Subject {
    /// A subject with an empty cluster.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: GeneratedCluster::default(),
            world: World::on(NODE, []),
            oracle: Oracle::default(),
            hooks: Hooks::new(),
        }
    }

    /// Leads all implementations to another state in one update.
    pub fn become_state(&mut self, next: &GeneratedCluster) {
        let changes = self.state.changes_to(next);
        changes.iter().cloned().for_each(|change| self.oracle.ingest(change));
        self.world.apply(changes);
        self.state = next.clone();
    }

    /// The local pods with an interface, and its index.
    fn endpoints(&self) -> impl Iterator<Item = (&Pod, u32)> {
        self.state.interfaces().filter_map(|interface| {
            let mut pods = interface.addresses.iter().filter_map(|a| self.oracle.pod_at(*a));
            pods.find(|pod| pod.node == NODE).map(|pod| (pod, interface.index))
        })
    }

    /// The local pods with an interface.
    pub fn pods(&self) -> Vec<Key> {
        self.endpoints().map(|(pod, _)| pod.key.clone()).collect()
    }

    /// Verdicts of the oracle and of the tables. The latter is `None` if an address is marked wrongly, or if the packet
    /// path disagrees with the tables or with itself. Returns `None` for a pod's traffic to itself, which the packet
    /// path passes before it reads a table.
    pub fn verdicts(&self, packet: &OpeningPacket) -> Option<(bool, Option<bool>)> {
        let (pod, ifindex) = self.endpoints().find(|(pod, _)| pod.key == packet.pod)?;
        if pod.addresses.contains(&packet.remote) {
            return None;
        }
        let OpeningPacket { direction, remote, protocol, port, .. } = *packet;
        let expected = self.oracle.judge(pod, direction, remote, protocol, port);
        let found = self.world.tables.allows(ifindex, direction, remote, protocol, port);
        let agreed = self.is_marked_rightly(packet)
            && self.is_untranslated_rightly(packet, pod, ifindex)
            && self.is_answered_rightly(packet, pod, ifindex)
            && self.hooks_agree(packet, found);
        Some((expected, found.filter(|_| agreed)))
    }

    /// A packet as its pod sees it; `None` if there are no tiers.
    fn seen(&self, packet: &OpeningPacket) -> Option<Seen<'_>> {
        let OpeningPacket { direction, remote, protocol, port, .. } = *packet;
        let tiers = !self.oracle.cluster_policies.is_empty();
        let (pod, _) = self.endpoints().find(|(pod, _)| tiers && pod.key == packet.pod)?;
        let (oracle, itself) = (&self.oracle, false);
        Some(Seen { oracle, pod, direction, remote, protocol, port, itself })
    }

    /// Whether the pod's hooks agree with the tables about a packet that opens a flow, and XDP in front of them agrees
    /// with the hooks. Of packets that nothing can deny, only some are tested.
    fn hooks_agree(&self, packet: &OpeningPacket, found: Option<bool>) -> bool {
        if !packet.port.is_multiple_of(4) && !self.is_isolated(&packet.pod, packet.direction) {
            return true;
        }
        self.begin(packet).is_ok_and(|passes| passes.is_none() || passes == found)
    }

    /// Whether the pod's hook passes a packet that opens a flow.
    ///
    /// # Errors
    /// XDP in front of the hook disagrees with it, on this or on a further packet of the flow.
    pub fn begin(&self, packet: &OpeningPacket) -> Result<Option<bool>, HookDisagreement> {
        let index = self.endpoints().find(|(pod, _)| pod.key == packet.pod).map(|(_, index)| index);
        let Some(ifindex) = index else { return Ok(None) };
        let OpeningPacket { direction, remote, protocol, port, .. } = *packet;
        self.hooks.begin(&self.world.tables, &Begun { ifindex, direction, remote, protocol, port })
    }

    /// Whether the mark of an address is right: set exactly if packets of isolated pods to it may be translated, or,
    /// while no pod is isolated for egress, if it may lead a pod back to itself.
    fn is_marked_rightly(&self, packet: &OpeningPacket) -> bool {
        let egress = |endpoint: &Endpoint| Rows(endpoint.rows).egress();
        let isolated =
            self.world.tables.endpoints.values().any(|it| egress(it) != ROW_NOT_ISOLATED);
        let Some((pod, _)) = self.endpoints().find(|(pod, _)| pod.key == packet.pod) else {
            return true;
        };
        let marked = self.world.tables.class(packet.remote) & CLASS_TRANSLATED != 0;
        marked
            == match isolated {
                true => self.oracle.is_translated(pod, packet.remote),
                false => self.leads_back(packet),
            }
    }

    /// Whether the address may lead a pod that is isolated for ingress back to itself.
    fn leads_back(&self, packet: &OpeningPacket) -> bool {
        self.endpoints().any(|(pod, _)| {
            self.is_isolated(&pod.key, Direction::Ingress)
                && self.oracle.leads_back(pod, packet.remote)
        })
    }

    /// Whether an untranslated packet gets the oracle's verdict where it leaves the node.
    fn is_untranslated_rightly(&self, packet: &OpeningPacket, pod: &Pod, ifindex: u32) -> bool {
        let OpeningPacket { direction, remote, protocol, port, .. } = *packet;
        let found = self.world.tables.allows_untranslated(ifindex, remote, protocol, port);
        direction == Direction::Ingress
            || found == Some(self.oracle.judge_untranslated(pod, remote, protocol, port))
    }

    /// Whether the flags of the pod's record reject denied packets exactly if the oracle does.
    fn is_answered_rightly(&self, packet: &OpeningPacket, pod: &Pod, ifindex: u32) -> bool {
        let flags = self.world.tables.endpoint(ifindex).map_or(0, |endpoint| endpoint.flags);
        let found = match packet.direction {
            Direction::Ingress => is_requested::<Ingress>(flags),
            Direction::Egress => is_requested::<Egress>(flags),
        };
        found == self.oracle.rejects(pod, packet.direction)
    }

    /// Judgement of the explainer about the packet.
    fn explained(&self, packet: &OpeningPacket) -> Option<Judgement> {
        let OpeningPacket { direction, remote, port, .. } = *packet;
        let explainer = Explainer::new(self.world.compiler.cluster());
        explainer.judge(&packet.pod, direction, remote, IpProtocol(packet.protocol), port)
    }

    /// Whether a direction of a pod's endpoint is isolated. An audited pod is not, though it has a row.
    pub fn is_isolated(&self, pod: &Key, direction: Direction) -> bool {
        let mut endpoints = self.world.compiler.endpoints().filter(|it| it.slot.is_some());
        endpoints.any(|it| {
            let isolated = match direction {
                Direction::Ingress => it.ingress,
                Direction::Egress => it.egress,
            };
            it.pod == *pod && isolated
        })
    }
}

/// One of this many packets is also explained.
const EXPLAIN_EVERY: usize = 20;

/// For one of this many packets, the rules of tiers are counted.
const TIERS_EVERY: usize = 4;

/// The first packet on which tables or explainer disagree with the oracle.
pub fn compare(
    subject: &Subject,
    packets: &[OpeningPacket],
    coverage: &mut Coverage,
) -> Option<OpeningPacket> {
    for (number, packet) in packets.iter().enumerate() {
        let Some((expected, found)) = subject.verdicts(packet) else { continue };
        if found != Some(expected) {
            return Some(packet.clone());
        }
        coverage.packet(packet, expected, subject.is_isolated(&packet.pod, packet.direction));
        if let Some(seen) = subject.seen(packet).filter(|_| number % TIERS_EVERY == 0) {
            coverage.tiers(seen);
        }
        if number % EXPLAIN_EVERY == 0 {
            let Some(explained) = subject.explained(packet) else { return Some(packet.clone()) };
            if (explained.verdict == Verdict::Allow) != expected {
                return Some(packet.clone());
            }
            coverage.explained(&subject.state, &explained);
        }
    }
    None
}

/// Whether the packet gets a wrong verdict after these states.
fn disagree(states: &[GeneratedCluster], packet: &OpeningPacket) -> bool {
    let mut subject = Subject::new();
    states.iter().for_each(|state| subject.become_state(state));
    let wrong = |(expected, found): (bool, Option<bool>)| {
        let explained = subject.explained(packet).map(|it| it.verdict == Verdict::Allow);
        found != Some(expected) || explained != Some(expected)
    };
    subject.verdicts(packet).is_some_and(wrong)
}

/// Text with the smallest states that show the disagreement, and all verdicts.
#[must_use]
pub fn shrunk(found: Disagreement) -> String {
    let Disagreement { seed, mut states, packet } = found;
    if let Some(last) = states.last().filter(|last| disagree(&[(*last).clone()], &packet)) {
        states = vec![last.clone()];
    }
    let states = shrink_all(states, |states| disagree(states, &packet));
    let mut subject = Subject::new();
    states.iter().for_each(|state| subject.become_state(state));
    let mut text = format!("seed {seed}: {packet:?}\n(oracle, tables): ");
    let explained = subject.explained(&packet).map(|judgement| judgement.lines().join("\n"));
    let _ = writeln!(text, "{:?}\n{}", subject.verdicts(&packet), explained.unwrap_or_default());
    let _ = match subject.begin(&packet) {
        Ok(passes) => writeln!(text, "the hook: {passes:?}"),
        Err(early) => writeln!(text, "{early}"),
    };
    for (number, state) in states.iter().enumerate() {
        let _ = writeln!(text, "state {}:\n{state}", number + 1);
    }
    text
}
