//! Pods.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::labels::{COMPLETION_INDEX, may_be_set_to, set_by_controller};
use crate::model::object::{Key, Labels};
use crate::model::selector::Requirement;
use crate::model::shared_str::SharedStr;
use crate::model::traffic::Protocol;

/// A Pod.
#[cfg_attr(test, derive(Default))]
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pod {
    /// `metadata.namespace` and `metadata.name`
    pub key: Key,
    /// `metadata.uid`; derived from the key for files without one.
    pub uid: String,
    /// `metadata.labels`
    pub labels: Labels,
    /// `spec.nodeName`; empty: not scheduled.
    pub node: SharedStr,
    /// `status.podIPs`, else `status.podIP`; sorted, without duplicates.
    pub addresses: Vec<IpAddr>,
    /// `spec.hostNetwork`: the pod's traffic is its node's; policy neither selects the pod nor matches it as a peer.
    pub host_network: bool,
    /// `status.phase` is Succeeded or Failed: ignored, because its address may belong to another pod.
    pub finished: bool,
    /// `metadata.deletionTimestamp` is set. Policy still applies to the pod, but another pod with the same address owns
    /// the address.
    pub terminating: bool,
    /// `metadata.creationTimestamp`, seconds since the epoch; 0 where absent. If pods claim the same address, its owner
    /// is the pod that is not terminating, then the one created later, then the one with the greater key.
    pub created: i64,
    /// `spec.containers[].ports[]` with a name, and named ports of sidecars in `initContainers` (`restartPolicy:
    /// Always`).
    pub ports: Vec<NamedPort>,
    /// Whether the annotation `netpold.io/check-source` is `off`: the pod may send from foreign addresses. Users
    /// can set the annotation, so it is honoured only in the namespaces of [`crate::options::SourceExempt`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign_sources: bool,
    /// Interfaces on secondary networks, from the annotation `k8s.v1.cni.cncf.io/network-status`. Everyone who may
    /// write the pod can write the annotation; [`crate::cluster::Cluster::owner`] decides which addresses are
    /// accepted.
    #[serde(rename = "second", default, skip_serializing_if = "Vec::is_empty")]
    pub secondary: Vec<SecondaryInterface>,
    /// Workload object that creates the pod, if manifests name it. Absent in objects from an API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Box<WorkloadRef>>,
}

impl Pod {
    /// Returns [`Pod::addresses`] and the claimed addresses on secondary networks.
    pub fn all_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().copied().chain(self.secondary_addresses())
    }

    /// Returns the interfaces on secondary networks that claim an address; none for an address of the pod's status, which
    /// is the first interface's.
    pub fn secondary_with(&self, address: IpAddr) -> impl Iterator<Item = &SecondaryInterface> {
        let interfaces = self.secondary.iter();
        interfaces.filter(move |interface| self.claimed_at(interface).any(|it| it == address))
    }

    /// Returns the addresses that an interface on a secondary network claims for the pod: without those of the pod's status,
    /// which the annotation may repeat.
    pub fn claimed_at<'p>(
        &'p self,
        interface: &'p SecondaryInterface,
    ) -> impl Iterator<Item = IpAddr> + use<'p> {
        let addresses = interface.addresses.iter().copied();
        addresses.filter(|address| !self.addresses.contains(address))
    }

    /// Returns the addresses of the annotation, including repeated ones of the pod's status. Any such address shows
    /// that the network's addresses are known, so policy covers the interface; [`Self::claimed_at`] returns the claims.
    pub fn secondary_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.secondary.iter().flat_map(|interface| interface.addresses.iter().copied())
    }

    /// Returns the workload if this pod represents its pod template.
    #[must_use]
    pub fn template(&self) -> Option<&WorkloadRef> {
        self.workload.as_deref().filter(|workload| workload.is_template)
    }

    /// Whether a controller sets this label on the pods of a template.
    #[must_use]
    pub fn is_set_later(&self, label: &str) -> bool {
        let Some(workload) = self.template() else { return false };
        let is_set = set_by_controller(&workload.kind).contains(&label)
            || workload.is_indexed && label == COMPLETION_INDEX;
        is_set && !self.labels.contains_key(label)
    }

    /// Whether a controller may set a label on the pods of a template so that it meets a requirement.
    #[must_use]
    pub fn may_meet_later(&self, requirement: &Requirement) -> bool {
        let Some(workload) = self.template() else { return false };
        let key = requirement.key();
        let of = (workload.kind.as_str(), workload.name.as_str());
        let may_be = |value: &String| may_be_set_to(of, key, value);
        self.is_set_later(key)
            && match requirement {
                Requirement::In(_, values) => values.iter().any(may_be),
                Requirement::NotIn(..) | Requirement::Exists(_) | Requirement::DoesNotExist(_) => {
                    true
                }
            }
    }

    /// Returns the display name: `shop/web-0`, or `Deployment shop/web (template)`.
    #[must_use]
    pub fn title(&self) -> String {
        match self.template() {
            Some(WorkloadRef { kind, name, .. }) => {
                format!("{kind} {}/{name} (template)", self.key.namespace)
            }
            None => self.key.to_string(),
        }
    }
}

/// Workload object, in the namespace of its pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkloadRef {
    /// `kind`, such as `Deployment`
    pub kind: String,
    /// `metadata.name`
    pub name: String,
    /// Whether the pod represents the workload's pod template, without a Pod object.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_template: bool,
    /// Whether this is the template of an Indexed Job (`completionMode: Indexed`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_indexed: bool,
}

/// Interface of a pod on a secondary network: an entry of `k8s.v1.cni.cncf.io/network-status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SecondaryInterface {
    /// `interface`: name inside the pod, such as `net1`; empty where absent.
    pub name: String,
    /// `name`: the network, a `NetworkAttachmentDefinition`, such as `storage/ceph`.
    pub network: String,
    /// `ips`; sorted, without duplicates and without [`Pod::addresses`].
    pub addresses: Vec<IpAddr>,
    /// `device-info.type`, such as `pci`; empty where absent.
    pub device: String,
}

impl SecondaryInterface {
    /// Returns the name inside the pod and the network, in the form `interface net1 (network storage/ceph)`.
    #[must_use]
    pub fn title(&self) -> String {
        match self.name.as_str() {
            "" => format!("network {}", self.network),
            name => format!("interface {name} (network {})", self.network),
        }
    }
}

/// Container port with a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NamedPort {
    /// `name`
    pub name: String,
    /// `protocol`; absent: TCP
    pub protocol: Protocol,
    /// `containerPort`
    pub port: u16,
}

/// Hashes with FNV-1a, 64 bits: stable across builds, unlike the standard hasher.
pub(crate) fn uid_hash(uid: &str) -> u64 {
    uid.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
