//! The kinds that are watched.

use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use std::borrow::Cow;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::ClusterResourceScope;
use netpold_core::model::{Change, Key};

use crate::convert;

/// Meaning of a kind that the server does not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absence {
    /// An error, not an empty list.
    Wrong,
    /// The kind counts as empty, although every complete server serves it. The known objects stay.
    Unusual,
    /// The kind is optional and may be installed and removed at any time: there are no objects. If the kind may not be
    /// read, nothing waits for it.
    Usual,
}

impl Absence {
    /// Returns the pause before the kind is requested again, after this many such answers in a row. An optional kind
    /// may appear soon; but an agent on every node asks, so the pause grows while the kind is absent: 5,000 agents send
    /// 17 such requests a second in the end.
    pub(super) const fn pause(self, answers: u32) -> Duration {
        match (self, answers) {
            (Self::Usual, 0..=3) => Duration::from_secs(20),
            (Self::Usual, 4) => Duration::from_secs(50),
            (Self::Usual, 5) => Duration::from_secs(100),
            (Self::Usual, 6) => Duration::from_secs(200),
            (Self::Usual | Self::Wrong | Self::Unusual, _) => Duration::from_mins(5),
        }
    }
}

/// A kind that is watched.
pub(super) trait WatchedKind: Resource<DynamicType = ()> + Send + Sync + 'static {
    /// Conversion of this kind.
    const KIND: convert::Kind;
    /// Meaning of a server that does not serve the kind.
    const ABSENCE: Absence = Absence::Wrong;
    /// Field selector of the requests.
    const FIELDS: Option<&'static str> = None;
    /// Label selector of the requests.
    const LABELS: Option<&'static str> = None;

    /// Returns the change for the removal of the object with this key; kinds without namespaces have an empty namespace
    /// in the key.
    fn removal(key: Key) -> Change;
}

impl WatchedKind for Namespace {
    const KIND: convert::Kind = convert::Kind::Namespace;

    fn removal(key: Key) -> Change {
        Change::NamespaceGone(key.name)
    }
}

impl WatchedKind for Node {
    const KIND: convert::Kind = convert::Kind::Node;

    fn removal(key: Key) -> Change {
        Change::NodeGone(key.name)
    }
}

impl WatchedKind for Pod {
    const KIND: convert::Kind = convert::Kind::Pod;
    /// Finished pods do not matter, and a cluster of jobs may have many of them. This watch reports a pod that finishes
    /// as deleted.
    const FIELDS: Option<&'static str> = Some("status.phase!=Succeeded,status.phase!=Failed");

    fn removal(key: Key) -> Change {
        Change::PodGone(key)
    }
}

impl WatchedKind for Service {
    const KIND: convert::Kind = convert::Kind::Service;
    const ABSENCE: Absence = Absence::Unusual;

    fn removal(key: Key) -> Change {
        Change::ServiceGone(key)
    }
}

impl WatchedKind for EndpointSlice {
    const KIND: convert::Kind = convert::Kind::EndpointSlice;
    const ABSENCE: Absence = Absence::Unusual;
    /// Same selector as kube-proxy's: a headless Service has no address of its own, and Services of another proxy are
    /// not served by the nodes' proxies.
    const LABELS: Option<&'static str> =
        Some("!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name");

    fn removal(key: Key) -> Change {
        Change::EndpointSliceGone(key)
    }
}

impl WatchedKind for NetworkPolicy {
    const KIND: convert::Kind = convert::Kind::NetworkPolicy;

    fn removal(key: Key) -> Change {
        Change::PolicyGone(key)
    }
}

/// `policy.networking.k8s.io/v1alpha2`, as far as requests need it; `convert` reads the objects.
#[derive(Debug)]
pub(super) struct ClusterNetworkPolicy {
    metadata: ObjectMeta,
}

impl Resource for ClusterNetworkPolicy {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "ClusterNetworkPolicy".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "policy.networking.k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1alpha2".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "clusternetworkpolicies".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl WatchedKind for ClusterNetworkPolicy {
    const KIND: convert::Kind = convert::Kind::ClusterNetworkPolicy;
    const ABSENCE: Absence = Absence::Usual;

    fn removal(key: Key) -> Change {
        Change::ClusterPolicyGone(key.name)
    }
}

/// Returns the resource with its group, such as `networkpolicies.networking.k8s.io`.
pub(super) fn kind_name<K: Resource<DynamicType = ()>>() -> String {
    match K::group(&()) {
        group if group.is_empty() => K::plural(&()).into_owned(),
        group => format!("{}.{group}", K::plural(&())),
    }
}
