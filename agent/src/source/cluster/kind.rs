//! The kinds that are watched.

use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Resource;
use netpold_core::model::{Change, Key};

use crate::source::convert;

/// A kind that is watched.
pub(super) trait Kind: Resource<DynamicType = ()> + Send + Sync + 'static {
    /// What it is converted as.
    const KIND: convert::Kind;
    /// A server may do without it: it counts as empty then. Of the others no server can: where they
    /// are not found, something is wrong, and that must not be read as "there are none".
    const OPTIONAL: bool = false;
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
    const OPTIONAL: bool = true;

    fn gone(key: Key) -> Change {
        Change::ServiceGone(key)
    }
}

impl Kind for EndpointSlice {
    const KIND: convert::Kind = convert::Kind::EndpointSlice;
    const OPTIONAL: bool = true;
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
