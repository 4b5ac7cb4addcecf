//! Form of a slice on the wire.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netpold_core::model::{Key, Labels, NamedPort, Pod, SecondInterface};
use serde::{Deserialize, Serialize};

/// Pods of a slice. Equal label sets, node names and named ports of many pods are in it once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SliceContent {
    /// Distinct label sets.
    pub labels: Vec<Labels>,
    /// Distinct lists of named ports.
    pub ports: Vec<Vec<NamedPort>>,
    /// The pods, by namespace and name.
    pub pods: Vec<PeerPod>,
}

/// A pod of a slice, reduced by [`crate::Vocabulary::reduce`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerPod {
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.name`
    pub name: String,
    /// `spec.nodeName`
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// `status.podIPs`
    pub ips: Vec<IpAddr>,
    /// Index into [`SliceContent::labels`].
    pub labels: usize,
    /// Index into [`SliceContent::ports`].
    pub ports: usize,
    /// `metadata.creationTimestamp`, seconds since the epoch.
    pub created: i64,
    /// `spec.hostNetwork`
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
    /// `metadata.deletionTimestamp` is set.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub terminating: bool,
    /// Claims to addresses on further networks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub second: Vec<SecondInterface>,
}

/// A slice whose parts do not fit together: none of it may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable(
    /// Name of the first pod with an index that the slice does not have.
    pub Key,
);

impl SliceContent {
    /// Returns the form of these pods.
    pub fn of<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        let (mut labels, mut ports) = (Distinct::default(), Distinct::default());
        let pods = pods.into_iter().map(|pod| PeerPod {
            namespace: pod.key.namespace.clone(),
            name: pod.key.name.clone(),
            node: pod.node.to_string(),
            ips: pod.addresses.clone(),
            labels: labels.index(&pod.labels),
            ports: ports.index(&pod.ports),
            created: pod.created,
            host_network: pod.host_network,
            terminating: pod.terminating,
            second: pod.second.clone(),
        });
        let pods = pods.collect();
        Self { labels: labels.all, ports: ports.all, pods }
    }

    /// Returns the pods.
    ///
    /// # Errors
    /// A pod refers to labels or ports that the slice does not have.
    pub fn pods(&self) -> Result<Vec<Pod>, Unreadable> {
        let pod = |pod: &PeerPod| {
            let key = Key::new(pod.namespace.clone(), pod.name.clone());
            let (Some(labels), Some(ports)) =
                (self.labels.get(pod.labels), self.ports.get(pod.ports))
            else {
                return Err(Unreadable(key));
            };
            Ok(Pod {
                uid: key.to_string(),
                key,
                labels: labels.clone(),
                node: pod.node.clone().into(),
                addresses: pod.ips.clone(),
                host_network: pod.host_network,
                finished: false,
                terminating: pod.terminating,
                created: pod.created,
                ports: ports.clone(),
                foreign_sources: false,
                second: pod.second.clone(),
                workload: None,
            })
        };
        self.pods.iter().map(pod).collect()
    }
}

/// Distinct values in the order of their first occurrence.
struct Distinct<T> {
    all: Vec<T>,
    index: BTreeMap<T, usize>,
}

impl<T> Default for Distinct<T> {
    fn default() -> Self {
        Self { all: Vec::new(), index: BTreeMap::new() }
    }
}

impl<T: Clone + Ord> Distinct<T> {
    fn index(&mut self, value: &T) -> usize {
        let next = self.all.len();
        *self.index.entry(value.clone()).or_insert_with(|| {
            self.all.push(value.clone());
            next
        })
    }
}
