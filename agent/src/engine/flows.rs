//! The flows of the node, to be read without the engine.

use std::collections::BTreeMap;

use netpold_core::cluster::Cluster;

use super::Engine;
use crate::dataplane::generation::GenerationError;
use crate::flows::Flow;
use crate::flows::reader::{FlowReader, LocalPod};
use crate::import_conntrack::Wanted;

/// What reads the node's flows; `None` before the first generation. It has its own mapping of the tables.
///
/// # Errors
/// The tables cannot be mapped or the clock cannot be read.
pub fn flow_reader(engine: &Engine) -> Result<Option<FlowReader>, GenerationError> {
    let (compiler, dataplane) = (&engine.reconciler.compiler, &engine.reconciler.dataplane);
    let Some(tables) = dataplane.active().flow_tables()? else { return Ok(None) };
    let mut pods = BTreeMap::new();
    let mut untracked = Wanted::default();
    for endpoint in compiler.endpoints().filter(|endpoint| !endpoint.waiting) {
        let addresses = engine.reconciler.addresses_of(&endpoint);
        let has_rows = endpoint.slot.zip(dataplane.active().generation());
        if !has_rows.is_some_and(|(slot, generation)| generation.has_rows(slot)) {
            untracked.endpoints.extend(addresses.iter().map(|at| (*at, endpoint.id)));
        }
        pods.insert(endpoint.id, LocalPod { key: endpoint.pod, addresses });
    }
    let cluster = compiler.cluster();
    untracked.own = cluster.own_addresses().collect();
    Ok(Some(FlowReader { node: cluster.node_name().to_owned(), tables, pods, untracked }))
}

/// Says whose the other sides of flows are: a pod's, or a Service's.
pub fn name_remotes(cluster: &Cluster, flows: &mut [Flow]) {
    for flow in flows {
        let service = || cluster.service_at(flow.remote).map(|key| format!("svc/{key}"));
        let pod = cluster.owner(flow.remote).map(|pod| pod.key.to_string());
        flow.remote_name = pod.or_else(service);
        flow.to_own_node = flow.remote_name.is_none() && cluster.is_own_node(flow.remote);
    }
}
