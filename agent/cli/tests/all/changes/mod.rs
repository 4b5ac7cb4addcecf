//! `diff` of moves into and out of the host's network, of Services, and of addresses that the objects do not give.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod files;
mod hosts;
mod parts;
mod services;

use std::fs;

use tempfile::TempDir;

use crate::command;

const SAME: i32 = 0;
const DIFFERENT: i32 = 1;
const CANNOT_TELL: i32 = 2;

/// Compares two sets of objects. Returns the exit status and the output.
fn compared(before: &[&str], after: &[&str], arguments: &[&str]) -> (i32, String) {
    let folder = TempDir::new().unwrap();
    let mut process = command::plugin(&["diff"]);
    process.args(arguments);
    for (option, objects) in [("--from", before), ("--to", after)] {
        let side = folder.path().join(option);
        fs::create_dir(&side).unwrap();
        fs::write(side.join("all.yaml"), objects.join("\n---\n")).unwrap();
        process.arg(option).arg(&side);
    }
    command::run(&mut process)
}

/// Compares, and checks the exit status and parts of the text.
#[track_caller]
fn expect(before: &[&str], after: &[&str], status: i32, parts: &[&str]) -> String {
    command::states(compared(before, after, &[]), status, parts)
}

fn deployment(name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: apps/v1, kind: Deployment, metadata: {{namespace: shop, name: {name}}}, spec: {{template: \
         {{metadata: {{labels: {{app: {name}}}}}, spec: {{{spec} containers: [{{name: c, ports: [{{name: http, \
         containerPort: 8080}}]}}]}}}}}}}}"
    )
}

fn pod(name: &str, node: &str, address: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{namespace: shop, name: {name}, labels: {{app: {name}}}}}, spec: \
         {{nodeName: {node}, containers: [{{name: c}}]}}, status: {{phase: Running, podIP: {address}, podIPs: [{{ip: \
         {address}}}]}}}}"
    )
}

const NAMESPACE: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}";
