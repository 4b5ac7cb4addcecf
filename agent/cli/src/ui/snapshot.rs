//! Objects behind the page: read once, and again when the page asks for it.

use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::Result;
use ipnet::IpNet;
use netpold_client::details::read_details;
use netpold_client::live::{self, ClusterArgs};
use netpold_client::offline::{self, Recursive, Reviewed};
use netpold_core::cluster::Cluster;
use netpold_review::diff::{self, ComparisonBaseline, NamedPairs, named_pairs};
use netpold_review::judge::Judge;

/// Most pairs of classes on the map.
const PAIRS: usize = 60_000;

/// Source of the objects.
#[derive(Clone, Debug)]
pub(super) struct ObjectSource {
    pub(super) manifests: Option<PathBuf>,
    pub(super) depth: Recursive,
    pub(super) cluster: ClusterArgs,
    pub(super) namespace: Option<String>,
    pub(super) pod_cidrs: Vec<IpNet>,
}

/// Objects at one time, and what rules name among them.
pub(super) struct ObjectSnapshot {
    /// Number of the reading, from 1: indexes of parties hold for one reading.
    pub(super) revision: u64,
    /// Name of the source.
    pub(super) title: String,
    /// Namespace of objects that are written without one.
    pub(super) namespace: String,
    /// Objects as they were read.
    pub(super) objects: Reviewed,
    pub(super) judge: Judge,
    pub(super) named: NamedPairs,
    /// The objects before changes, from the first question about one on.
    baseline: OnceLock<ComparisonBaseline>,
}

impl ObjectSource {
    /// Returns whether agents can be asked.
    pub(super) fn is_live(&self) -> bool {
        self.manifests.is_none()
    }

    /// Reads the objects. Blocks.
    ///
    /// # Errors
    /// The directory or the cluster cannot be read.
    pub(super) fn read(&self, revision: u64) -> Result<ObjectSnapshot> {
        let (manifests, given) = (self.manifests.as_deref(), self.namespace.as_deref());
        let namespace = live::namespace(manifests, &self.cluster, given)?;
        let objects = live::all_objects(manifests, self.depth, &self.cluster, given)?;
        let details = read_details(manifests, self.depth, &self.cluster, &namespace)?;
        let title = match (manifests, &self.cluster.context) {
            (Some(path), _) if offline::is_standard_input(path) => {
                offline::STANDARD_INPUT.to_owned()
            }
            (Some(path), _) => path.display().to_string(),
            (None, Some(context)) => format!("cluster {context}"),
            (None, None) => "cluster".to_owned(),
        };
        let all = diff::lasting(objects.objects.clone());
        let judge = Judge::of_present(all, details, &self.pod_cidrs, manifests.is_some());
        let judge = judge.with_unread(objects.undecoded.clone(), objects.unread.clone());
        let named = named_pairs(judge.cluster(), judge.ranges(), PAIRS);
        let baseline = OnceLock::new();
        Ok(ObjectSnapshot { revision, title, namespace, objects, judge, named, baseline })
    }
}

impl ObjectSnapshot {
    /// Returns the cluster of the objects, with the pods of all pod templates.
    pub(super) fn cluster(&self) -> &Cluster {
        self.judge.cluster()
    }

    /// Returns the objects before changes.
    pub(super) fn baseline(&self, pod_cidrs: &[IpNet]) -> &ComparisonBaseline {
        self.baseline.get_or_init(|| ComparisonBaseline::new(&self.objects, pod_cidrs))
    }
}
