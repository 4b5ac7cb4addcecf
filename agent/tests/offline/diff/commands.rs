//! Inputs, outputs and exit statuses of `netpold diff`.

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
         n5 -.->|\"loses everything\"| n0\n  \
         %% cut: 2 pairs, opened: 1 pair\n",
    );
    let output = diff(&with(&["-o", "json"]));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let every = |protocol| json!({ "protocol": protocol, "first": 1, "last": 65535 });
    let expected = json!({
        "cut": 2,
        "opened": 1,
        "open": [],
        "isolated": [],
        "host_network": [],
        "gone": [],
        "new": [],
        "compared": 2,
        "not_compared": [],
        "templates": [],
        "notes": [],
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
fn fail_on_selects_the_changes_that_fail() {
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

const FOREIGN: &str =
    "{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: c, namespace: shop}}\n";

#[test]
fn a_change_without_objects_is_an_error() {
    let cluster = directory(&[("cluster.yaml", CLUSTER)]);
    let nested = directory(&[(".hidden.yaml", "kind: X"), ("notes.txt", "kind: Y")]);
    fs::create_dir(nested.path().join("inner")).unwrap();
    fs::write(nested.path().join("inner/a.yaml"), CLUSTER).unwrap();
    let kustomized =
        directory(&[("kustomization.yaml", "kind: Kustomization"), ("a.yaml", CLUSTER)]);
    let empty = directory(&[]);
    let files = directory(&[
        ("empty.yaml", ""),
        ("comments.yaml", "# nothing\n---\n# more\n"),
        ("foreign.yaml", &format!("{FOREIGN}---\n{{apiVersion: v1, kind: ConfigMap}}\n")),
        ("chart.yaml", "metadata: {name: {{ .Release.Name }}\n"),
    ]);
    let [nested, kustomized, empty, files] =
        [&nested, &kustomized, &empty, &files].map(|directory| text(directory.path()));
    let nothing = "no object that policies depend on";
    for (path, message) in [
        (format!("{files}/empty.yaml"), format!("empty.yaml: {nothing}\n")),
        (format!("{files}/comments.yaml"), format!("comments.yaml: {nothing}\n")),
        (
            format!("{files}/foreign.yaml"),
            format!("{nothing} (2 of other kinds: CiliumNetworkPolicy, ConfigMap)\n"),
        ),
        (empty.to_owned(), format!("-f {empty}: {nothing}\n")),
        (
            nested.to_owned(),
            format!(
                "{nothing} ({nested}: subdirectory not read: inner (1 file); -R reads them, too)\n"
            ),
        ),
        (
            kustomized.to_owned(),
            format!(
                "kustomization.yaml is not rendered: kubectl kustomize {kustomized} | netpold diff ... -f -\n"
            ),
        ),
        (
            format!("{files}/chart.yaml"),
            "; it looks like a template: helm template renders it\n".to_owned(),
        ),
    ] {
        let output = diff(&["--manifests", text(cluster.path()), "-f", &path]);
        let printed = String::from_utf8(output.stderr).unwrap();
        assert!(printed.ends_with(&message), "{message:?} is not in {printed:?}");
        assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(2), true), "{printed}");
    }
}

#[test]
fn parts_of_a_change_without_effect_are_named() {
    let policy = policy("sql", "172.16.0.0/12");
    let elsewhere = policy.replace("namespace: billing", "namespace: biling");
    let on_trial = policy.replace(
        "namespace: billing}",
        "namespace: billing, annotations: {netpold.io/enforcement: audit}}",
    );
    let cluster = directory(&[("cluster.yaml", CLUSTER)]);
    let none = "no connection is cut or opened\n";
    let part = "no connection is cut or opened among those compared\n";
    for (change, further, status, expected) in [
        (
            &elsewhere,
            None,
            0,
            format!(
                "{none}in a namespace without an object and without pods, so without effect: NetworkPolicy biling/db\n"
            ),
        ),
        (
            &on_trial,
            None,
            0,
            format!("{none}on trial, so without effect on connections: NetworkPolicy billing/db\n"),
        ),
        (
            &policy,
            Some("--delete"),
            2,
            format!(
                "{part}not compared: NetworkPolicy billing/db: it is not among the objects, so not deleted\n"
            ),
        ),
        (
            &format!("{on_trial}---\n{FOREIGN}"),
            None,
            2,
            format!(
                "{part}not compared: not enforced by netpold, and not part of this answer: CiliumNetworkPolicy shop/c\n\
                 on trial, so without effect on connections: NetworkPolicy billing/db\n"
            ),
        ),
    ] {
        let change = directory(&[("change.yaml", change)]);
        let arguments = ["--manifests", text(cluster.path()), "-f", text(change.path())];
        let further: Vec<&str> = further.into_iter().collect();
        prints(&[&arguments[..], &further].concat(), status, &expected);
    }
    // An object that cannot be decoded is not applied.
    let wrong = CLUSTER.replace("labels: {app: db}", "labels: {app: 5}");
    let change = directory(&[("change.yaml", &wrong)]);
    let output = diff(&["--manifests", text(cluster.path()), "-f", text(change.path())]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("Pod billing/db-0: metadata.labels.app: is integer `5`"), "{printed}");
    assert_eq!(output.status.code(), Some(2));
    let foreign = directory(&[("cluster.yaml", CLUSTER), ("foreign.yaml", FOREIGN)]);
    let both = ["--from", text(foreign.path()), "--to", text(foreign.path())];
    prints(
        &both,
        0,
        &format!(
            "{none}not enforced by netpold, and not part of this answer: CiliumNetworkPolicy shop/c\n"
        ),
    );
}

#[test]
fn errors_are_one_line_without_escapes() {
    let good = directory(&[("cluster.yaml", CLUSTER)]);
    let name = format!("{}/\u{1b}[2J\nno connection is cut or opened", text(good.path()));
    let output = diff(&["--manifests", text(good.path()), "-f", &name]);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!((printed.lines().count(), printed.contains('\u{1b}')), (1, false), "{printed:?}");
}

#[test]
fn a_shortened_list_names_addresses_outside() {
    let pods = ["a", "b", "c", "d", "e", "f"].map(|name| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, labels: {{app: {name}}}}}, \
             status: {{podIP: 10.0.0.{}}}}}\n",
            name.as_bytes()[0]
        )
    });
    let cluster = CLUSTER.to_owned() + &pods.concat();
    let closed = "---\n{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: closed, namespace: \
                  billing}, spec: {podSelector: {}}}\n";
    let before = directory(&[("all.yaml", &(cluster.clone() + closed))]);
    let after = directory(&[("all.yaml", &cluster)]);
    let output = diff(&["--from", text(before.path()), "--to", text(after.path())]);
    let printed = String::from_utf8(output.stdout).unwrap();
    let few = printed.lines().find(|line| line.contains(" more -> ")).unwrap();
    assert!(few.starts_with("outside, "), "{printed}");
}

/// A policy that cannot be read seems to open its pods: the exit status shows an incomplete comparison, not a
/// difference.
#[test]
fn a_document_that_cannot_be_read_is_not_compared() {
    let good = directory(&[("cluster.yaml", CLUSTER)]);
    let bad = directory(&[("bad.yaml", "kind: [\n"), ("cluster.yaml", CLUSTER)]);
    for (from, to) in [(&good, &bad), (&bad, &good), (&bad, &bad)] {
        let output = diff(&["--from", text(from.path()), "--to", text(to.path())]);
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(2), "{printed}");
        let named = format!("not compared: {}/bad.yaml:1: ", text(bad.path()));
        assert!(printed.contains(&named), "{printed}");
    }
    let policy = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: closed, namespace: shop}, spec: \
                  {podSelector: {}}}\n";
    let closed = directory(&[("cluster.yaml", CLUSTER), ("policy.yaml", policy)]);
    let slip = policy.replace("}}}", "}");
    let slipped = directory(&[("cluster.yaml", CLUSTER), ("policy.yaml", &slip)]);
    let output = diff(&["--from", text(closed.path()), "--to", text(slipped.path())]);
    assert_eq!(output.status.code(), Some(2));
    // The other documents of an applied file count.
    let applied = directory(&[("new.yaml", &format!("kind: [\n---\n{policy}"))]);
    let file = applied.path().join("new.yaml");
    let output = diff(&["--manifests", text(good.path()), "-f", text(&file)]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(printed.contains("new.yaml:1: ") && printed.contains("cut: "), "{printed}");
}

#[test]
fn bad_input_is_named() {
    let good = directory(&[("cluster.yaml", CLUSTER)]);
    let bad = directory(&[("bad.yaml", "kind: [\n")]);
    let [good, bad] = [&good, &bad].map(|directory| text(directory.path()));
    let refused = |args: &[&str], message: &str| {
        let output = diff(args);
        let printed = String::from_utf8(output.stderr).unwrap();
        assert!(printed.contains(message), "{message:?} is not in {printed:?}");
        assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(2), true), "{printed}");
    };
    refused(&["--from", good, "--to", "/none"], "/none: No such file or directory");
    refused(&["--from", good], "--to <DIR>");
    refused(&["--manifests", good], "--file <FILE|DIR>");
    refused(&["--manifests", good, "-f", "/none"], "cannot read /none: No such file");
    refused(&["--manifests", good, "-f", &format!("{bad}/bad.yaml")], "no object can be read: ");
    refused(&["--from", good, "--to", good, "--fail-on", "some"], "cut, open, any");
    let both = ["--from", good, "--to", good, "-f", good];
    refused(&both, "the argument '--from <DIR>' cannot be used with '--file <FILE|DIR>'");
    refused(&[], "--file <FILE|DIR>");
    refused(
        &["-f", &format!("{good}/cluster.yaml")],
        "no source of objects: give --manifests <DIR>",
    );
}
