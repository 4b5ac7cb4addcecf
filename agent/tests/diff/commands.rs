//! Inputs, outputs and exit statuses of the command.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

const CLUSTER: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: billing}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 192.168.0.1}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, status: {addresses: [{type: InternalIP, address: 192.168.0.2}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: web-5f6-aaaaa, namespace: shop, labels: {app: web, pod-template-hash: 5f6}}
spec: {nodeName: n1}
status: {podIP: 10.0.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: web-5f6-bbbbb, namespace: shop, labels: {app: web, pod-template-hash: 5f6}}
spec: {nodeName: n2}
status: {podIP: 10.0.0.2}
---
apiVersion: v1
kind: Pod
metadata: {name: db-0, namespace: billing, labels: {app: db}}
spec: {nodeName: n1, containers: [{name: db, ports: [{name: sql, containerPort: 5432}]}]}
status: {podIP: 10.0.0.3}
";

fn policy(port: &str, block: &str) -> String {
    format!(
        "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {{name: db, namespace: billing}}
spec:
  podSelector: {{matchLabels: {{app: db}}}}
  ingress:
  - from: [{{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: shop}}}}}}]
    ports: [{{port: {port}}}]
  - from: [{{ipBlock: {{cidr: {block}}}}}]
"
    )
}

pub(crate) fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = TempDir::new().unwrap();
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub(crate) fn diff(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netpold"));
    command.arg("diff").args(args).env_clear().output().unwrap()
}

#[track_caller]
fn prints(args: &[&str], status: i32, expected: &str) {
    let output = diff(args);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    assert_eq!(output.status.code(), Some(status));
}

#[test]
fn two_directories() {
    let before = policy("sql", "172.16.0.0/12");
    let after = policy("6432", "172.16.0.0/13");
    let before = directory(&[("cluster.yaml", CLUSTER), ("db.yaml", &before)]);
    let after = directory(&[("cluster.yaml", CLUSTER), ("db.yaml", &after)]);
    let directories = ["--from", text(before.path()), "--to", text(after.path())];
    let with = |more: &[&'static str]| [&directories[..], more].concat();
    prints(
        &directories,
        1,
        "shop/web -> billing/db-0: loses TCP 5432, gains TCP 6432\n\
         172.16.0.0/12 without 172.16.0.0/13 -> billing/db-0: loses everything\n\
         cut: 2 pairs, opened: 1 pair\n",
    );
    prints(
        &with(&["-o", "markdown"]),
        1,
        "**Connections: cut: 2 pairs, opened: 1 pair**\n\n\
         | From | To | Loses | Gains |\n|---|---|---|---|\n\
         | shop/web | billing/db-0 | TCP 5432 | TCP 6432 |\n\
         | 172.16.0.0/12 without 172.16.0.0/13 | billing/db-0 | everything |  |\n",
    );
    prints(
        &with(&["-o", "mermaid"]),
        1,
        "flowchart LR\n  n0[\"billing/db-0\"]\n  n1[\"shop/web\"]\n  \
         n5[\"172.16.0.0/12 without 172.16.0.0/13\"]\n  \
         n1 -.->|\"loses TCP 5432\"| n0\n  n1 -->|\"gains TCP 6432\"| n0\n  \
         n5 -.->|\"loses everything\"| n0\n",
    );
    let output = diff(&with(&["-o", "json"]));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let every = |protocol| json!({ "protocol": protocol, "first": 1, "last": 65535 });
    let expected = json!({
        "cut": 2,
        "opened": 1,
        "open": [],
        "isolated": [],
        "gone": [],
        "new": [],
        "compared": 2,
        "not_compared": [],
        "templates": [],
        "changes": [
            {
                "from": { "kind": "workload", "name": "shop/web" },
                "to": { "kind": "workload", "name": "billing/db-0" },
                "loses": [{ "protocol": "TCP", "first": 5432, "last": 5432 }],
                "gains": [{ "protocol": "TCP", "first": 6432, "last": 6432 }],
                "some": false,
            },
            {
                "from": { "kind": "outside", "block": "172.16.0.0/12", "without": ["172.16.0.0/13"] },
                "to": { "kind": "workload", "name": "billing/db-0" },
                "loses": [every("TCP"), every("UDP"), every("SCTP"), { "protocol": "other" }],
                "gains": [],
                "some": false,
            },
        ],
    });
    assert_eq!(document, expected);
    let back = ["--from", text(after.path()), "--to", text(after.path())];
    prints(&back, 0, "no connection is cut or opened\n");
}

#[test]
fn what_fails_is_chosen() {
    let policy = policy("sql", "172.16.0.0/12");
    let before = directory(&[("cluster.yaml", CLUSTER)]);
    let after = directory(&[("cluster.yaml", CLUSTER), ("db.yaml", &policy)]);
    let status = |from: &TempDir, to: &TempDir, kind: &str| {
        let (from, to) = (text(from.path()), text(to.path()));
        diff(&["--from", from, "--to", to, "--fail-on", kind]).status.code()
    };
    for (kind, cut, opened) in [("cut", 1, 0), ("open", 0, 1), ("any", 1, 1)] {
        assert_eq!(status(&before, &after, kind), Some(cut), "{kind}");
        assert_eq!(status(&after, &before, kind), Some(opened), "{kind}");
    }
}

#[test]
fn manifests_are_applied_and_deleted() {
    let policy = policy("sql", "172.16.0.0/12");
    let with = directory(&[("cluster.yaml", CLUSTER), ("db.yaml", &policy)]);
    let without = directory(&[("cluster.yaml", CLUSTER)]);
    let [with, without] = [&with, &without].map(|directory| text(directory.path()));
    let one = format!("{with}/db.yaml");
    let few = directory(&[("db.yaml", &policy)]);
    let expected = "ISOLATED: billing/db-0: billing/db isolates its ingress\n\
        shop/web -> billing/db-0: loses TCP 1-5431,5433-65535, every UDP port, every SCTP port, ICMP and other protocols\n\
        other nodes, anywhere else outside -> billing/db-0: loses everything\n\
        cut: 3 pairs, opened: 0 pairs\n";
    for file in [&one[..], text(few.path())] {
        prints(&["--manifests", without, "-f", file], 1, expected);
    }
    prints(&["--manifests", with, "-f", &one], 0, "no connection is cut or opened\n");
    let opened = expected
        .replace(
            "ISOLATED: billing/db-0: billing/db isolates its ingress",
            "OPEN: billing/db-0: no policy isolates its ingress any more, billing/db did",
        )
        .replace("loses", "gains")
        .replace("cut: 3 pairs, opened: 0", "cut: 0 pairs, opened: 3");
    prints(&["--manifests", with, "-f", &one, "--delete"], 1, &opened);
    let namespace =
        directory(&[("n.yaml", "{apiVersion: v1, kind: Namespace, metadata: {name: billing}}")]);
    prints(
        &["--manifests", with, "-f", text(namespace.path()), "--delete"],
        2,
        "no connection is cut or opened among those compared\n\
         gone, so not compared: billing/db-0 (ingress isolated by billing/db)\n",
    );
}

#[test]
fn bad_input_is_named() {
    let good = directory(&[("cluster.yaml", CLUSTER)]);
    let bad = directory(&[("bad.yaml", "kind: [\n")]);
    let [good, bad] = [&good, &bad].map(|directory| text(directory.path()));
    let refused = |args: &[&str], message: &str| {
        let output = diff(args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(message), "{message:?} is not in {said:?}");
        assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(2), true), "{said}");
    };
    refused(&["--from", good, "--to", bad], &format!("{bad}: incomplete without bad.yaml"));
    refused(&["--from", good, "--to", "/none"], "/none: No such file or directory");
    refused(&["--from", good], "--to <DIR>");
    refused(&["--manifests", good], "--file <FILE|DIR>");
    refused(&["--manifests", good, "-f", "/none"], "cannot read /none: No such file");
    refused(
        &["--manifests", good, "-f", &format!("{bad}/bad.yaml")],
        "/bad.yaml:1: unclosed bracket",
    );
    refused(&["--from", good, "--to", good, "--fail-on", "some"], "cut, open, any");
    refused(&[], "--file <FILE|DIR>");
    refused(
        &["-f", &format!("{good}/cluster.yaml")],
        "no source of objects: give --manifests <DIR>",
    );
}
