//! Presets of `init` over a cluster: nothing changes in audit mode; enforced, their assertions hold and doctor finds
//! nothing.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

const CLUSTER: &str = r#"
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}
- {apiVersion: v1, kind: Namespace, metadata: {name: shop}}
- {apiVersion: v1, kind: Namespace, metadata: {name: billing}}
- {apiVersion: v1, kind: Namespace, metadata: {name: monitoring, labels: {shared-services: "true"}}}
- apiVersion: v1
  kind: Pod
  metadata: {namespace: monitoring, name: metrics, labels: {app: metrics}}
  spec: {nodeName: oak, containers: [{name: metrics}]}
  status: {phase: Running, podIPs: [{ip: 10.244.1.5}, {ip: "fd00:244::5"}]}
- apiVersion: v1
  kind: Node
  metadata: {name: oak}
  status: {addresses: [{type: InternalIP, address: 172.18.0.2}]}
- apiVersion: v1
  kind: Pod
  metadata: {namespace: kube-system, name: coredns-1, labels: {k8s-app: kube-dns}}
  spec:
    nodeName: oak
    containers:
    - name: coredns
      ports: [{containerPort: 53, protocol: UDP}, {containerPort: 53, protocol: TCP}, {containerPort: 9153}]
  status: {phase: Running, podIPs: [{ip: 10.244.1.2}, {ip: "fd00:244::2"}]}
- apiVersion: v1
  kind: Service
  metadata: {namespace: kube-system, name: kube-dns}
  spec:
    clusterIP: 10.96.0.10
    clusterIPs: [10.96.0.10]
    selector: {k8s-app: kube-dns}
    ports: [{name: dns, protocol: UDP, port: 53}, {name: dns-tcp, protocol: TCP, port: 53}]
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {namespace: kube-system, name: kube-dns-1, labels: {kubernetes.io/service-name: kube-dns}}
  addressType: IPv4
  endpoints:
  - {addresses: [10.244.1.2], conditions: {ready: true}, targetRef: {kind: Pod, namespace: kube-system, name: coredns-1}}
  ports: [{name: dns, protocol: UDP, port: 53}, {name: dns-tcp, protocol: TCP, port: 53}]
- apiVersion: v1
  kind: Pod
  metadata: {namespace: shop, name: web, labels: {app: web}}
  spec: {nodeName: oak, containers: [{name: web, ports: [{containerPort: 80}]}]}
  status: {phase: Running, podIPs: [{ip: 10.244.1.3}, {ip: "fd00:244::3"}]}
- apiVersion: v1
  kind: Pod
  metadata: {namespace: billing, name: db, labels: {app: db}}
  spec: {nodeName: oak, containers: [{name: db, ports: [{containerPort: 80}]}]}
  status: {phase: Running, podIPs: [{ip: 10.244.1.4}, {ip: "fd00:244::4"}]}
"#;

/// Isolates the pods of a namespace in both directions.
const DENIAL: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: billing, name: default-deny}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
";

const PRESETS: [&str; 5] = ["default-deny", "dns", "metadata", "sandbox", "tenant"];

/// Runs a command. Returns its exit status and its output.
fn netpold(arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-netpold"));
    let output = command.args(arguments).env_clear().output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

fn init(preset: &str, further: &[&str]) -> String {
    let arguments = [&["init", "--preset", preset, "-n", "shop"], further].concat();
    let (status, text) = netpold(&arguments);
    assert_eq!(status, 0, "{text}");
    text
}

/// Writes a file. Returns its path.
fn written(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Returns a folder with the objects of the cluster, in `cluster/`, and its path.
fn cluster(objects: &[&str]) -> (TempDir, String) {
    let folder = TempDir::new().unwrap();
    let manifests = folder.path().join("cluster");
    fs::create_dir(&manifests).unwrap();
    for (number, objects) in objects.iter().enumerate() {
        written(&manifests, &format!("{number}.yaml"), objects);
    }
    (folder, manifests.to_str().unwrap().to_owned())
}

#[test]
fn presets_in_audit_mode_change_no_verdict() {
    let (folder, manifests) = cluster(&[CLUSTER]);
    for preset in PRESETS {
        let text = init(preset, &[]);
        let policies = text.matches("kind: ").count();
        assert_eq!(text.matches("    netpold.io/enforcement: audit").count(), policies, "{preset}");
        let file = written(folder.path(), "audited.yaml", &text);
        let (status, shown) = netpold(&["diff", "--manifests", &manifests, "-f", &file]);
        assert_eq!(status, 0, "{preset}: {shown}");
    }
}

#[test]
fn assertions_hold_with_the_enforced_preset_and_not_without() {
    let (folder, manifests) = cluster(&[CLUSTER, DENIAL]);
    for preset in PRESETS {
        let assertions =
            written(folder.path(), "assertions.yaml", &init(preset, &["--assertions"]));
        let without = netpold(&["test", "-f", &assertions, "--manifests", &manifests]);
        // Assertions of the preset `tenant` name no other namespace.
        assert_eq!(without.0, i32::from(preset != "tenant"), "{preset}: {}", without.1);
        let enforced = init(preset, &["--enforce"]);
        assert!(!enforced.contains("annotations"), "{enforced}");
        let enforced = written(folder.path(), "enforced.yaml", &enforced);
        let files = format!("{assertions},{enforced}");
        let (status, shown) = netpold(&["test", "-f", &files, "--manifests", &manifests]);
        assert_eq!(status, 0, "{preset}: {shown}");
    }
}

#[test]
fn tenants_are_isolated_from_each_other_and_reach_outside() {
    let (folder, manifests) = cluster(&[CLUSTER, &init("tenant", &["--enforce"])]);
    let explain = |from: &str, to: &str| {
        netpold(&["explain", "--manifests", &manifests, "--from", from, "--to", to, "--port", "80"])
            .0
    };
    assert_eq!(explain("shop/web", "billing/db"), 1);
    assert_eq!(explain("billing/db", "shop/web"), 1);
    assert_eq!(explain("shop/web", "203.0.113.7"), 0);
    for shared in ["kube-system/coredns-1", "monitoring/metrics"] {
        assert_eq!(explain(shared, "shop/web"), 0, "{shared}");
    }
    drop(folder);
}

#[test]
fn doctor_finds_nothing_wrong_with_presets() {
    for preset in PRESETS {
        let (_folder, manifests) = cluster(&[CLUSTER, &init(preset, &["--enforce"])]);
        let (status, shown) = netpold(&["doctor", "--manifests", &manifests]);
        assert_eq!(status, 0, "{preset}: {shown}");
    }
}

#[test]
fn the_namespace_of_the_dns_is_not_closed() {
    for preset in ["default-deny", "sandbox", "tenant"] {
        let arguments = ["init", "--preset", preset, "-n", "kube-system"];
        let (status, shown) = netpold(&[&arguments[..], &["--enforce"]].concat());
        assert!(status == 1 && !shown.contains("apiVersion"), "{shown}");
        let (status, shown) = netpold(&arguments);
        assert_eq!(status, 0, "{shown}");
        let warning = "netpold: the cluster's DNS is in kube-system: ";
        assert!(shown.contains(warning) && shown.contains("apiVersion"), "{shown}");
        let (status, shown) = netpold(&[&arguments[..], &["--assertions"]].concat());
        assert!(status == 0 && !shown.contains(warning), "{shown}");
    }
}

#[test]
fn assertions_of_presets_hold_in_clusters_of_one_family() {
    let six = |number: u8| format!(", {{ip: \"fd00:244::{number}\"}}");
    let four = (2..=5).fold(CLUSTER.to_owned(), |text, number| text.replace(&six(number), ""));
    assert!(!four.contains("fd00"), "{four}");
    let (folder, manifests) = cluster(&[&four]);
    for preset in PRESETS {
        let assertions =
            written(folder.path(), "assertions.yaml", &init(preset, &["--assertions"]));
        let enforced = written(folder.path(), "enforced.yaml", &init(preset, &["--enforce"]));
        let files = format!("{assertions},{enforced}");
        let (status, shown) = netpold(&["test", "-f", &files, "--manifests", &manifests]);
        assert_eq!(status, 0, "{preset}: {shown}");
        assert_eq!(shown.contains(" 3 skipped\n"), preset == "metadata", "{shown}");
    }
}

#[test]
fn names_that_no_namespace_has_are_refused() {
    for name in ["", "Shop", "a\nb", "-a", "a/b", &"a".repeat(64)] {
        let (status, shown) = netpold(&["init", "--preset", "sandbox", "-n", name]);
        assert!(status != 0 && !shown.contains("apiVersion"), "{name}: {shown}");
    }
}
