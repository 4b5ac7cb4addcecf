//! Adds names and reasons to observed events.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use netpold_api::events::TrafficVerdict;
use netpold_api::filter::EventFilter;
use netpold_api::observe::{Attribution, ObservedEvent};
use netpold_api::workload::WorkloadName;
use netpold_core::cluster::{AddressOwner, Cluster};
use netpold_core::explain::Explainer;
use netpold_core::model::Pod;
use netpold_core::probe::IpProtocol;

use super::Engine;
use super::interfaces::NodeInterfaces;
use crate::events::JournalEvent;
use crate::observe::{
    Attributions, EventAttribution, EventNames, admits, admits_names, destination_port,
};

/// Returns the events that pass the filter, with names and, within the time limit, with policy and rule. Also returns
/// the number of events without attribution.
#[must_use]
pub fn watched_events(
    engine: &Engine,
    seen: &[JournalEvent],
    filter: &EventFilter,
    attributions: &mut Attributions,
) -> (Vec<ObservedEvent>, u64) {
    let Engine { reconciler, interfaces, rule_use, .. } = engine;
    let compiler = &reconciler.compiler;
    let (cluster, revision) = (compiler.cluster(), reconciler.revision.desired);
    let state = (revision, compiler.endpoints_version());
    let resolved = attributions.follow(state, || reconciler.resolved_or_none());
    let explainer = Explainer::new(cluster).with_resolved(&resolved);
    let (mut events, mut unattributed) = (Vec::new(), 0);
    for seen in seen.iter().filter(|seen| admits(filter, seen)) {
        let packet = &seen.packet;
        let pod = rule_use.pod_of(packet.endpoint, packet.ifindex);
        let at = packet.unix_millis;
        let peer = packet.remote.map(|address| rule_use.owner_of_address(cluster, address, at));
        let names = EventNames { pod: pod.map(|pod| pod.key.clone()), peer };
        if !admits_names(filter, seen, &names) {
            continue;
        }
        // The current objects do not explain a pod that is gone, or a peer's address that belongs to another pod now.
        let is_another = |address| {
            cluster.owner(address).is_some() && rule_use.former(cluster, address, at).is_some()
        };
        let listed = |pod: &&Arc<Pod>| {
            cluster.pods().get(&pod.key).is_some_and(|listed| listed.uid == pod.uid)
        };
        let explained = pod.filter(listed).filter(|_| !packet.remote.is_some_and(is_another));
        let explained = explained.map(|pod| &**pod);
        let attributed = attributions.attribute(&explainer, explained, seen, Instant::now());
        unattributed += u64::from(attributed == EventAttribution::Omitted);
        let peer_pod = packet.remote.and_then(|address| {
            let named = || match &names.peer {
                Some(AddressOwner::Pod(key)) => cluster.pods().get(key),
                _ => None,
            };
            rule_use.former(cluster, address, at).or_else(named)
        });
        let workloads = [pod, peer_pod].map(|pod| pod.and_then(|pod| WorkloadName::of_pod(pod)));
        let own = pod.map(|pod| &pod.addresses[..]);
        let event = event(cluster, interfaces, (seen, own), names, &attributed);
        let [workload, peer_workload] = workloads;
        events.push(ObservedEvent { workload, peer_workload, ..event });
    }
    (events, unattributed)
}

fn event(
    cluster: &Cluster,
    interfaces: &NodeInterfaces,
    (seen, addresses): (&JournalEvent, Option<&[IpAddr]>),
    EventNames { pod, peer }: EventNames,
    attributed: &EventAttribution,
) -> ObservedEvent {
    let packet = &seen.packet;
    let [local_port, remote_port] = packet.ports().unwrap_or_default();
    // The flow table does not store the pod's own address.
    let own = || {
        let of_family = |own: &&_| packet.remote.is_some_and(|it| same_family(it, **own));
        addresses?.iter().find(of_family).copied()
    };
    ObservedEvent {
        time: packet.time(),
        node: cluster.node_name().to_owned(),
        verdict: seen.outcome,
        reason: packet.reason.to_owned(),
        direction: packet.direction,
        interface: (seen.outcome == TrafficVerdict::Deny).then(|| interfaces.label(packet.ifindex)),
        local: packet.local.or_else(own),
        local_port,
        peer,
        workload: None,
        peer_workload: None,
        remote: packet.remote,
        remote_port,
        protocol: packet.protocol.map(IpProtocol),
        port: destination_port(seen),
        attribution: match attributed {
            EventAttribution::Known(known) => (**known).clone(),
            EventAttribution::Omitted => Attribution::default(),
        },
        pod,
    }
}

fn same_family(one: IpAddr, other: IpAddr) -> bool {
    one.is_ipv4() == other.is_ipv4()
}
