//! The engine in numbers, for the metrics and for readiness: cheap enough for every scrape.

use netpold_core::cluster::Cluster;
use netpold_core::model::Direction;
use netpold_ebpf::reason::{self, Reason};

use super::Engine;
use crate::conntrack::Pass;
use crate::metrics::{EndpointCounts, Fill, Instruments, Snapshot};
use crate::status::Revision;

/// What [`Engine::repair`] and [`Engine::readback`] put right.
const REPAIRS: [&str; 4] = ["entries", "order", "pins", "programs"];

impl Engine {
    /// What it counts and times.
    #[must_use]
    pub fn instruments(&self) -> &Instruments {
        &self.instruments
    }

    /// The engine as it is now.
    pub fn snapshot(&mut self) -> Snapshot {
        let refused = self.compiler.problems().len() + self.attach_problems.len();
        let refused = refused + self.unjudged().len() + self.unproven().len();
        let failing = usize::from(self.failure.is_some()) + usize::from(self.held.is_some());
        Snapshot {
            revision: Revision { desired: self.desired, enforced: self.enforced },
            not_ready: self.not_ready(),
            problems: (refused + failing) as u64,
            closed_policies: self.closed_policies(),
            objects: objects(self.compiler.cluster()),
            endpoints: self.endpoint_counts(),
            tables: self.compiler.fill().iter().map(fill).collect(),
            conntrack: self.census.unwrap_or_default(),
            swept: self.swept,
            evicted: self.evicted(),
            drops: self.drops_by_reason(),
            bypassed: self.bypassed(),
            unproven: self.unproven_packets(),
            // All kinds: a counter that begins with its first event has no increase.
            repairs: REPAIRS
                .map(|kind| (kind, self.repaired.get(kind).copied().unwrap_or(0)))
                .into(),
        }
    }

    fn not_ready(&self) -> Vec<String> {
        let mut reasons: Vec<String> = self.held.iter().cloned().collect();
        if let Some(failure) = &self.failure {
            reasons.push(format!("the last update is not enforced: {}", failure.reason));
        } else if !self.installed {
            reasons.push("nothing has been written to the kernel yet".to_owned());
        }
        if let Some((index, problem)) = self.attach_problems.first_key_value() {
            reasons.push(format!("interface {index}: {problem}"));
        }
        reasons
    }

    fn endpoint_counts(&self) -> EndpointCounts {
        let mut counts = EndpointCounts::default();
        for endpoint in self.compiler.endpoints() {
            counts.all += 1;
            counts.enforced += u64::from(self.is_pod(endpoint.ifindex));
            counts.isolated.ingress += u64::from(endpoint.ingress);
            counts.isolated.egress += u64::from(endpoint.egress);
        }
        counts
    }

    fn drops_by_reason(&self) -> Vec<(Direction, Reason, u64)> {
        let drops = || Reason::ALL.into_iter().filter(|reason| reason.is_drop());
        let keys = Direction::BOTH.into_iter().flat_map(|d| drops().map(move |r| (d, r)));
        keys.map(|(direction, reason)| {
            let index = reason::counter(direction == Direction::Egress, reason);
            (direction, reason, self.dataplane.counter(index))
        })
        .collect()
    }

    fn evicted(&self) -> [[u64; 2]; 2] {
        let count = |is_v6, state| self.dataplane.counter(reason::evictions(is_v6, state));
        [false, true].map(|is_v6| [false, true].map(|established| count(is_v6, established)))
    }

    /// Adds what a sweep removed to what those before it did.
    pub(super) fn count_swept(&mut self, pass: &Pass) {
        let families = [(&mut self.swept.v4, &pass.v4), (&mut self.swept.v6, &pass.v6)];
        for (all, one) in families {
            all.removed += one.removed;
            all.orphaned += one.orphaned;
        }
    }
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

fn fill(fill: &netpold_core::ops::Fill) -> Fill {
    Fill {
        table: fill.table.to_string().to_lowercase().replace(' ', "_"),
        used: fill.used.into(),
        capacity: fill.capacity.into(),
    }
}
