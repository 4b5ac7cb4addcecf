//! `netpold doctor`: what it finds in objects and on a node, and its exit statuses.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Output;

use netpold::doctor::{Finding, Report, Severity};
use netpold_testbed::{Cni, Node, require_root, without_twins};

const BINARY: &str = env!("CARGO_BIN_EXE_netpold");

fn doctor(command: &mut std::process::Command, arguments: &[&str]) -> (i32, Report) {
    let command = without_twins(command).args(["doctor", "-o", "json"]).args(arguments);
    let output = command.output().unwrap();
    (output.status.code().unwrap(), report(&output))
}

fn report(output: &Output) -> Report {
    assert!(!output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Places by check.
fn places(report: &Report) -> BTreeMap<&str, Vec<&str>> {
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Finding { check, places: at, count, .. } in &report.findings {
        assert_eq!(at.len(), *count, "{report:?}");
        places.entry(check).or_default().extend(at.iter().map(String::as_str));
    }
    places
}

/// What is found among these objects.
fn examine(objects: &str) -> (i32, Report) {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("all.yaml"), objects).unwrap();
    let manifests = directory.path().to_str().unwrap();
    doctor(&mut std::process::Command::new(BINARY), &["--manifests", manifests])
}

/// Two pods of `x`, one of `y`, and a name server; a Service `x/web` from 80 to the pods' 8080.
const CLUSTER: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: x}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: y}}
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
metadata: {name: client, namespace: y, labels: {app: client}}
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

/// A policy of `x` with a spec.
fn policy(name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}, \
         namespace: x}}, spec: {{{spec}}}}}\n---\n"
    )
}

/// The checks that these policies of the cluster fail, with the places.
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
fn selectors_that_nothing_is() {
    let web = "podSelector: {matchLabels: {app: web}}";
    assert_eq!(one(web), []);
    assert_eq!(
        one("podSelector: {matchLabels: {app: wbe}}"),
        found("selects-nothing", "NetworkPolicy x/p: pods app=wbe")
    );
    // The client is in another namespace: alone, a podSelector is of the policy's own.
    let peer = |peer: &str| format!("{web}, ingress: [{{from: [{{podSelector: {{}}}}, {peer}]}}]");
    assert_eq!(
        one(&peer("{podSelector: {matchLabels: {app: client}}}")),
        found(
            "peer-without-pods",
            "NetworkPolicy x/p: spec.ingress[0].from[1]: pods app=client of this namespace"
        )
    );
    let namespaced = "{podSelector: {matchLabels: {app: client}}, namespaceSelector: {}}";
    assert_eq!(one(&peer(namespaced)), []);
    assert_eq!(
        one(&peer("{namespaceSelector: {matchLabels: {team: a}}}")),
        found(
            "peer-without-pods",
            "NetworkPolicy x/p: spec.ingress[0].from[1]: every pod of namespaces team=a"
        )
    );
    let block = "{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/9, 10.128.0.0/9]}}";
    assert_eq!(
        one(&peer(block)),
        found("except-covers-block", "NetworkPolicy x/p: spec.ingress[0].from[1]: 10.0.0.0/8")
    );
    assert_eq!(one(&peer("{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/9]}}")), []);
    let elsewhere = policy("p", "podSelector: {}").replace("namespace: x", "namespace: z");
    assert_eq!(of(&[elsewhere]), found("namespace-without-pods", "NetworkPolicy z/p"));
    let [(check, place)] = &one(&peer("{}"))[..] else { panic!("one finding") };
    assert_eq!(check, "not-understood");
    assert!(place.starts_with("NetworkPolicy x/p: spec.ingress[0].from[1]: needs "), "{place}");
}

#[test]
fn ports_that_no_container_has() {
    let ingress = |port: &str| {
        format!("podSelector: {{matchLabels: {{app: web}}}}, ingress: [{{ports: [{port}]}}]")
    };
    let at = "NetworkPolicy x/p: spec.ingress[0].ports[0]:";
    assert_eq!(one(&ingress("{port: http}, {port: dns, protocol: UDP}")), []);
    assert_eq!(
        one(&ingress("{port: htpp}")),
        found("port-name-absent", &format!("{at} htpp (TCP)"))
    );
    assert_eq!(
        one(&ingress("{port: dns}")),
        found("port-name-of-other-protocol", &format!("{at} dns (TCP), in the containers UDP"))
    );
    assert_eq!(one(&ingress("{port: 8080}, {port: 53, protocol: UDP}")), []);
    assert_eq!(one(&ingress("{port: 8000, endPort: 9000}")), []);
    assert_eq!(
        one(&ingress("{port: 9090}")),
        found("port-not-listed", &format!("{at} TCP 9090 (Pod x/web)"))
    );
    // The Service's, with and without the port that packets have behind it.
    assert_eq!(
        one(&ingress("{port: 80}")),
        found(
            "port-of-the-service",
            &format!("{at} TCP 80, Service x/web, whose pods get it at 8080")
        )
    );
    assert_eq!(
        one(&ingress("{port: 80}, {port: 8080}")),
        found("port-not-listed", &format!("{at} TCP 80 (Pod x/web)"))
    );
    // Of pods that list no port nothing is known.
    assert_eq!(one("podSelector: {}, ingress: [{ports: [{port: 9090}]}]"), []);
    let egress = |to: &str, port: &str| {
        format!(
            "podSelector: {{}}, policyTypes: [Egress], egress: [{{to: [{to}], ports: [{port}]}}, \
             {{ports: [{{port: 53, protocol: UDP}}]}}]"
        )
    };
    let web = "{podSelector: {matchLabels: {app: web}}}";
    assert_eq!(one(&egress(web, "{port: 8080}")), []);
    assert_eq!(
        one(&egress(web, "{port: 80}")),
        found(
            "port-of-the-service",
            "NetworkPolicy x/p: spec.egress[0].ports[0]: TCP 80, Service x/web, whose pods get it at 8080"
        )
    );
    assert_eq!(one(&egress("{ipBlock: {cidr: 10.0.0.0/8}}", "{port: 80}")), []);
    assert_eq!(one("podSelector: {}, ingress: [{ports: [{port: nowhere}]}]").len(), 1);
}

#[test]
fn ports_of_services_that_no_container_has() {
    let with = |app: &str, port: &str| {
        let service = format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: s, namespace: x}}, spec: {{clusterIP: \
             10.96.0.2, selector: {{app: {app}}}, ports: [{port}]}}}}\n---\n"
        );
        of(&[service])
    };
    let at = |place: &str| format!("Service x/s: port 80, targetPort {place}; Pod x/web");
    for (port, check, place) in [
        ("{port: 80, targetPort: htpp}", "target-port-absent", "htpp (TCP)"),
        ("{port: 80, targetPort: dns}", "target-port-absent", "dns (TCP)"),
        ("{port: 80}", "target-port-not-listed", "80 (TCP)"),
        ("{port: 80, targetPort: 8080, protocol: UDP}", "target-port-not-listed", "8080 (UDP)"),
    ] {
        assert_eq!(with("web", port), found(check, &at(place)), "{port}");
    }
    for port in ["{port: 80, targetPort: http}", "{port: 80, targetPort: 8080}", "{port: 8080}"] {
        assert_eq!(with("web", port), [], "{port}");
    }
    assert_eq!(with("silent", "{port: 80, targetPort: 99}"), [], "it lists no port");
    assert_eq!(with("nobody", "{port: 80, targetPort: http}"), [], "there are no such pods");
    assert_eq!(with("client", "{port: 80, targetPort: http}"), [], "it is in another namespace");
}

#[test]
fn pods_that_resolve_no_names() {
    let egress = |rules: &str| {
        format!(
            "podSelector: {{matchLabels: {{app: web}}}}, policyTypes: [Egress], egress: [{rules}]"
        )
    };
    let client = "{to: [{namespaceSelector: {}, podSelector: {matchLabels: {app: client}}}]}";
    let found = found("no-dns", "Pod x/web: NetworkPolicy x/p");
    assert_eq!(one(&egress(client)), found);
    assert_eq!(one(&egress("")), [], "what sends nothing needs no names");
    assert_eq!(one(&egress("{}")), []);
    assert_eq!(one(&egress(&format!("{client}, {{ports: [{{port: 53}}]}}"))), found, "TCP alone");
    assert_eq!(one(&egress(&format!("{client}, {{ports: [{{port: 53, protocol: UDP}}]}}"))), []);
    // Another policy may allow it, to the name server alone.
    let dns = "podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {}, \
               podSelector: {matchLabels: {k8s-app: kube-dns}}}]}]";
    assert_eq!(of(&[policy("p", &egress(client)), policy("dns", dns)]), []);
    // Without one among the objects, any rule for the port may be meant for it.
    let without = CLUSTER.replace("k8s-app: kube-dns", "app: other");
    for (rules, finds) in [
        ("{ports: [{port: 53, protocol: UDP}]}", false),
        (client, false),
        ("{ports: [{port: 80}]}", true),
    ] {
        let (_, report) = examine(&format!("{without}{}", policy("p", &egress(rules))));
        assert_eq!(places(&report).contains_key("no-dns"), finds, "{report:?}");
    }
}

#[test]
fn nodes_enforcers_and_tiers() {
    let agent = "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: netpold-system, labels: \
                 {app.kubernetes.io/name: netpold}}, spec: {nodeName: n1, hostNetwork: true}}\n---\n";
    let node =
        |name: &str| format!("{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}}}\n---\n");
    let set = |name: &str, image: &str| {
        format!(
            "{{apiVersion: apps/v1, kind: DaemonSet, metadata: {{name: {name}, namespace: k}}, spec: \
             {{template: {{spec: {{containers: [{{image: '{image}'}}]}}}}}}}}\n---\n"
        )
    };
    let tier = |name: &str, tier: &str, priority: u16| {
        format!(
            "{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: \
             {{name: {name}}}, spec: {{tier: {tier}, priority: {priority}, subject: {{namespaces: {{}}}}, \
             egress: [{{action: Deny, to: [{{nodes: {{matchLabels: {{os: none}}}}}}]}}]}}}}\n---\n"
        )
    };
    let objects = [
        CLUSTER.to_owned(),
        node("n1"),
        node("n2"),
        set("kindnet", "kindnetd:v1"),
        set("mine", "quay.io/calico/node:v3.32.0"),
        set("aws-node", "amazon-k8s-cni:v1"),
        tier("a", "Admin", 10),
        tier("b", "Admin", 10),
        tier("c", "Baseline", 10),
    ]
    .concat();
    let (status, report) = examine(&objects);
    assert_eq!(status, 1);
    let all = places(&report);
    assert_eq!(all["equal-priority"], ["Admin 10: a, b"]);
    assert_eq!(all["peer-without-nodes"].len(), 3);
    assert_eq!(
        all["other-enforcer-deployed"],
        [
            "DaemonSet k/mine (image quay.io/calico/node:v3.32.0)",
            "DaemonSet k/kindnet (image kindnetd:v1)"
        ]
    );
    assert!(!all.contains_key("no-agent"), "manifests need not hold the agents: {report:?}");
    let (_, report) = examine(&format!("{objects}{agent}"));
    assert_eq!(places(&report)["no-agent"], ["Node n2"]);
}

#[test]
fn what_cannot_be_told() {
    let (status, report) = examine(&policy("p", "podSelector: {matchLabels: {app: web}}"));
    assert_eq!((status, report.findings.len(), report.unknown.len()), (2, 0, 1), "{report:?}");
    let output = std::process::Command::new(BINARY)
        .args(["doctor", "--manifests", "/none"])
        .env_clear()
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--manifests /none"));
}

/// A node with traces of other enforcers, and one without.
#[test]
fn other_enforcers_on_a_node() {
    require_root!();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("none");
    let bpffs = directory.path().join("bpf");
    let arguments = ["--socket", socket.to_str().unwrap(), "--bpffs", bpffs.to_str().unwrap()];
    let node = Node::new("doctor", Cni::Ptp, "10.9.1.0/24", "fd00:9:1::/64").unwrap();
    let (status, report) = doctor(&mut node.command(BINARY).unwrap(), &arguments);
    assert_eq!(status, 1);
    let clean = places(&report);
    assert_eq!(clean["agent"].len(), 1, "{report:?}");
    assert_eq!(clean["bpffs"], [bpffs.to_str().unwrap()]);
    assert!(!clean.contains_key("other-enforcer"), "{report:?}");
    assert!(!clean.contains_key("kernel"), "{report:?}");
    assert!(report.unknown.is_empty(), "{report:?}");

    let run = |program: &str, arguments: &[&str]| {
        let done = node.command(program).unwrap().args(arguments).output().unwrap();
        assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
    };
    run("nft", &["add", "table", "inet", "kindnet-network-policies"]);
    run("iptables-nft", &["-N", "KUBE-POD-FW-ABCDEF"]);
    run("iptables-legacy", &["-N", "cali-FORWARD"]);
    run("ip6tables-legacy", &["-N", "CILIUM_FORWARD"]);
    run("ip6tables-legacy", &["-N", "MY-cali-FORWARD"]);
    run("ip", &["link", "add", "cilium_host", "type", "veth", "peer", "name", "other"]);
    let shown = node.command(BINARY).unwrap().arg("doctor").args(arguments).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/doctor.md");
    let page = fs::read_to_string(page).unwrap();
    let example =
        page.split("```\n").find(|block| block.starts_with("error: kube-router")).unwrap();
    assert!(shown.contains(example), "{shown}");
    let (_, report) = doctor(&mut node.command(BINARY).unwrap(), &arguments);
    let mut signs = places(&report)["other-enforcer"].clone();
    signs.sort_unstable();
    assert_eq!(
        signs,
        [
            "chain CILIUM_FORWARD of ip6tables table filter",
            "chain KUBE-POD-FW-ABCDEF of nftables table ip filter",
            "chain cali-FORWARD of iptables table filter",
            "device cilium_host",
            "nftables table inet kindnet-network-policies",
        ],
        "{report:?}"
    );
    let whose = report.findings.iter().filter(|finding| finding.check == "other-enforcer");
    assert_eq!(whose.count(), 4, "Calico, Cilium, kindnet, kube-router");
    assert!(Path::new(&bpffs).read_dir().is_err(), "nothing was made");
}
