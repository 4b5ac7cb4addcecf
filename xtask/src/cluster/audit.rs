//! Requests of netpold to the API server, from its audit log.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use netpold_testbed::apiserver::{Request, read_requests};

use super::state::{ClusterFolder, NODES};
use crate::step;

/// User prefix of the agents and the controller.
const USERS: &str = "system:serviceaccount:netpold-system:";

/// Returns the path of the audit log, next to the other logs.
pub(super) fn log(state: &ClusterFolder) -> PathBuf {
    state.log(NODES[0], "audit")
}

/// Prints the number of requests by kind and status code.
///
/// # Errors
/// A request was forbidden or malformed, or the log has no request of netpold.
pub(super) fn run(state: &ClusterFolder) -> Result<()> {
    step::title("audit: what netpold has asked the API server");
    let requests = read_requests(&log(state))?;
    let requests = requests.into_iter().filter(|request| request.user.starts_with(USERS));
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let mut refused = Vec::new();
    for request in requests {
        // The controller learns from such an answer that a namespace is being deleted.
        let is_late = request.message.ends_with("because it is being terminated");
        if !is_late && [400, 401, 403, 405, 422].contains(&request.code) {
            refused.push(format!("{} {}", line(&request), request.uri));
        }
        *counts.entry(line(&request)).or_default() += 1;
    }
    for (line, count) in &counts {
        step::note(&format!("{count:>7}  {line}"));
    }
    ensure!(!counts.is_empty(), "{} has no request of netpold", log(state).display());
    ensure!(refused.is_empty(), "{} refused, the first: {}", refused.len(), refused[0]);
    Ok(())
}

/// Formats a request as `netpold watch networkpolicies.networking.k8s.io 200`.
fn line(request: &Request) -> String {
    let Request { user, verb, group, resource, code, .. } = request;
    let resource = match (resource.as_str(), group.as_str()) {
        ("", _) => request.uri.split('?').next().unwrap_or_default().to_owned(),
        (resource, "") => resource.to_owned(),
        (resource, group) => format!("{resource}.{group}"),
    };
    format!("{} {verb} {resource} {code}", user.trim_start_matches(USERS))
}
