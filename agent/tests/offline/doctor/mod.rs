//! `netpold doctor`: its findings in objects and on a node, and its exit statuses.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod blocks;
mod callers;
mod dns;
mod ends;
mod enforcers;
mod explained;
mod foreign;
mod mesh;
mod node;
mod page;
mod peers;
mod policies;
mod reading;
mod service_ports;
mod workloads;

use std::collections::BTreeMap;
use std::fs;
use std::process::Output;

use netpold_doctor::{DoctorReport, Finding, Severity};
use netpold_testbed::without_twins;

const BINARY: &str = env!("CARGO_BIN_EXE_netpold");

fn doctor(command: &mut std::process::Command, arguments: &[&str]) -> (i32, DoctorReport) {
    let command = without_twins(command).args(["doctor", "-o", "json"]).args(arguments);
    let output = command.output().unwrap();
    (output.status.code().unwrap(), report(&output))
}

fn report(output: &Output) -> DoctorReport {
    assert!(!output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns places by check, without files and lines.
fn places(report: &DoctorReport) -> BTreeMap<&str, Vec<&str>> {
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Finding { check, places: at, count, .. } in &report.findings {
        assert_eq!(at.len(), *count, "{report:?}");
        places.entry(check).or_default().extend(at.iter().map(|place| without_line(place)));
    }
    places
}

/// Returns a place without ` (all.yaml:7)`.
fn without_line(place: &str) -> &str {
    place.rsplit_once(" (all.yaml:").map_or(place, |(place, _)| place)
}

/// Returns exit status and report for these objects.
fn examine(objects: &str) -> (i32, DoctorReport) {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("all.yaml"), objects).unwrap();
    let manifests = directory.path().to_str().unwrap();
    doctor(&mut std::process::Command::new(BINARY), &["--manifests", manifests])
}

/// Two pods of `x`, one of `y`, and a name server; a Service `x/web` that maps 80 to the pods' 8080.
const CLUSTER: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: x}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: 'y'}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: x, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c, ports: [{name: http, containerPort: 8080}, {name: dns, containerPort: 53, protocol: UDP}]}]}
status: {podIP: 10.0.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: silent, namespace: x, labels: {app: silent}}
spec: {nodeName: n1, containers: [{name: c}]}
status: {podIP: 10.0.0.2}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: 'y', labels: {app: client}}
spec: {nodeName: n2, containers: [{name: c}]}
status: {podIP: 10.0.0.3}
---
apiVersion: v1
kind: Pod
metadata: {name: dns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec: {nodeName: n2, containers: [{name: c, ports: [{name: dns, containerPort: 53, protocol: UDP}]}]}
status: {podIP: 10.0.0.4}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: x}, spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: x, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [\"10.0.0.1\"]}]
---
";

/// Returns a policy of `x` with a spec.
fn policy(name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}, \
         namespace: x}}, spec: {{{spec}}}}}\n---\n"
    )
}

/// Returns the checks that these policies of the cluster fail, with the places.
fn of(policies: &[String]) -> Vec<(String, String)> {
    let (status, report) = examine(&format!("{CLUSTER}{}", policies.concat()));
    let is_wrong = |finding: &Finding| finding.severity != Severity::Info;
    assert_eq!(status, i32::from(report.findings.iter().any(is_wrong)), "{report:?}");
    assert!(report.unknown.is_empty(), "{report:?}");
    let all = places(&report).into_iter();
    all.flat_map(|(check, places)| {
        places.into_iter().map(move |place| (check.to_owned(), place.to_owned()))
    })
    .collect()
}

fn one(spec: &str) -> Vec<(String, String)> {
    of(&[policy("p", spec)])
}

fn found(check: &str, place: &str) -> Vec<(String, String)> {
    vec![(check.to_owned(), place.to_owned())]
}

#[test]
fn what_cannot_be_told() {
    let (status, report) = examine(&policy("p", "podSelector: {matchLabels: {app: web}}"));
    assert_eq!((status, report.findings.len(), report.unknown.len()), (2, 0, 1), "{report:?}");
    let empty = tempfile::tempdir().unwrap();
    let manifests = empty.path().to_str().unwrap();
    let (status, report) =
        doctor(&mut std::process::Command::new(BINARY), &["--manifests", manifests]);
    assert_eq!((status, report.findings.len(), report.unknown.len()), (2, 0, 1), "{report:?}");
    let output = std::process::Command::new(BINARY)
        .args(["doctor", "--manifests", "/none"])
        .env_clear()
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--manifests /none"));
}
