//! Objects that assertions are about, and the pods that selections contain.

use anyhow::{Result, anyhow};
use ipnet::IpNet;
use netpold_client::offline;
use netpold_core::cluster::{Cluster, is_subject, is_unaddressed};
use netpold_core::explain::Explainer;
use netpold_core::model::Pod;
use netpold_core::probe::Party;

use super::assertion::{NamespaceChoice, SideSelection};
use super::outcome::AssertionOutcome;
use crate::judge::Judge;

/// Context of assertions.
pub(super) struct AssertionContext<'c> {
    pub(super) cluster: &'c Cluster,
    /// Judge of domain names, and of connections to open.
    pub(super) explainer: Explainer<'c>,
    pub(super) judge: &'c Judge,
    /// Blocks of the addresses of pods without one.
    pub(super) ranges: &'c [IpNet],
    /// Namespace of workloads named without one.
    pub(super) own: String,
    /// Whether the objects are a live cluster's: pods without an address get one soon and are left out.
    pub(super) is_of_cluster: bool,
}

impl<'c> AssertionContext<'c> {
    /// Returns the selected parties.
    pub(super) fn parties(&self, selected: &SideSelection) -> Vec<Party> {
        if let SideSelection::One(party) = selected {
            return self.named(party);
        }
        let is_chosen = |pod: &&Pod| {
            let is_placed =
                !pod.addresses.is_empty() || !self.is_of_cluster || pod.template().is_some();
            is_placed && is_subject(pod)
        };
        let pods = self.matching(selected).filter(is_chosen);
        pods.map(|pod| Party::Pod(pod.key.clone())).collect()
    }

    /// Returns the pods that match a selection by namespace and labels.
    fn matching<'s>(
        &self,
        selected: &'s SideSelection,
    ) -> impl Iterator<Item = &'c Pod> + use<'c, 's> {
        let pods = self.cluster.pods().values().map(|pod| &**pod);
        pods.filter(move |pod| {
            let SideSelection::Pods { namespaces, labels } = selected else { return false };
            let namespace = match namespaces {
                NamespaceChoice::Named(name) => pod.key.namespace == *name,
                NamespaceChoice::All => true,
            };
            namespace && labels.matches(&pod.labels)
        })
    }

    /// Returns the pods on the host's network that match a selection, which leaves them out.
    pub(super) fn on_hosts(
        &self,
        selected: &SideSelection,
    ) -> impl Iterator<Item = String> + use<'c> {
        let hosts = self.matching(selected).filter(|pod| pod.host_network && !pod.finished);
        hosts.map(Pod::title).collect::<Vec<_>>().into_iter()
    }

    /// Returns whether a pod has an address of a family, or may get one.
    fn has_family(&self, pod: &Pod, v6: bool) -> bool {
        match is_unaddressed(pod) {
            true => self.ranges.iter().any(|range| range.addr().is_ipv6() == v6),
            false => pod.all_addresses().any(|address| address.is_ipv6() == v6),
        }
    }

    /// Resolves a named party: a workload stands for all of its pods.
    fn named(&self, party: &Party) -> Vec<Party> {
        let pods = match party {
            Party::Pod(key) if self.cluster.pods().get(key).is_none() => {
                offline::pods_named(self.cluster, key, &self.own)
            }
            Party::Pod(_) | Party::Service(_) | Party::Address(_) => Vec::new(),
        };
        match pods[..] {
            [] => vec![party.clone()],
            _ => pods.iter().map(|pod| Party::Pod(pod.key.clone())).collect(),
        }
    }
}

/// Leaves out the selected pods without an address of the family of the other side, if that is an address. The assertion
/// does not apply to a cluster where no pod has one.
///
/// # Errors
/// Pods of the cluster have an address of the family, but none of the selected ones.
pub(super) fn of_family(
    world: &AssertionContext<'_>,
    outcome: &mut AssertionOutcome,
    (selected, parties): (&SideSelection, Vec<Party>),
    other: &SideSelection,
) -> Result<Vec<Party>> {
    let (SideSelection::Pods { .. }, SideSelection::One(Party::Address(address))) =
        (selected, other)
    else {
        return Ok(parties);
    };
    let v6 = address.is_ipv6();
    let (family, reason) = match v6 {
        true => ("IPv6", "without an IPv6 address"),
        false => ("IPv4", "without an IPv4 address"),
    };
    let has = |party: &Party| {
        let Party::Pod(key) = party else { return true };
        world.cluster.pods().get(key).is_none_or(|pod| world.has_family(pod, v6))
    };
    let (with, without): (Vec<Party>, Vec<Party>) = parties.into_iter().partition(has);
    if with.is_empty() {
        let mut pods = world.cluster.pods().values().filter(|pod| is_subject(pod));
        if pods.any(|pod| world.has_family(pod, v6)) {
            return Err(anyhow!("no selected pod has an {family} address: {selected}"));
        }
        outcome.skipped = Some(format!("no pod of the cluster has an {family} address"));
    } else {
        outcome.leave_out(reason, without.iter().map(ToString::to_string));
    }
    Ok(with)
}
