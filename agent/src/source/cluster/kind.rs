//! The kinds that are watched, as they come over the wire.
//!
//! An object is converted as soon as it is decoded; nothing of it stays but netpold's model.

use std::borrow::Cow;
use std::fmt::Debug;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::NamespaceResourceScope;
use netpold_core::model::{Change, Key};
use serde::de::{self, Deserialize, DeserializeOwned, Deserializer};
use serde_json::Value;

use crate::source::convert::{self, Converted, Problem};

/// A kind that is watched.
pub(super) trait Kind:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
    /// A server may do without it: it counts as empty then. Of the others no server can: where they
    /// are not found, something is wrong, and that must not be read as "there are none".
    const OPTIONAL: bool = false;
    /// Which objects are asked for, by their fields.
    const FIELDS: Option<&'static str> = None;
    /// Which objects are asked for, by their labels.
    const LABELS: Option<&'static str> = None;
    /// Their uids are remembered, for Kubernetes Events.
    const WITH_UID: bool = false;

    /// The object in netpold's terms.
    fn converted(&self) -> Result<Converted, Problem>;

    /// The change that says that the object of this key is gone; of kinds without namespaces the
    /// key's is empty.
    fn gone(key: Key) -> Change;
}

impl Kind for Namespace {
    fn converted(&self) -> Result<Converted, Problem> {
        convert::namespace(self)
    }

    fn gone(key: Key) -> Change {
        Change::NamespaceGone(key.name)
    }
}

impl Kind for Node {
    fn converted(&self) -> Result<Converted, Problem> {
        convert::node(self)
    }

    fn gone(key: Key) -> Change {
        Change::NodeGone(key.name)
    }
}

impl Kind for Pod {
    /// Finished pods play no part; a cluster of jobs may have many of them. A pod that finishes is
    /// deleted as this watch sees it.
    const FIELDS: Option<&'static str> = Some("status.phase!=Succeeded,status.phase!=Failed");

    fn converted(&self) -> Result<Converted, Problem> {
        convert::pod(self)
    }

    fn gone(key: Key) -> Change {
        Change::PodGone(key)
    }
}

impl Kind for Service {
    const OPTIONAL: bool = true;

    fn converted(&self) -> Result<Converted, Problem> {
        convert::service(self)
    }

    fn gone(key: Key) -> Change {
        Change::ServiceGone(key)
    }
}

impl Kind for EndpointSlice {
    const OPTIONAL: bool = true;
    /// What kube-proxy asks for: a headless Service has no address of its own, and the Services of
    /// another proxy are not served by the nodes'.
    const LABELS: Option<&'static str> =
        Some("!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name");

    fn converted(&self) -> Result<Converted, Problem> {
        convert::endpoint_slice(self)
    }

    fn gone(key: Key) -> Change {
        Change::EndpointSliceGone(key)
    }
}

/// A NetworkPolicy with all that it says, also what netpold does not know.
#[derive(Clone, Debug)]
pub(super) struct RawPolicy {
    metadata: ObjectMeta,
    whole: Value,
}

impl<'de> Deserialize<'de> for RawPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let whole = Value::deserialize(deserializer)?;
        let metadata = ObjectMeta::deserialize(&whole["metadata"]).map_err(de::Error::custom)?;
        Ok(Self { metadata, whole })
    }
}

impl Resource for RawPolicy {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        <NetworkPolicy as Resource>::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        <NetworkPolicy as Resource>::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        <NetworkPolicy as Resource>::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        <NetworkPolicy as Resource>::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Kind for RawPolicy {
    const WITH_UID: bool = true;

    fn converted(&self) -> Result<Converted, Problem> {
        convert::network_policy_of_json(&self.whole)
    }

    fn gone(key: Key) -> Change {
        Change::PolicyGone(key)
    }
}
