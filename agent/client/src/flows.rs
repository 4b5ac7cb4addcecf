//! Requests to agents for the flows of their nodes, page by page.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::Result;
use netpold_api::flows::{
    FLOWS_REQUEST, FlowFilter, FlowPage, FlowsAnswer, FlowsRequest, PAGE, PodFlows, TranslatedFlow,
};
use netpold_api::unix_time::unix_time;
use netpold_core::model::Key;
use netpold_core::probe::IpProtocol;

use crate::live::{self, AgentAnswers, ClusterArgs};
use crate::socket;

/// Formats an address, with its port if there is one.
#[must_use]
pub fn address_and_port(address: IpAddr, port: u16) -> String {
    if port == 0 { address.to_string() } else { SocketAddr::new(address, port).to_string() }
}

/// Returns the flows of all nodes of a cluster: at most `limit` of each node; the rest is counted. Prints the nodes
/// without an answer to standard error.
///
/// # Errors
/// The cluster cannot be reached, or has no agents.
pub fn ask_cluster(
    cluster: &ClusterArgs,
    filter: &FlowFilter,
    limit: Option<u32>,
) -> Result<AgentAnswers<FlowsAnswer>> {
    let limit = limit.unwrap_or(0).to_string();
    let mut arguments = vec!["flows", "-o", "json", "--limit", &limit];
    for (flag, value) in [("--namespace", &filter.namespace), ("--pod", &filter.pod)] {
        if let Some(value) = value {
            arguments.extend([flag, value]);
        }
    }
    live::request_all(cluster, &arguments)
}

/// Returns the flows of a node: at most `limit`; the rest is counted.
///
/// # Errors
/// No agent answers, or the answer is of another version.
pub fn request_flows(path: &Path, filter: &FlowFilter, limit: Option<u32>) -> Result<FlowsAnswer> {
    let mut answer = FlowsAnswer { as_of: unix_time().as_secs(), ..FlowsAnswer::default() };
    let mut others: BTreeMap<Key, u64> = BTreeMap::new();
    let mut left = limit.unwrap_or(u32::MAX);
    let mut translated: HashMap<(IpProtocol, SocketAddr, SocketAddr), TranslatedFlow> =
        HashMap::new();
    let mut ask = |from, kernel| {
        let asked = if kernel { left } else { left.min(PAGE) };
        let wanted = FlowsRequest { filter: filter.clone(), from, limit: asked, kernel };
        let page: FlowPage = socket::request(path, FLOWS_REQUEST, &wanted)?;
        left = left.saturating_sub(u32::try_from(page.flows.len()).unwrap_or(u32::MAX));
        answer.node = page.node;
        answer.flows.extend(page.flows);
        answer.problems.extend(page.problem);
        let sent_on = page.translated.into_iter();
        translated.extend(sent_on.map(|it| ((it.protocol, it.from, it.to), it.on)));
        for PodFlows { pod, flows } in page.left_out {
            *others.entry(pod).or_default() += flows;
        }
        anyhow::Ok(page.next)
    };
    let mut next = Some(0);
    while let Some(from) = next {
        next = ask(from, false)?;
    }
    ask(0, true)?;
    answer.left_out = others.into_iter().map(|(pod, flows)| PodFlows { pod, flows }).collect();
    for flow in &mut answer.flows {
        let Some(local) = flow.local else { continue };
        let from = SocketAddr::new(local, flow.local_port);
        let to = SocketAddr::new(flow.remote, flow.remote_port);
        flow.translated = translated.get(&(flow.protocol, from, to)).copied();
    }
    answer.flows.sort();
    Ok(answer)
}
