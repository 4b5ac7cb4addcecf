//! What an update has to look at.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::model::Key;

/// What changed since the last update, in terms of what has to be looked at again.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    /// Addresses whose owner, or something of their owner that policy reads, changed.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Namespaces in which a policy changed.
    pub(crate) policies: BTreeSet<String>,
    /// Some ClusterNetworkPolicy changed.
    pub(crate) cluster_policies: bool,
    /// Interfaces that changed, came or went.
    pub(crate) interfaces: BTreeSet<u32>,
    /// Some namespace's labels changed.
    pub(crate) namespaces: bool,
    /// Services that changed, or whose backends did.
    pub(crate) services: BTreeSet<Key>,
    /// Addresses that a Service or a Node got or lost, or whose ports changed.
    pub(crate) frontends: BTreeSet<IpAddr>,
    /// Addresses that may be backends of other Services' ports than before.
    pub(crate) backends: BTreeSet<IpAddr>,
}
