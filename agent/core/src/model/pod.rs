//! Pods.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::model::object::{Key, Labels};
use crate::model::shared_str::SharedStr;
use crate::model::traffic::Protocol;

/// A Pod.
#[cfg_attr(test, derive(Default))]
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pod {
    /// `metadata.namespace` and `metadata.name`
    pub key: Key,
    /// `metadata.uid`; from files without one, a name derived from the key.
    pub uid: String,
    /// `metadata.labels`
    pub labels: Labels,
    /// `spec.nodeName`; empty: not scheduled.
    pub node: SharedStr,
    /// `status.podIPs`, else `status.podIP`; sorted, without duplicates.
    pub addresses: Vec<IpAddr>,
    /// `spec.hostNetwork`: the pod counts as its node, is not selected and is no peer.
    pub host_network: bool,
    /// `status.phase` is Succeeded or Failed: ignored, because its address may belong to another pod.
    pub finished: bool,
    /// `metadata.deletionTimestamp` is set. Such a pod still counts; it only loses its address to another pod that
    /// claims it.
    pub terminating: bool,
    /// `metadata.creationTimestamp`, seconds since the epoch; 0 where absent. If pods claim the same address, its owner
    /// is the pod that is not terminating, then the younger, then the one with the greater key.
    pub created: i64,
    /// `spec.containers[].ports[]` with a name, and those of sidecars in `initContainers` (`restartPolicy: Always`).
    pub ports: Vec<NamedPort>,
    /// Annotation `netpold.io/check-source` is `off`: the pod asks to send from foreign addresses. Users can set the
    /// annotation, so it counts only in the namespaces of [`crate::options::SourceExempt`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub foreign_sources: bool,
}

/// A container port with a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NamedPort {
    /// `name`
    pub name: String,
    /// `protocol`; absent: TCP
    pub protocol: Protocol,
    /// `containerPort`
    pub port: u16,
}

/// FNV-1a, 64 bits: stable across builds, unlike the standard hasher.
pub(crate) fn uid_hash(uid: &str) -> u64 {
    uid.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
