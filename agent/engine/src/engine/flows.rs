//! The node's flows, readable without the engine.

use std::collections::BTreeMap;

use netpold_api::flows::ListedFlow;
use netpold_dataplane::generation::GenerationError;
use netpold_dataplane::import_conntrack::ImportRequest;

use super::Engine;
use crate::events::unix_millis;
use crate::flows::{FlowReader, LocalPod};

/// Returns a reader of the node's flows with a mapping of the tables of its own; `None` before the first generation.
///
/// # Errors
/// The tables cannot be mapped or the clock cannot be read.
pub fn flow_reader(engine: &Engine) -> Result<Option<FlowReader>, GenerationError> {
    let (compiler, dataplane) = (&engine.reconciler.compiler, &engine.reconciler.dataplane);
    let Some(tables) = dataplane.active().flow_tables()? else { return Ok(None) };
    let mut pods = BTreeMap::new();
    let mut untracked = ImportRequest::default();
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

/// Sets the names of the flows' remote sides: a pod or a Service. A removed pod is remembered for some minutes.
pub fn name_remotes(engine: &Engine, flows: &mut [ListedFlow]) {
    let (cluster, now) = (engine.reconciler.compiler.cluster(), unix_millis());
    for flow in flows {
        let at = now.saturating_sub(flow.idle_ms.unwrap_or(0));
        let service = || cluster.service_at(flow.remote).map(|key| format!("svc/{key}"));
        let owner = || cluster.owner(flow.remote);
        let pod = engine.rule_use.former(cluster, flow.remote, at).or_else(owner);
        let pod = pod.map(|pod| pod.key.to_string());
        flow.remote_name = pod.or_else(service);
        flow.to_own_node = flow.remote_name.is_none() && cluster.is_own_node(flow.remote);
    }
}
