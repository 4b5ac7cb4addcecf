//! `learn` with incomplete records: no claim beyond them.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/example/learn");
const DENIED: i32 = 1;

fn learn(records: &[String]) -> (i32, String) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_kubectl-netpold"));
    process.args(["learn", "-n", "shop", "--manifests", EXAMPLE, "--records", &records.join(",")]);
    let output = process.env_clear().output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

fn recorded(node: &str) -> String {
    format!("{EXAMPLE}/recorded/{node}.json")
}

#[test]
fn a_flow_recorded_at_one_end_is_judged_at_both() {
    let (status, text) = learn(&[recorded("oak"), recorded("elm")]);
    assert!(!text.contains("without records") && !text.contains("denies its"), "{status}: {text}");
    let (status, text) = learn(&[recorded("oak")]);
    assert_eq!(status, DENIED, "{text}");
    assert!(text.contains("run on nodes without records, so flows may be missing: elm"), "{text}");
    let denied = "would be denied: shop app=web egress to shop app=cart, TCP 8080: policy shop/learned-cart denies its ingress";
    assert!(text.contains(denied), "{text}");
}

#[test]
fn flows_to_absent_services_and_denials_at_times_are_told_apart() {
    let mut record: Value = serde_json::from_slice(&fs::read(recorded("oak")).unwrap()).unwrap();
    let flow = json!({
        "workload": { "namespace": "shop", "labels": { "app": "web" } }, "direction": "egress",
        "peer": { "service": { "namespace": "shop", "name": "gone" } }, "protocol": "TCP", "port": 443,
        "flows": 5, "on_trial": 0, "denied": 0, "first": 1_795_338_060_u64, "last": 1_795_424_370_u64,
    });
    let mut flows = record["flows"].as_array().unwrap().clone();
    // Denied at times: the rule of the passed flows allows it now.
    flows[0]["denied"] = json!(9);
    flows.push(flow);
    record["flows"] = flows.into();
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("oak.json");
    fs::write(&path, record.to_string()).unwrap();
    let (status, text) = learn(&[path.to_str().unwrap().to_owned(), recorded("elm")]);
    assert_eq!(status, DENIED, "{text}");
    assert!(
        text.contains("to svc/shop/gone, TCP 443: Service shop/gone is not among the objects or has no such port"),
        "{text}"
    );
    assert!(!text.contains("still denied"), "{text}");
}
