//! Targets of a packet trace, and the attribution of traced packets to policies.

use std::net::IpAddr;

use netpold_api::events::TrafficVerdict;
use netpold_api::observe::Attribution;
use netpold_api::trace::{TraceRequest, TracedPacket};
use netpold_core::cluster::Cluster;
use netpold_core::explain::Explainer;
use netpold_core::model::Key;
use netpold_core::probe::{IpProtocol, Party};
use netpold_dataplane::traced::TracedPrograms;
use netpold_ebpf::reason::Reason;

use super::Engine;
use crate::events::{Dropped, JournalEvent};
use crate::observe::{Attributions, EventAttribution};
use crate::trace::{RawPacket, TraceTarget, Tracing, clauses};

/// Reason why there is nothing to trace.
const NOTHING: &str = "nothing is enforced yet";

impl Tracing for Engine {
    fn target(&self, request: &TraceRequest) -> Result<TraceTarget, String> {
        let (compiler, dataplane) = (&self.reconciler.compiler, &self.reconciler.dataplane);
        let (cluster, pod) = (compiler.cluster(), request.pod()?);
        let endpoints = compiler.endpoints().filter(|it| !it.waiting && it.pod == *pod);
        let interfaces: Vec<(u32, String)> =
            endpoints.map(|it| (it.ifindex, self.interfaces.label(it.ifindex))).collect();
        if interfaces.is_empty() {
            let node = cluster.node_name();
            return Err(match cluster.pods().get(pod) {
                Some(known) if known.node != node => {
                    format!("pod {pod} is on node {}: query its agent", known.node)
                }
                Some(_) => format!("pod {pod} has no interface under policy on node {node}"),
                None => format!("pod {pod} not found"),
            });
        }
        let clauses = clauses(request, |party| addresses(cluster, party))?;
        let maps =
            dataplane.active().shared_maps().map_err(|error| error.to_string())?.ok_or(NOTHING)?;
        Ok(TraceTarget { node: cluster.node_name().to_owned(), interfaces, maps, clauses })
    }

    fn begin(
        &mut self,
        ifindexes: &[u32],
        programs: &TracedPrograms,
    ) -> Result<(u32, u32), String> {
        let dataplane = &mut self.reconciler.dataplane;
        let parts = dataplane.active().generation().zip(dataplane.active().settings());
        let (generation, settings) = parts.ok_or(NOTHING)?;
        let now = generation.jiffies().map_err(|error| error.to_string())?;
        dataplane.trace(ifindexes, programs)?;
        Ok((now, settings.event_window))
    }

    fn is_traced(&mut self) -> bool {
        self.reconciler.dataplane.is_traced()
    }

    fn end(&mut self) {
        if let Err(error) = self.reconciler.dataplane.end_trace() {
            tracing::warn!(
                error,
                "cannot detach a traced program; it stays until the next readback"
            );
        }
    }

    fn name(
        &self,
        request: &TraceRequest,
        packets: Vec<RawPacket>,
        attributions: &mut Attributions,
    ) -> Vec<TracedPacket> {
        let Ok(pod) = request.pod() else { return Vec::new() };
        let compiler = &self.reconciler.compiler;
        let cluster = compiler.cluster();
        let state = (self.reconciler.revision.desired, compiler.endpoints_version());
        let resolved = attributions.follow(state, || self.reconciler.resolved_or_none());
        let explainer = Explainer::new(cluster).with_resolved(&resolved);
        let name = |packet| named(cluster, pod, packet, &explainer, attributions);
        packets.into_iter().map(name).collect()
    }
}

fn named(
    cluster: &Cluster,
    pod: &Key,
    RawPacket { event, dropped, steps }: RawPacket,
    explainer: &Explainer<'_>,
    attributions: &mut Attributions,
) -> TracedPacket {
    let packet = Dropped::new(&event);
    let verdict = if dropped { TrafficVerdict::Deny } else { TrafficVerdict::Allow };
    let reason = Reason::from_number(event.reason);
    let attribution = attributed(cluster, pod, &packet, reason, explainer, attributions);
    let [local_port, remote_port] = packet.ports().unwrap_or_default();
    TracedPacket {
        time: packet.time(),
        node: cluster.node_name().to_owned(),
        pod: pod.clone(),
        direction: packet.direction,
        protocol: packet.protocol.map(IpProtocol),
        local: packet.local,
        local_port,
        peer: packet.remote.map(|address| cluster.owner_of_address(address)),
        remote: packet.remote,
        remote_port,
        length: packet.length,
        verdict,
        reason: packet.reason.to_owned(),
        steps,
        attribution,
    }
}

/// Returns the deciding policy and rule; for a reply, of the direction that began its flow.
fn attributed(
    cluster: &Cluster,
    pod: &Key,
    packet: &Dropped,
    reason: Option<Reason>,
    explainer: &Explainer<'_>,
    attributions: &mut Attributions,
) -> Attribution {
    let own = packet.direction;
    let (outcome, direction) = match reason {
        Some(Reason::Policy) => (TrafficVerdict::Deny, own),
        Some(Reason::Allowed | Reason::Translated) => (TrafficVerdict::Allow, own),
        Some(Reason::Reply | Reason::TranslatedReply) => (TrafficVerdict::Allow, own.opposite()),
        _ => return Attribution::default(),
    };
    let seen = JournalEvent { outcome, packet: Dropped { direction, ..packet.clone() } };
    let pod = cluster.pods().get(pod).map(|pod| &**pod);
    match attributions.attribute(explainer, pod, &seen, std::time::Instant::now()) {
        EventAttribution::Known(known) => (*known).clone(),
        EventAttribution::Omitted => Attribution::default(),
    }
}

/// Returns the addresses of a party.
fn addresses(cluster: &Cluster, party: &Party) -> Result<Vec<IpAddr>, String> {
    let addresses = match party {
        Party::Address(address) => vec![*address],
        Party::Pod(key) => {
            cluster.pods().get(key).map(|pod| pod.addresses.clone()).unwrap_or_default()
        }
        Party::Service(key) => cluster.service_addresses(key).to_vec(),
    };
    if addresses.is_empty() {
        return Err(format!("{party} has no address, or does not exist"));
    }
    Ok(addresses)
}
