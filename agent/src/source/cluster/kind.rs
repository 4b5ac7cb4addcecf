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

use crate::source::convert;

/// What it means that a server does not serve a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absence {
    /// Something is wrong: that must not be read as "there are none".
    Wrong,
    /// The kind counts as empty, but every server that is complete serves it. What was known stays.
    Unusual,
    /// The kind may be installed and removed at any time: there are none. Nothing else waits for a kind
    /// that may not be read.
    Usual,
}

impl Absence {
    /// How long until the kind is asked for again, after so many such answers in a row. A kind that comes and
    /// goes is expected soon; an agent on every node asks, so the longer it is absent the less often it asks: 5,000
    /// agents send 17 such requests a second in the end.
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
pub(super) trait Kind: Resource<DynamicType = ()> + Send + Sync + 'static {
    /// What it is converted as.
    const KIND: convert::Kind;
    /// What it means that the server does not serve it.
    const ABSENCE: Absence = Absence::Wrong;
    /// Which objects are asked for, by their fields.
    const FIELDS: Option<&'static str> = None;
    /// Which objects are asked for, by their labels.
    const LABELS: Option<&'static str> = None;

    /// The change that says that the object of this key is gone; of kinds without namespaces the
    /// key's is empty.
    fn gone(key: Key) -> Change;
}

impl Kind for Namespace {
    const KIND: convert::Kind = convert::Kind::Namespace;

    fn gone(key: Key) -> Change {
        Change::NamespaceGone(key.name)
    }
}

impl Kind for Node {
    const KIND: convert::Kind = convert::Kind::Node;

    fn gone(key: Key) -> Change {
        Change::NodeGone(key.name)
    }
}

impl Kind for Pod {
    const KIND: convert::Kind = convert::Kind::Pod;
    /// Finished pods play no part; a cluster of jobs may have many of them. A pod that finishes is
    /// deleted as this watch sees it.
    const FIELDS: Option<&'static str> = Some("status.phase!=Succeeded,status.phase!=Failed");

    fn gone(key: Key) -> Change {
        Change::PodGone(key)
    }
}

impl Kind for Service {
    const KIND: convert::Kind = convert::Kind::Service;
    const ABSENCE: Absence = Absence::Unusual;

    fn gone(key: Key) -> Change {
        Change::ServiceGone(key)
    }
}

impl Kind for EndpointSlice {
    const KIND: convert::Kind = convert::Kind::EndpointSlice;
    const ABSENCE: Absence = Absence::Unusual;
    /// What kube-proxy asks for: a headless Service has no address of its own, and the Services of
    /// another proxy are not served by the nodes'.
    const LABELS: Option<&'static str> =
        Some("!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name");

    fn gone(key: Key) -> Change {
        Change::EndpointSliceGone(key)
    }
}

impl Kind for NetworkPolicy {
    const KIND: convert::Kind = convert::Kind::NetworkPolicy;

    fn gone(key: Key) -> Change {
        Change::PolicyGone(key)
    }
}

/// `policy.networking.k8s.io/v1alpha2`, as far as it is asked for; `convert` reads what comes.
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

impl Kind for ClusterNetworkPolicy {
    const KIND: convert::Kind = convert::Kind::ClusterNetworkPolicy;
    const ABSENCE: Absence = Absence::Usual;

    fn gone(key: Key) -> Change {
        Change::ClusterPolicyGone(key.name)
    }
}
