//! Lists of one node's pods, by the form of the request.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use kube::Client;
use netpold_testbed::processor_time;
use serde::Serialize;
use serde_json::Value;

use super::objects::{PODS_PER_NODE, node_name};
use super::trimmed::PAGE;

/// Time of a list, and the API server's work for it.
#[derive(Debug, Serialize)]
pub(crate) struct OwnList {
    pub(super) form: &'static str,
    pub(super) milliseconds: f64,
    /// CPU milliseconds of the API server.
    pub(super) server: f64,
}

/// Lists each form this often; the fastest counts.
const REPEATS: usize = 3;

/// Requests the pods of a node in each form.
pub(super) async fn own_lists(client: &Client, server: u32) -> Result<Vec<OwnList>> {
    let forms = [
        ("from the store, in pages", format!("&limit={PAGE}")),
        ("from the store, without pages", String::new()),
        ("from the cache of the API server", "&resourceVersion=0".to_owned()),
    ];
    let mut lists = Vec::new();
    for (form, params) in forms {
        let mut best = OwnList { form, milliseconds: f64::INFINITY, server: f64::INFINITY };
        for _ in 0..REPEATS {
            let (milliseconds, server) = own_list(client, server, &params).await.context(form)?;
            best.milliseconds = best.milliseconds.min(milliseconds);
            best.server = best.server.min(server);
        }
        lists.push(best);
    }
    Ok(lists)
}

/// Returns the milliseconds of a list, and those of the API server's processor time.
async fn own_list(client: &Client, server: u32, params: &str) -> Result<(f64, f64)> {
    let fields = format!(
        "spec.nodeName%3D{},status.phase!%3DSucceeded,status.phase!%3DFailed",
        node_name(0)
    );
    let path = format!("/api/v1/pods?fieldSelector={fields}{params}");
    let (before, begin) = (processor_time(server)?, Instant::now());
    let list: Value = client.request(hyper::Request::get(path).body(Vec::new())?).await?;
    let (time, spent) = (begin.elapsed(), processor_time(server)?.saturating_sub(before));
    let count = list["items"].as_array().map_or(0, Vec::len);
    ensure!(count == PODS_PER_NODE as usize, "{count} pods instead of {PODS_PER_NODE}");
    Ok((time.as_secs_f64() * 1e3, spent.as_secs_f64() * 1e3))
}
