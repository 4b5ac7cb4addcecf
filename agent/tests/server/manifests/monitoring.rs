//! Rules and dashboard use existing metrics only, and each alert fires in its situation.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::manifests::rendered::{can_render, deploy, find, option, render, tool};
use netpold_testbed::skip;

/// Returns the names in `deploy/metrics.md`; `tests/node/traffic/metrics.rs` compares the page with the served metrics.
fn documented() -> BTreeSet<String> {
    let text = std::fs::read_to_string(deploy().join("metrics.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split_once('`').unwrap().0.to_owned()).collect()
}

/// Returns the names of netpold's metrics and process metrics in an expression.
fn used(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("netpold_") || word.starts_with("process_"));
    let base = |word: &str| {
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
        histogram.unwrap_or(word).to_owned()
    };
    ours.map(base).collect()
}

/// Collects every string at a key, at any depth.
fn all<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| match value.as_str() {
            Some(text) if name == key => found.push(text),
            _ => all(value, key, found),
        }),
        Value::Array(items) => items.iter().for_each(|item| all(item, key, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_metric_in_rules_and_dashboard_is_one_of_ours() {
    if !can_render("every_metric_in_rules_and_dashboard_is_one_of_ours") {
        return;
    }
    let (objects, documented) = (option("monitoring"), documented());
    let data = &find(&objects, "ConfigMap", "netpold-dashboard")["data"]["netpold.json"];
    let dashboard: Value = serde_json::from_str(data.as_str().unwrap()).unwrap();
    let mut expressions = Vec::new();
    all(find(&objects, "PrometheusRule", ""), "expr", &mut expressions);
    all(&dashboard, "expr", &mut expressions);
    assert!(expressions.len() > 25, "{}", expressions.len());
    for expression in expressions {
        let unknown: Vec<_> = used(expression).difference(&documented).cloned().collect();
        assert!(unknown.is_empty(), "{unknown:?} in {expression}");
    }
    let (base, monitor) = (render("base"), find(&objects, "PodMonitor", "")["spec"].clone());
    let template = &find(&base, "DaemonSet", "")["spec"]["template"];
    let agent = &template["spec"]["containers"][0];
    let port = agent["livenessProbe"]["httpGet"]["port"].as_u64().unwrap();
    let relabelings = monitor["podMetricsEndpoints"][0]["relabelings"].as_array().unwrap();
    let addresses = relabelings.iter().filter(|it| it["targetLabel"] == "__address__");
    let replacements = addresses.map(|it| it["replacement"].as_str().unwrap().to_owned());
    assert_eq!(replacements.collect::<Vec<_>>(), [format!("$1:{port}"), format!("[$1]:{port}")]);
    let kept: Vec<_> = relabelings.iter().filter(|it| it["action"] == "keep").collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0]["regex"], agent["name"]);
    assert_eq!(monitor["selector"]["matchLabels"], template["metadata"]["labels"]);
}

/// Runs `promtool test rules` on these groups of rules.
fn promtool_test(promtool: &Path, groups: &Value) -> (bool, String) {
    let directory = tempfile::tempdir().unwrap();
    let rules = directory.path().join("rules.yaml");
    std::fs::write(rules, json!({ "groups": groups }).to_string()).unwrap();
    let test = directory.path().join("rules_test.yaml");
    std::fs::copy(deploy().join("chart/files/rules_test.yaml"), &test).unwrap();
    let output = Command::new(promtool).args(["test", "rules"]).arg(test).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn alerts_are_raised_when_they_must_be() {
    let name = "alerts_are_raised_when_they_must_be";
    if !can_render(name) {
        return;
    }
    let Some(promtool) = tool("promtool", "netpold/promtool/usr/bin/promtool") else {
        return skip(name, "needs promtool (Debian package prometheus; `cargo xtask setup`)");
    };
    let objects = option("monitoring");
    let groups = &find(&objects, "PrometheusRule", "")["spec"]["groups"];
    let (passed, said) = promtool_test(&promtool, groups);
    assert!(passed, "{said}");
    // The test detects any alert that never fires.
    for index in 0..groups[0]["rules"].as_array().unwrap().len() {
        let mut broken = groups.clone();
        broken[0]["rules"][index]["expr"] = json!("vector(0) > 1");
        assert!(!promtool_test(&promtool, &broken).0, "{}", broken[0]["rules"][index]);
    }
}
