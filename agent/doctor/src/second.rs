//! Check for addresses and interfaces of pods on secondary networks where policy does not work as usual.

use std::collections::BTreeSet;

use netpold_client::details::complete::is_stand_in;
use netpold_core::cluster::is_subject;
use netpold_core::model::{Enforcement, Pod};
use netpold_core::options::SECONDARY_OPEN;

use crate::finding::{Check, Findings, Severity};
use crate::objects::GroupedObjects;

const REFUSED: Check = Check {
    name: "second-address-refused",
    severity: Severity::Warning,
    problem: "an address on a secondary network does not count as its pod's: no peer by label matches it, and the pod's \
              node drops packets from there unless a CNI result proves the address",
    fix: "give each pod an address of its own, outside of pods', nodes' and Services' ranges, within --second-networks \
          (deploy/limits.md; here its default)",
};
const UNKNOWN: Check = Check {
    name: "second-address-unknown",
    severity: Severity::Info,
    problem: "the addresses of a pod on a secondary network are not known: no peer by label matches there, and sources are \
              not checked",
    fix: "use an IPAM plugin that reports the addresses to Multus, so that k8s.v1.cni.cncf.io/network-status has them",
};
const OPEN: Check = Check {
    name: "second-interface-open",
    severity: Severity::Warning,
    problem: "an interface on a secondary network is not under policy, although policies isolate its pod",
    fix: "attach the network by veths (bridge, ptp); where its addresses are not known, remove the label \
          netpold.io/second-interfaces from the Namespace",
};

/// Checks the interfaces of pods on secondary networks.
pub(crate) fn examine(objects: &GroupedObjects<'_>, found: &mut Findings) {
    let pods = objects.cluster.pods().values().map(|pod| &**pod);
    for pod in pods.filter(|pod| is_subject(pod)) {
        interfaces(objects, pod, found);
        let is_running = !pod.addresses.iter().all(|address| is_stand_in(*address));
        let requests = objects.details.pods.get(&pod.key).is_some_and(|it| it.requests_networks);
        if requests && is_running && pod.secondary.is_empty() {
            let place =
                "annotation k8s.v1.cni.cncf.io/networks names networks, network-status none";
            found.add(&UNKNOWN, at(objects, pod, place));
        }
    }
}

fn interfaces(objects: &GroupedObjects<'_>, pod: &Pod, found: &mut Findings) {
    let cluster = objects.cluster;
    let is_isolated = || {
        cluster.policies_in(&pod.key.namespace).any(|policy| {
            policy.enforcement == Enforcement::Enforce && policy.pod_selector.matches(&pod.labels)
        })
    };
    let (label, open) = SECONDARY_OPEN;
    let labels = cluster.namespace_labels(&pod.key.namespace);
    let is_open = || labels.get(label).is_some_and(|value| value == open);
    let is_known = pod.secondary_addresses().next().is_some();
    let mut refused = BTreeSet::new();
    for interface in &pod.secondary {
        let title = interface.title();
        for address in &interface.addresses {
            if let Some(refusal) = cluster.refused(pod, *address)
                && refused.insert(address)
            {
                found.add(&REFUSED, at(objects, pod, &format!("{address} of {title}: {refusal}")));
            }
        }
        if !interface.device.is_empty() {
            if is_isolated() {
                let what = format!("{title}: no veth (device-info {})", interface.device);
                found.add(&OPEN, at(objects, pod, &what));
            }
        } else if interface.addresses.is_empty() {
            if !is_known && is_open() && is_isolated() {
                let what = format!("{title}: no known address, and the Namespace's label opens it");
                found.add(&OPEN, at(objects, pod, &what));
            } else {
                found.add(&UNKNOWN, at(objects, pod, &title));
            }
        }
    }
}

fn at(objects: &GroupedObjects<'_>, pod: &Pod, what: &str) -> String {
    objects.with_source(("Pod", &pod.key), format!("Pod {}: {what}", pod.key))
}
