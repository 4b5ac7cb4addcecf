//! Numbers of the engine at one moment.

use std::fmt;

use netpold_api::status::{Revision, TableStatus};
use netpold_core::model::{Direction, Key};
use netpold_dataplane::conntrack::{FlowCounts, PassResult};
use netpold_ebpf::layout::Unproven;
use netpold_ebpf::names::ignored::IgnoredAnswer;
use netpold_ebpf::reason::Reason;

use super::writer::MetricWriter;

/// A number for each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByDirection {
    /// Number for pod ingress.
    pub ingress: u64,
    /// Number for pod egress.
    pub egress: u64,
}

/// Numbers of local pods' interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounts {
    /// All interfaces.
    pub all: u64,
    /// Interfaces with programs.
    pub enforced: u64,
    /// Interfaces of pods that a policy isolates.
    pub isolated: ByDirection,
}

/// Numbers of the engine at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Numbers of policy sets.
    pub revision: Revision,
    /// Reasons why the agent is not ready, from the engine.
    pub not_ready: Vec<String>,
    /// Number of problems.
    pub problems: u64,
    /// Policies beyond their budget, which grant nothing.
    pub closed_policies: u64,
    /// Objects known, by the label `kind`.
    pub objects: Vec<(&'static str, u64)>,
    /// Local pods' interfaces.
    pub endpoints: EndpointCounts,
    /// Fill levels of the policy tables.
    pub tables: Vec<TableStatus>,
    /// Content of the flow tables as of the last sweep.
    pub conntrack: PassResult,
    /// Flows that sweeps removed since the agent's start.
    pub swept: PassResult,
    /// Flows evicted for new ones, by family (IPv4, IPv6) and state (half-open, established).
    pub evicted: [[u64; 2]; 2],
    /// Dropped packets by direction and reason.
    pub drops: Vec<(Direction, Reason, u64)>,
    /// Answers to denied packets, by direction.
    pub rejected: Vec<(Direction, u64)>,
    /// DNS answers, and parts of them, that opened no address, by reason.
    pub ignored_answers: Vec<(IgnoredAnswer, u64)>,
    /// Flows that audited policies would deny: by policy, and in sum for policies beyond the limit of names.
    pub audited: (Vec<(Key, u64)>, u64),
    /// Packets that reached isolated pods around their programs.
    pub bypassed: u64,
    /// Packets of pods that reached an exit without complete proof of their judgement.
    pub unproven: Unproven,
    /// Fragments without proof that were dropped in front of the node's reassembly.
    pub unproven_fragments: u64,
    /// Repairs after changes by other programs, by kind.
    pub repairs: Vec<(&'static str, u64)>,
}

impl Snapshot {
    pub(super) fn write(&self, writer: &mut MetricWriter<'_>) -> fmt::Result {
        self.write_state(writer)?;
        self.write_endpoints(writer)?;
        self.write_tables(writer)?;
        self.write_conntrack(writer)?;
        let drops = self.drops.iter().map(|(direction, reason, packets)| {
            ([("direction", name(*direction)), ("reason", reason.as_str())], *packets)
        });
        let help = "Packets dropped, by the direction that the pod sees and the reason";
        writer.counters("dropped_packets", help, drops)?;
        let rejected = self.rejected.iter();
        let rejected = rejected.map(|(direction, n)| ([("direction", name(*direction))], *n));
        let help = "Denied packets that the kernel answered with a TCP reset or an ICMP error";
        writer.counters("rejected_packets", help, rejected)?;
        let ignored = self.ignored_answers.iter();
        let ignored = ignored.map(|(reason, n)| ([("reason", reason.as_str())], *n));
        let help = "DNS answers to pods with domain names in their rules that opened no address, by reason";
        writer.counters("ignored_dns_answers", help, ignored)?;
        let (named, others) = &self.audited;
        let named = named.iter().map(|(policy, flows)| {
            ([("namespace", policy.namespace.as_str()), ("policy", policy.name.as_str())], *flows)
        });
        let others = [([("namespace", ""), ("policy", "")], *others)];
        let help = "Allowed flows that policies in audit mode would deny, by policy; a ClusterNetworkPolicy has no \
                    namespace, and those beyond 500 policies have no name";
        writer.counters("audited_flows", help, named.chain(others))
    }

    fn write_state(&self, writer: &mut MetricWriter<'_>) -> fmt::Result {
        let ready = u64::from(self.not_ready.is_empty());
        writer.gauge("enforcing", "1: the engine has no pending work that it can do", ready)?;
        let revision = &self.revision;
        writer.gauge(
            "revision_desired",
            "Revision of the policy set to enforce",
            revision.desired,
        )?;
        writer.gauge(
            "revision_enforced",
            "Revision of the policy set in force",
            revision.enforced,
        )?;
        let help = "Problems with enforcement; `netpold status` lists them";
        writer.gauge("problems", help, self.problems)?;
        let help = "Policies beyond their budget: closed, their pods isolated and granted nothing";
        writer.gauge("policies_closed", help, self.closed_policies)?;
        let help = "Repairs of changes by other programs, by kind";
        let repairs = self.repairs.iter().map(|(kind, count)| ([("kind", *kind)], *count));
        writer.counters("repairs", help, repairs)?;
        let objects = self.objects.iter().map(|(kind, count)| ([("kind", *kind)], *count));
        writer.gauges("objects", "Objects known, by kind", objects)
    }

    fn write_endpoints(&self, writer: &mut MetricWriter<'_>) -> fmt::Result {
        let EndpointCounts { all, enforced, isolated } = self.endpoints;
        writer.gauge("endpoints", "Interfaces of local pods", all)?;
        writer.gauge(
            "endpoints_enforced",
            "Interfaces of local pods with attached programs",
            enforced,
        )?;
        let help = "Packets that reached pods isolated for ingress unjudged, past their programs";
        writer.counter("bypassed_packets", help, self.bypassed)?;
        let help = "Packets of pods that left without the proof of netpold's program, by cause";
        let Unproven { erased, skipped, unmarked } = self.unproven;
        let causes = [
            ("fragment", self.unproven_fragments),
            ("mark_erased", erased),
            ("skipped", skipped),
            ("tc_index_erased", unmarked),
        ];
        let causes = causes.map(|(cause, packets)| ([("cause", cause)], packets));
        writer.counters("unproven_packets", help, causes)?;
        writer.gauges(
            "endpoints_isolated",
            "Interfaces of local pods that some policy isolates",
            [(Direction::Ingress, isolated.ingress), (Direction::Egress, isolated.egress)]
                .map(|(direction, count)| ([("direction", name(direction))], count)),
        )
    }

    fn write_tables(&self, writer: &mut MetricWriter<'_>) -> fmt::Result {
        let labels = |table: &TableStatus| [("table", table.name.to_lowercase().replace(' ', "_"))];
        let used = self.tables.iter().map(|table| (labels(table), table.used));
        writer.gauges("table_entries", "Elements of a table in use", used)?;
        let capacity = self.tables.iter().map(|table| (labels(table), table.capacity));
        writer.gauges("table_capacity_entries", "Capacity of a table in elements", capacity)
    }

    fn write_conntrack(&self, writer: &mut MetricWriter<'_>) -> fmt::Result {
        let flows = by_family(&self.conntrack).flat_map(|(family, census)| {
            let FlowCounts { one_way, two_way, closed, .. } = *census;
            [("one_way", one_way), ("two_way", two_way), ("closed", closed)]
                .map(|(state, count)| ([("family", family), ("state", state)], count))
        });
        writer.gauges("conntrack_entries", "Flows tracked, as of the last sweep", flows)?;
        let capacity =
            by_family(&self.conntrack).map(|(f, census)| ([("family", f)], census.capacity));
        writer.gauges("conntrack_capacity_entries", "Flows that can be tracked", capacity)?;
        let full =
            by_family(&self.conntrack).map(|(f, census)| ([("family", f)], census.full_buckets));
        let help = "Full buckets: a new flow there evicts a half-open one or is refused";
        writer.gauges("conntrack_full_buckets", help, full)?;
        let expired = by_family(&self.swept).map(|(f, census)| ([("family", f)], census.removed));
        writer.counters("conntrack_expired", "Flows that ended by their timeout", expired)?;
        let orphaned = by_family(&self.swept).map(|(f, census)| ([("family", f)], census.orphaned));
        writer.counters("conntrack_orphaned", "Flows that ended with their pod", orphaned)?;
        let help = "Flows evicted to make room for new ones, by state";
        let families = by_family(&self.conntrack).zip(self.evicted);
        let evicted = families.flat_map(|((family, _), [half_open, established])| {
            [("half_open", half_open), ("established", established)]
                .map(|(state, count)| ([("family", family), ("state", state)], count))
        });
        writer.counters("conntrack_evicted", help, evicted)
    }
}

fn by_family(pass: &PassResult) -> impl Iterator<Item = (&'static str, &FlowCounts)> {
    [("ipv4", &pass.v4), ("ipv6", &pass.v6)].into_iter()
}

pub(super) fn name(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}
