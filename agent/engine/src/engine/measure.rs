//! Figures of the engine for metrics and readiness, cheap enough for every scrape.

use netpold_core::cluster::Cluster;
use netpold_core::model::Direction;
use netpold_ebpf::reason::Reason;

use super::counters::{drops_by_reason, evicted, ignored_answers, rejected};
use super::health::Health;
use super::reconciler::Reconciler;
use super::report::{tables, wrong_with_node};
use super::unsupported;
use crate::engine::Engine;
use crate::metrics::{EndpointCounts, Instruments, Snapshot};

/// Kinds of repairs by [`Engine::repair`] and [`Engine::readback`].
const REPAIRS: [&str; 5] = ["entries", "nftables", "order", "pins", "programs"];

impl Engine {
    /// Returns the dropped packets by direction and reason, for every reason that drops.
    #[must_use]
    pub fn dropped_packets(&self) -> Vec<(Direction, Reason, u64)> {
        drops_by_reason(&self.reconciler.dataplane)
    }

    /// Returns the counters and timers.
    #[must_use]
    pub fn instruments(&self) -> &Instruments {
        &self.reconciler.instruments
    }

    /// Returns the current figures.
    pub fn snapshot(&mut self) -> Snapshot {
        let resolved = self.reconciler.resolved_or_none();
        let Reconciler { compiler, dataplane, revision, .. } = &self.reconciler;
        let health = &self.health;
        let refused = compiler.problems().len() + health.attach_problems().len();
        let node = wrong_with_node(self).values().map(Vec::len).sum::<usize>();
        let failing = usize::from(health.failure().is_some()) + usize::from(health.held.is_some());
        Snapshot {
            revision: *revision,
            not_ready: not_ready(health, self.reconciler.installed),
            problems: (refused + node + failing) as u64,
            closed_policies: unsupported::closed(compiler),
            objects: objects(compiler.cluster()),
            endpoints: endpoint_counts(&self.reconciler),
            tables: tables(compiler, &resolved),
            conntrack: health.census.unwrap_or_default(),
            swept: health.swept,
            evicted: evicted(dataplane),
            drops: drops_by_reason(dataplane),
            rejected: rejected(dataplane),
            ignored_answers: ignored_answers(dataplane),
            audited: self.rule_use.audited(),
            bypassed: self.interference.bypassed(),
            unproven: self.interference.without_proof(),
            unproven_fragments: self.interference.fragments_without_proof(),
            // Every kind has a series: a counter that appears with its first event shows no increase.
            repairs: REPAIRS
                .map(|kind| (kind, health.repairs().get(kind).copied().unwrap_or(0)))
                .into(),
        }
    }
}

/// Returns the reasons why the engine does not enforce the known state.
fn not_ready(health: &Health, installed: bool) -> Vec<String> {
    let mut reasons: Vec<String> = health.held.iter().cloned().collect();
    if let Some(reason) = health.failure() {
        reasons.push(format!("the last update is not enforced: {reason}"));
    } else if !installed {
        reasons.push("nothing has been written to the kernel yet".to_owned());
    }
    reasons.extend(health.attach_problems().next());
    reasons
}

fn endpoint_counts(reconciler: &Reconciler) -> EndpointCounts {
    let mut counts = EndpointCounts::default();
    for endpoint in reconciler.compiler.endpoints() {
        counts.all += 1;
        counts.enforced += u64::from(reconciler.is_pod(endpoint.ifindex));
        counts.isolated.ingress += u64::from(endpoint.ingress);
        counts.isolated.egress += u64::from(endpoint.egress);
    }
    counts
}

fn objects(cluster: &Cluster) -> Vec<(&'static str, u64)> {
    let counts = [
        ("Namespace", cluster.namespaces().len()),
        ("NetworkPolicy", cluster.policies().len()),
        ("Node", cluster.nodes().len()),
        ("Pod", cluster.pods().len()),
        ("Service", cluster.services().len()),
        ("EndpointSlice", cluster.slices().len()),
    ];
    counts.map(|(kind, count)| (kind, count as u64)).to_vec()
}
