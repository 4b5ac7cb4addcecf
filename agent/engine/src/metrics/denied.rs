//! Denied packets and audited flows by workload.

use std::fmt;

use netpold_api::events::TrafficVerdict;

use super::snapshot::name;
use super::writer::MetricWriter;
use crate::denied::DeniedCounters;

const PACKETS: &str = "Denied packets by workload; those that the kernel did not report one by one, and those without \
                       a series of their own, have no workload";
const FLOWS: &str = "Allowed flows that policies in audit mode would deny, by workload; those not reported one by one, \
                     and those without a series of their own, have no workload";

pub(super) fn write(denied: &DeniedCounters, writer: &mut MetricWriter<'_>) -> fmt::Result {
    let of = |outcome: TrafficVerdict| {
        let named = denied.named().filter(move |(labels, _)| labels.outcome == outcome);
        let named = named.map(|(labels, count)| {
            let own = [
                ("namespace", labels.namespace.as_str()),
                ("workload", &labels.workload),
                ("direction", name(labels.direction)),
                ("peer_namespace", &labels.peer_namespace),
                ("peer_workload", &labels.peer_workload),
                ("policy", &labels.policy),
            ];
            (own, labels.reason.as_str(), count)
        });
        let others = denied.others().filter(move |(kind, _)| kind.outcome == outcome);
        named.chain(others.map(|(kind, count)| {
            let own = [
                ("namespace", ""),
                ("workload", ""),
                ("direction", kind.direction.map_or("", name)),
                ("peer_namespace", ""),
                ("peer_workload", ""),
                ("policy", ""),
            ];
            (own, kind.reason.as_str(), count)
        }))
    };
    let packets = of(TrafficVerdict::Deny)
        .map(|([a, b, c, d, e, f], reason, count)| ([a, b, c, d, e, f, ("reason", reason)], count));
    writer.counters("denied_packets", PACKETS, packets)?;
    let flows = of(TrafficVerdict::Audit).map(|(labels, _, count)| (labels, count));
    writer.counters("audit_denied_flows", FLOWS, flows)
}
