//! Names and reasons for what watchers see.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use netpold_core::cluster::Cluster;
use netpold_core::explain::Explainer;
use netpold_core::model::Key;
use netpold_core::probe::IpProtocol;

use super::Engine;
use super::interfaces::NodeInterfaces;
use crate::events::{Outcome, Seen};
use crate::observe::{
    Attributed, Attribution, Attributions, Event, Filter, Names, destination_port,
};

/// The events that a watcher asked for, with names and, as far as time allows, with policy and rule; and how
/// many are without.
#[must_use]
pub fn observed(
    engine: &Engine,
    seen: &[Seen],
    filter: &Filter,
    attributions: &mut Attributions,
) -> (Vec<Event>, u64) {
    let Engine { reconciler, interfaces, .. } = engine;
    let compiler = &reconciler.compiler;
    let (cluster, revision) = (compiler.cluster(), reconciler.revision.desired);
    attributions.follow((revision, compiler.endpoints_version()));
    let endpoints = compiler.endpoints().filter(|endpoint| !endpoint.waiting);
    let pods: BTreeMap<u32, Key> = endpoints.map(|it| (it.id, it.pod)).collect();
    let explainer = Explainer::new(cluster);
    let (mut events, mut unattributed) = (Vec::new(), 0);
    for seen in seen.iter().filter(|seen| filter.admits(seen)) {
        let peer = seen.packet.remote.map(|address| cluster.whose(address));
        let names = Names { pod: pods.get(&seen.packet.endpoint).cloned(), peer };
        if !filter.admits_names(seen, &names) {
            continue;
        }
        let pod = names.pod.as_ref().and_then(|key| cluster.pods().get(key));
        let attributed = attributions.of(&explainer, pod.map(|pod| &**pod), seen, Instant::now());
        unattributed += u64::from(attributed == Attributed::Omitted);
        events.push(event(cluster, interfaces, seen, names, &attributed));
    }
    (events, unattributed)
}

fn event(
    cluster: &Cluster,
    interfaces: &NodeInterfaces,
    seen: &Seen,
    Names { pod, peer }: Names,
    attributed: &Attributed,
) -> Event {
    let packet = &seen.packet;
    let [local_port, remote_port] = packet.ports().unwrap_or_default();
    // The flow table has no addresses of its own pods.
    let own = || {
        let pod = cluster.pods().get(pod.as_ref()?)?;
        let of_family = |own: &&_| packet.remote.is_some_and(|it| same_family(it, **own));
        pod.addresses.iter().find(of_family).copied()
    };
    Event {
        time: packet.time(),
        node: cluster.node_name().to_owned(),
        verdict: seen.outcome,
        reason: packet.reason.to_owned(),
        direction: packet.direction,
        interface: (seen.outcome == Outcome::Deny).then(|| interfaces.label(packet.ifindex)),
        local: packet.local.or_else(own),
        local_port,
        peer,
        remote: packet.remote,
        remote_port,
        protocol: packet.protocol.map(IpProtocol),
        port: destination_port(seen),
        attribution: match attributed {
            Attributed::Known(known) => (**known).clone(),
            Attributed::Omitted => Attribution::default(),
        },
        pod,
    }
}

fn same_family(one: IpAddr, other: IpAddr) -> bool {
    one.is_ipv4() == other.is_ipv4()
}
