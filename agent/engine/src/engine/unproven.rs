//! Packets of pods that reach an exit without their proof (`netpold_ebpf::judge::proof`), and the probable cause.
//!
//! Another tool on the node may clear the proof behind netpold's program at the pod's veth: a rule that sets the
//! packet's mark, or another tc or BPF program. Or the pod bypassed netpold's program. The exits judge both cases alike
//! and never more permissively than policy. Their counters distinguish the cases, because a pod cannot know the witness
//! that the program writes to another field. netpold cannot repair either; it reports both.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use netpold_core::compile::Compiler;
use netpold_core::first_names::first_names;
use netpold_ebpf::layout::Unproven;

use netpold_dataplane::Dataplane;

/// Time after the last packet during which the problem is reported.
const REPORTED_FOR: Duration = Duration::from_secs(30);
/// A pod that guesses hits the witness once in 511 packets. More than one hit in this many packets is not a guess.
const PACKETS_PER_GUESS: u64 = 16;
/// Maximum number of pods named in a problem.
const NAMED: usize = 5;

/// Packets without proof or witness, by interface and endpoint.
#[derive(Debug, Default)]
pub(super) struct UnprovenPackets {
    pods: BTreeMap<(u32, u32), EndpointCounters>,
    /// Packets of all pods since the start.
    total: Unproven,
    fragments: FragmentCounter,
}

/// Fragments without proof that were dropped in front of the node's reassembly. nftables counts them together, whatever
/// their interface.
#[derive(Debug, Default)]
struct FragmentCounter {
    /// Fragments since the start, at the last look.
    total: u64,
    /// Fragments since the last pause of [`REPORTED_FOR`].
    recent: u64,
    last: Option<Instant>,
}

impl FragmentCounter {
    fn count(&mut self, total: u64) {
        let fresh = total.saturating_sub(self.total);
        self.total = total;
        if !self.is_recent() {
            self.recent = 0;
        }
        if fresh > 0 {
            self.recent += fresh;
            self.last = Some(Instant::now());
        }
    }

    fn is_recent(&self) -> bool {
        self.last.is_some_and(|last| last.elapsed() < REPORTED_FOR)
    }
}

#[derive(Debug)]
struct EndpointCounters {
    /// The kernel's counters at the last look.
    read: Unproven,
    /// Packets since the last pause of [`REPORTED_FOR`].
    recent: Unproven,
    last: Option<Instant>,
}

/// Probable cause of missing proofs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ProofFault {
    /// The proof is cleared by another tool.
    Erased,
    /// Another tool clears the witness but not the proof.
    Unmarked,
    /// The pod bypasses the program, or another tool clears both.
    Skipped,
}

impl EndpointCounters {
    fn fault(&self) -> Option<ProofFault> {
        self.last.filter(|last| last.elapsed() < REPORTED_FOR)?;
        let Unproven { erased, skipped, unmarked } = self.recent;
        Some(match (erased, skipped) {
            (0, 0) if unmarked == 0 => return None,
            (0, 0) => ProofFault::Unmarked,
            _ if erased.saturating_mul(PACKETS_PER_GUESS) > skipped => ProofFault::Erased,
            _ => ProofFault::Skipped,
        })
    }

    fn packets(&self) -> u64 {
        self.recent.erased + self.recent.skipped + self.recent.unmarked
    }
}

impl UnprovenPackets {
    /// Reads the exits' counters; returns whether the causes have changed.
    pub(super) fn read_counters(&mut self, compiler: &Compiler, dataplane: &Dataplane) -> bool {
        let pods = compiler.endpoints().filter(|endpoint| !endpoint.waiting);
        let pods: BTreeSet<(u32, u32)> = pods.map(|e| (e.ifindex, e.id)).collect();
        let before = (self.faults(), self.fragments.is_recent());
        let generation = dataplane.active().generation();
        self.pods.retain(|key, _| pods.contains(key));
        for (ifindex, id) in pods {
            let counted = generation.map_or_else(Unproven::default, |it| it.unproven(ifindex));
            self.count((ifindex, id), counted);
        }
        self.fragments.count(dataplane.dropped_fragments());
        (self.faults(), self.fragments.is_recent()) != before
    }

    /// Returns problems of pods' packets at their exits, with the cause. `proof` is the bit of `skb->mark`; `name`
    /// describes the pod of an interface and endpoint.
    pub(super) fn problems(&self, proof: u32, name: &dyn Fn(u32, u32) -> String) -> Vec<String> {
        let mut problems = Vec::new();
        let (erased, packets) = self.at_fault(ProofFault::Erased, name);
        let (skipped, others) = self.at_fault(ProofFault::Skipped, name);
        if !erased.is_empty() {
            let pods = first_names([&erased[..], &skipped[..]].concat().iter(), NAMED);
            problems.push(format!(
                "{} packets of {pods} lost bit {} of skb->mark on this node after netpold had judged them: an \
                 nftables or iptables rule that sets the mark without a mask, or a tc or BPF program of another \
                 tool, clears it; these packets are judged again where they leave, and drop if the node has \
                 translated them or if they are answers of isolated pods; make it preserve {proof:#x}, or give \
                 netpold another bit (--mark-bit)",
                packets + others,
                proof.trailing_zeros(),
            ));
        } else if let [pod] = &skipped[..] {
            problems.push(format!(
                "{others} packets of {pod} left without having passed netpold's program at its interface: the pod \
                 bypasses it (by an ifb in the pod, which needs NET_ADMIN), or another tool's program at that \
                 interface clears skb->mark and skb->tc_index; these packets are judged where they leave; answers \
                 and packets that the node has translated drop"
            ));
        } else if !skipped.is_empty() {
            problems.push(format!(
                "{others} packets of {} left without a trace of netpold's programs at their interfaces: something on \
                 this node clears skb->mark and skb->tc_index, or each of these pods bypasses the program (by an ifb \
                 in the pod, which needs NET_ADMIN); these packets are judged where they leave; answers and packets \
                 that the node has translated drop",
                first_names(skipped.iter(), NAMED)
            ));
        }
        let (unmarked, packets) = self.at_fault(ProofFault::Unmarked, name);
        if !unmarked.is_empty() {
            problems.push(format!(
                "{packets} packets of {} lost skb->tc_index on this node after netpold had judged them: a tc filter \
                 behind netpold's that ends in TC_ACT_OK clears it; their packets to Services are not judged after \
                 translation; make that filter return TC_ACT_UNSPEC (continue); or a rule sets bit {} of skb->mark \
                 on packets that bypass netpold's program (CONNMARK --restore-mark without a mask): make it leave \
                 {proof:#x} out",
                first_names(unmarked.iter(), NAMED),
                proof.trailing_zeros(),
            ));
        }
        if self.fragments.is_recent() {
            problems.push(format!(
                "{} fragments without bit {} of skb->mark dropped before the node reassembles them: a pod bypasses \
                 netpold's program at its interface (by an ifb in the pod, which needs NET_ADMIN), or they arrived by \
                 an interface that leads to another network namespace and has no program; if it belongs to the node, \
                 list it in --trusted-devices",
                self.fragments.recent,
                proof.trailing_zeros(),
            ));
        }
        problems
    }

    /// Returns the pods with this cause, and their number of packets.
    fn at_fault(&self, fault: ProofFault, name: &dyn Fn(u32, u32) -> String) -> (Vec<String>, u64) {
        let pods = self.pods.iter().filter(|(_, counted)| counted.fault() == Some(fault));
        let (mut names, mut packets) = (Vec::new(), 0);
        for ((ifindex, id), counted) in pods {
            packets += counted.packets();
            names.push(name(*ifindex, *id));
        }
        (names, packets)
    }

    /// Returns the number of packets without proof or witness at exits, since the agent's start.
    pub(super) fn total(&self) -> Unproven {
        self.total
    }

    /// Returns the number of fragments without proof in front of the node's reassembly, since the agent's start.
    pub(super) fn fragments(&self) -> u64 {
        self.fragments.total
    }

    fn count(&mut self, key: (u32, u32), read: Unproven) {
        let Some(counted) = self.pods.get_mut(&key) else {
            // Earlier packets belong to another pod, or precede the program.
            let recent = Unproven::default();
            self.pods.insert(key, EndpointCounters { read, recent, last: None });
            return;
        };
        let fresh = counters_since(read, counted.read);
        counted.read = read;
        if counted.last.is_some_and(|last| last.elapsed() >= REPORTED_FOR) {
            (counted.recent, counted.last) = (Unproven::default(), None);
        }
        if fresh != Unproven::default() {
            counted.recent = sum(counted.recent, fresh);
            self.total = sum(self.total, fresh);
            counted.last = Some(Instant::now());
        }
    }

    fn faults(&self) -> Vec<((u32, u32), ProofFault)> {
        self.pods.iter().filter_map(|(key, counted)| Some((*key, counted.fault()?))).collect()
    }
}

/// Subtracts counters; a new generation counts from zero.
fn counters_since(now: Unproven, before: Unproven) -> Unproven {
    let fresh = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
    Unproven {
        erased: fresh(now.erased, before.erased),
        skipped: fresh(now.skipped, before.skipped),
        unmarked: fresh(now.unmarked, before.unmarked),
    }
}

fn sum(one: Unproven, other: Unproven) -> Unproven {
    Unproven {
        erased: one.erased + other.erased,
        skipped: one.skipped + other.skipped,
        unmarked: one.unmarked + other.unmarked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(looks: &[(u64, u64, u64)]) -> Option<ProofFault> {
        let mut missing = UnprovenPackets::default();
        for &(erased, skipped, unmarked) in looks {
            missing.count((1, 1), Unproven { erased, skipped, unmarked });
        }
        missing.faults().first().map(|(_, fault)| *fault)
    }

    #[test]
    fn whose_fault_it_is() {
        assert_eq!(fault(&[(9, 9, 9)]), None, "from before the first look");
        assert_eq!(fault(&[(9, 9, 9), (9, 9, 9)]), None);
        assert_eq!(fault(&[(0, 0, 0), (5, 0, 0)]), Some(ProofFault::Erased));
        assert_eq!(
            fault(&[(0, 0, 0), (5, 60, 0)]),
            Some(ProofFault::Erased),
            "marked ones have no witness"
        );
        assert_eq!(fault(&[(0, 0, 0), (0, 5, 0)]), Some(ProofFault::Skipped));
        assert_eq!(
            fault(&[(0, 0, 0), (2, 1022, 0)]),
            Some(ProofFault::Skipped),
            "the witness is guessed"
        );
        assert_eq!(fault(&[(0, 0, 0), (0, 0, 3)]), Some(ProofFault::Unmarked));
        assert_eq!(fault(&[(0, 7, 0), (0, 2, 0)]), Some(ProofFault::Skipped), "a new generation");
    }

    #[test]
    fn fragments_are_reported_with_their_number() {
        let mut missing = UnprovenPackets::default();
        let problems = |missing: &UnprovenPackets| missing.problems(1 << 28, &|_, _| String::new());
        missing.fragments.count(0);
        assert_eq!(problems(&missing), [""; 0]);
        for total in [3, 3, 8] {
            missing.fragments.count(total);
            let reported = format!("{total} fragments without bit 28 of skb->mark dropped");
            assert!(problems(&missing).iter().any(|problem| problem.starts_with(&reported)));
        }
        assert_eq!(missing.fragments(), 8);
    }

    #[test]
    fn all_packets_count() {
        let mut missing = UnprovenPackets::default();
        for erased in [3, 5, 1] {
            missing.count((1, 1), Unproven { erased, ..Unproven::default() });
        }
        missing.count((2, 2), Unproven { skipped: 4, ..Unproven::default() });
        missing.count((2, 2), Unproven { skipped: 8, ..Unproven::default() });
        assert_eq!(missing.total, Unproven { erased: 3, skipped: 4, unmarked: 0 });
    }
}
