//! Objects before a change, prepared once for comparisons with many changes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use ipnet::IpNet;
use netpold_client::offline::{Reviewed, ranges};
use netpold_core::cluster::{Cluster, ObjectKey};
use netpold_core::model::Change;

use super::clients;
use super::compare::compare_workloads;
use super::compare_objects::{add_gaps, compare_objects, lasting};
use super::difference::Difference;
use super::services::are_same;
use super::sources::Sources;
use super::workloads::{ComparedWorkload, workloads};
use crate::judge::{are_possible, problem};

/// Clusters before and after a change.
pub type ClusterPair = [Arc<Cluster>; 2];

/// Objects before a change.
pub struct ComparisonBaseline {
    cluster: Arc<Cluster>,
    workloads: Vec<Arc<ComparedWorkload>>,
    pod_cidrs: Vec<IpNet>,
    /// Whether labels that the objects lack may decide, see [`are_possible`].
    may_depend: bool,
    /// Whether a policy has problems: API servers may refuse it, see [`super::refused`].
    has_problems: bool,
}

impl ComparisonBaseline {
    /// Prepares objects. `pod_cidrs`: see [`ranges`].
    #[must_use]
    pub fn new(before: &Reviewed, pod_cidrs: &[IpNet]) -> Self {
        let objects = lasting(before.objects.clone());
        let may_depend = are_possible(&objects);
        let has_problems = objects.iter().any(|object| problem(object, true).is_some());
        let cluster: Cluster = objects.into_iter().collect();
        let workloads = workloads([&cluster; 2]);
        let (cluster, pod_cidrs) = (Arc::new(cluster), pod_cidrs.to_vec());
        Self { cluster, workloads, pod_cidrs, may_depend, has_problems }
    }

    /// Compares the objects before with those after these are applied, or deleted, as [`compare_objects`] does.
    /// `complete` adds the details of both sides. `before` are the objects of [`Self::new`].
    ///
    /// # Errors
    /// As `complete`, or `ended` was set.
    pub fn compare(
        &self,
        before: &Reviewed,
        (named, delete): (&[Change], bool),
        complete: impl FnOnce(&mut Sources) -> Result<()>,
        ended: &AtomicBool,
    ) -> Result<(ClusterPair, Difference)> {
        if self.has_problems || !named.iter().all(is_sound_policy) {
            let mut sources = Sources::of_change(before.clone(), named, delete);
            complete(&mut sources)?;
            return self.compare_whole(sources, ended);
        }
        let mut sources = Sources::of_policies(before, &self.cluster, named, delete);
        complete(&mut sources)?;
        if are_same(&sources.details) {
            return self.compare_policies(sources, (named, delete), ended);
        }
        sources.objects = Sources::of_change(before.clone(), named, delete).objects;
        self.compare_whole(sources, ended)
    }

    fn compare_whole(
        &self,
        sources: Sources,
        ended: &AtomicBool,
    ) -> Result<(ClusterPair, Difference)> {
        let (clusters, difference) = compare_objects(sources, &self.pod_cidrs, ended)?;
        Ok((clusters.map(Arc::new), difference))
    }

    /// Compares the objects with those after a change of policies alone: pods, workloads and Services stay the same.
    fn compare_policies(
        &self,
        sources: Sources,
        (named, delete): (&[Change], bool),
        ended: &AtomicBool,
    ) -> Result<(ClusterPair, Difference)> {
        let mut after = Cluster::clone(&self.cluster);
        match delete {
            true => after.extend(named.iter().map(|it| ObjectKey::of(it).removal())),
            false => after.extend(named.iter().cloned()),
        }
        let clusters = [&*self.cluster, &after];
        let ranges = ranges(&self.pod_cidrs, &clusters);
        let workloads = self.workloads.clone();
        let mut difference = compare_workloads(clusters, workloads, &ranges, ended)?;
        let gaps = (sources.gaps, self.may_depend);
        add_gaps(&mut difference, clusters, &ranges, gaps, ended)?;
        difference.notes.extend(sources.notes);
        difference.notes.extend(clients::notes(&sources.details[1], &after, &ranges, &difference));
        Ok(([Arc::clone(&self.cluster), Arc::new(after)], difference))
    }
}

/// Returns whether an object is a policy that is in force as it is written.
fn is_sound_policy(object: &Change) -> bool {
    matches!(object, Change::ClusterPolicy(_) | Change::Policy(_))
        && problem(object, true).is_none()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use netpold_core::model::Namespace;
    use netpold_testkit::generate::{Choices, GeneratedCluster};

    use super::*;

    /// Number of generated clusters, each with a change.
    const CLUSTERS: u64 = 40;

    fn is_policy(object: &Change) -> bool {
        matches!(object, Change::Policy(_) | Change::ClusterPolicy(_))
    }

    fn objects(cluster: &GeneratedCluster, are_sound: bool) -> Vec<Change> {
        let objects = cluster.objects.iter().filter(|object| object.is_object()).cloned();
        let mut all: Vec<Change> = objects.collect();
        for object in &mut all {
            if let Change::Policy(policy) = object
                && are_sound
            {
                policy.problems.clear();
            }
        }
        // Labels of absent Namespaces are tried one by one, which takes time.
        let pods =
            all.iter().filter_map(|it| if let Change::Pod(pod) = it { Some(pod) } else { None });
        let names: BTreeSet<String> = pods.map(|pod| pod.key.namespace.clone()).collect();
        let is_there = |name: &str| {
            all.iter().any(|it| matches!(it, Change::Namespace(it) if it.name == name))
        };
        let absent: Vec<String> = names.into_iter().filter(|name| !is_there(name)).collect();
        let namespace = |name| Change::Namespace(Namespace { name, ..Namespace::default() });
        all.extend(absent.into_iter().map(namespace));
        all
    }

    #[test]
    fn a_prepared_comparison_is_the_comparison_of_all_objects() {
        let (mut changed, mut deleted) = (0, 0);
        for seed in 0..CLUSTERS {
            let mut choices = Choices::from_seed(seed);
            let cluster = GeneratedCluster::generate(&mut choices);
            // API servers refuse policies with problems: the half of the clusters has none.
            let are_sound = seed % 2 == 0;
            let before = Reviewed { objects: objects(&cluster, are_sound), ..Reviewed::default() };
            let delete = choices.chance(30);
            let other = match delete {
                true => cluster,
                false if choices.chance(50) => cluster.mutate(&mut choices),
                false => GeneratedCluster::generate(&mut choices),
            };
            let mut named = objects(&other, are_sound);
            // Some changes have other objects, too.
            let has_others = choices.chance(20);
            named.retain(|object| (has_others || is_policy(object)) && choices.chance(60));
            let ended = AtomicBool::new(false);
            let baseline = ComparisonBaseline::new(&before, &[]);
            let ([_, after], prepared) =
                baseline.compare(&before, (&named, delete), |_| Ok(()), &ended).unwrap();
            let sources = Sources::of_change(before.clone(), &named, delete);
            let ([_, expected], difference) = compare_objects(sources, &[], &ended).unwrap();
            assert_eq!(prepared, difference, "seed {seed}");
            let policies = |it: &Cluster| -> Vec<_> { it.policies().values().cloned().collect() };
            assert_eq!(policies(&after), policies(&expected), "seed {seed}");
            // The objects before are as they were.
            let again = baseline.compare(&before, (&[], false), |_| Ok(()), &ended).unwrap().1;
            assert_eq!(again.changes, [], "seed {seed}");
            changed += usize::from(!difference.changes.is_empty());
            deleted += usize::from(delete && !difference.changes.is_empty());
        }
        assert!(changed > 10 && deleted > 0, "{changed} {deleted}");
    }
}
