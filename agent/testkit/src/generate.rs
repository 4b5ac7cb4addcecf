//! Generated clusters and packets, small and adversarial, for tests, fuzzing and benchmarks.
//!
//! All choices come from a [`Choices`], which is a seed or a fuzzer's bytes: a seed identifies a case and gives the
//! same result everywhere. There are few names, labels, values, addresses and ports, so that selectors match, blocks
//! overlap and claims collide.

mod choices;
mod cluster;
mod objects;
mod packets;
mod services;
mod shrink;
mod tiers;

pub use choices::Choices;
pub use cluster::GeneratedCluster;
pub use objects::NODE;
pub use packets::{OpeningPacket, PacketSource};
pub use shrink::{shrink, shrink_all};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Oracle;

    #[test]
    fn same_seed_same_cluster() {
        assert_eq!(GeneratedCluster::from_seed(7), GeneratedCluster::from_seed(7));
        assert_ne!(GeneratedCluster::from_seed(7), GeneratedCluster::from_seed(8));
    }

    #[test]
    fn changes_lead_from_one_cluster_to_the_other() {
        for seed in 0..200 {
            let before = GeneratedCluster::from_seed(seed);
            let after = before.mutate(&mut Choices::from_seed(!seed));
            let mut oracle: Oracle = before.objects.iter().cloned().collect();
            before.changes_to(&after).into_iter().for_each(|change| oracle.ingest(change));
            let sorted = |mut oracle: Oracle| {
                oracle.pods.sort_by(|a, b| a.key.cmp(&b.key));
                oracle.policies.sort_by(|a, b| a.key.cmp(&b.key));
                oracle.cluster_policies.sort_by(|a, b| a.name.cmp(&b.name));
                oracle.nodes.sort_by(|a, b| a.name.cmp(&b.name));
                oracle.namespaces.sort_by(|a, b| a.name.cmp(&b.name));
                oracle.services.sort_by(|a, b| a.key.cmp(&b.key));
                oracle.slices.sort_by(|a, b| a.key.cmp(&b.key));
                oracle
            };
            assert_eq!(sorted(oracle), sorted(after.objects.into_iter().collect()));
        }
    }

    #[test]
    fn no_bytes_still_make_a_cluster() {
        let mut none = Choices::from_bytes(&[]);
        let cluster = GeneratedCluster::generate(&mut none).mutate(&mut none);
        assert!(cluster.interfaces().count() >= 1 && !none.any_left());
    }

    #[test]
    fn shrinks_to_what_matters() {
        let big = (0..1000)
            .map(GeneratedCluster::from_seed)
            .find(|c| c.pods().any(|p| p.host_network))
            .unwrap();
        let small = shrink(&big, |c| c.pods().any(|p| p.host_network));
        assert_eq!(small.objects.len(), 1, "{small}");
        assert!(small.pods().all(|p| p.labels.is_empty() && p.addresses.is_empty()));
    }
}
