//! Requests to an API server, from its audit log.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// Audit policy: metadata of every request at its response; of a watch, at its start and at its end.
pub const AUDIT_POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived"],
  "rules": [{"level": "Metadata"}]
}"#;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// User of the request, such as `system:serviceaccount:netpold:netpold`.
    pub user: String,
    /// `list`, `watch`, `create`, …; for a path that is not a resource, the HTTP method in lower case.
    pub verb: String,
    /// API group; empty for the core.
    pub group: String,
    /// Resource, with its subresource if it has one, such as `pods/status`; empty for other paths.
    pub resource: String,
    /// Namespace; empty for all of them.
    pub namespace: String,
    /// Path and query.
    pub uri: String,
    /// HTTP status.
    pub code: u64,
    /// Message of an error response; else empty.
    pub message: String,
}

/// All requests in an audit log of [`AUDIT_POLICY`].
///
/// # Errors
/// When the log cannot be read.
pub fn read_requests(log: &Path) -> Result<Vec<Request>> {
    let log = fs::read_to_string(log).context("the audit log cannot be read")?;
    // The last line may be half written.
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    // A watch is logged again at its end.
    let mut seen = HashSet::new();
    let first =
        |event: &Value| event["auditID"].as_str().is_none_or(|id| seen.insert(id.to_owned()));
    Ok(events.filter(first).map(|event| request(&event)).collect())
}

fn request(event: &Value) -> Request {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &event["objectRef"];
    let resource = match (text(&object["resource"]), text(&object["subresource"])) {
        (resource, sub) if sub.is_empty() => resource,
        (resource, sub) => format!("{resource}/{sub}"),
    };
    Request {
        user: text(&event["user"]["username"]),
        verb: text(&event["verb"]),
        group: text(&object["apiGroup"]),
        resource,
        namespace: text(&object["namespace"]),
        uri: text(&event["requestURI"]),
        code: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
        message: text(&event["responseStatus"]["message"]),
    }
}
