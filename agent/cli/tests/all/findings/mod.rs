//! Findings of `doctor` about a small cluster, each next to a similar case without a finding.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod explained;

use std::fs;
use std::process::Command;

use netpold_doctor::{DoctorReport, Finding, Severity};
use tempfile::TempDir;

use crate::objects;

/// Pods `app/web` and `app/api`, a name server, and the API server at 192.168.5.11:6443 of node `n1`.
const CLUSTER: &str = "
{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 192.168.5.11}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, status: {addresses: [{type: InternalIP, address: 192.168.5.12}]}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: default}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: app}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: new}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: gone}, status: {phase: Terminating}}
---
apiVersion: v1
kind: Pod
metadata: {namespace: kube-system, name: coredns, labels: {k8s-app: kube-dns}}
spec: {nodeName: n2, containers: [{name: c, ports: [{name: dns, containerPort: 53, protocol: UDP}, {name: dns-tcp, containerPort: 53}]}]}
status: {phase: Running, podIP: 10.244.2.2}
---
apiVersion: v1
kind: Service
metadata: {namespace: kube-system, name: kube-dns}
spec:
  clusterIP: 10.96.0.10
  selector: {k8s-app: kube-dns}
  ports: [{name: dns, port: 53, protocol: UDP, targetPort: 53}, {name: dns-tcp, port: 53, targetPort: 53}]
---
apiVersion: v1
kind: Pod
metadata: {namespace: app, name: web, labels: {app: web}}
spec: {nodeName: n2, containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}
status: {phase: Running, podIP: 10.244.2.5}
---
apiVersion: v1
kind: Pod
metadata: {namespace: app, name: api, labels: {app: api}}
spec: {nodeName: n1, containers: [{name: c, ports: [{name: https, containerPort: 8443}]}]}
status: {phase: Running, podIP: 10.244.1.5}
---
{apiVersion: v1, kind: Service, metadata: {namespace: default, name: kubernetes}, spec: {clusterIP: 10.96.0.1, ports: [{name: https, port: 443, targetPort: 6443}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: kubernetes, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
ports: [{name: https, port: 6443}]
endpoints: [{addresses: [192.168.5.11]}]
";

/// Rule for DNS.
const DNS: &str = "{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: \
                   {matchLabels: {k8s-app: kube-dns}}}], ports: [{protocol: UDP, port: 53}, {port: 53}]}";

fn policy(namespace: &str, name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{namespace: {namespace}, name: {name}}}, \
         spec: {{{spec}}}}}"
    )
}

/// A policy of `app/web` with these egress rules after the one for DNS.
fn egress(rules: &str) -> String {
    let spec = "podSelector: {matchLabels: {app: web}}, policyTypes: [Egress]";
    policy("app", "p", &format!("{spec}, egress: [{DNS}, {rules}]"))
}

/// A policy of `app/api` with these ingress rules.
fn ingress(rules: &str) -> String {
    policy("app", "p", &format!("podSelector: {{matchLabels: {{app: api}}}}, ingress: [{rules}]"))
}

fn folder(objects: &[&str]) -> TempDir {
    objects::folder(&[&[CLUSTER], objects].concat())
}

fn run(arguments: &[&str], folder: &TempDir) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-netpold"));
    command.args(arguments).arg("--manifests").arg(folder.path()).env_clear();
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

/// Returns the findings for the cluster plus these objects.
fn findings(objects: &[&str]) -> Vec<Finding> {
    let (status, text) = run(&["doctor", "-o", "json"], &folder(objects));
    let report: DoctorReport = serde_json::from_str(&text).unwrap();
    let is_wrong = |finding: &Finding| finding.severity != Severity::Info;
    assert_eq!(status, i32::from(report.findings.iter().any(is_wrong)), "{text}");
    report.findings
}

/// Returns severity and name of each finding.
fn found(objects: &[&str]) -> Vec<(Severity, String)> {
    findings(objects).into_iter().map(|finding| (finding.severity, finding.check)).collect()
}

#[track_caller]
fn is_only(objects: &[&str], severity: Severity, check: &str) -> Finding {
    let mut found = findings(objects);
    assert_eq!(found.len(), 1, "{found:#?}");
    let only = found.remove(0);
    assert_eq!((only.severity, &*only.check), (severity, check), "{only:#?}");
    only
}

#[track_caller]
fn is_nothing(objects: &[&str]) {
    assert_eq!(found(objects), []);
}

#[test]
fn a_peer_meant_for_a_service_without_pods_is_a_warning() {
    let of_default = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}}";
    let rule = |ports: &str| egress(&format!("{{to: [{of_default}], ports: [{ports}]}}"));
    for ports in ["{port: 443}", "{port: 6443}", "{port: 443}, {port: 6443}"] {
        let only = is_only(&[&rule(ports)], Severity::Warning, "peer-without-pods");
        let text = "Service default/kubernetes has no pods, its endpoint is node 192.168.5.11:6443";
        assert!(only.places[0].contains(text), "{only:#?}");
        assert!(only.fix.contains("{ipBlock: {cidr: 192.168.5.11/32}}"), "{only:#?}");
        assert!(only.fix.contains("port: 6443"), "{only:#?}");
    }
    // Another port, every port, and endpoints that another rule allows.
    is_only(&[&rule("{port: 5432}")], Severity::Info, "peer-without-pods");
    is_only(&[&egress(&format!("{{to: [{of_default}]}}"))], Severity::Info, "peer-without-pods");
    let block = "{to: [{ipBlock: {cidr: 192.168.5.0/24}}], ports: [{port: 6443}]}";
    let both = egress(&format!("{{to: [{of_default}], ports: [{{port: 443}}]}}, {block}"));
    is_only(&[&both], Severity::Info, "peer-without-pods");
}

#[test]
fn the_name_servers_egress_reaches_the_api_server() {
    let closed = "podSelector: {}, policyTypes: [Egress]";
    let only =
        is_only(&[&policy("kube-system", "d", closed)], Severity::Warning, "dns-server-cut-off");
    let text = "Pod kube-system/coredns: neither to the API server nor to other name servers";
    assert!(only.places[0].starts_with(text), "{only:#?}");
    let with = |rules: &str| policy("kube-system", "d", &format!("{closed}, egress: [{rules}]"));
    let dns = "{ports: [{port: 53, protocol: UDP}]}";
    let only = is_only(&[&with(dns)], Severity::Warning, "dns-server-cut-off");
    assert!(only.places[0].contains(": not to the API server"), "{only:#?}");
    is_nothing(&[&with(&format!("{dns}, {{ports: [{{port: 6443}}]}}"))]);
    is_nothing(&[&with("{}")]);
    // A block of exactly the API server's address; then objects without the API server's endpoints.
    let block = "{to: [{ipBlock: {cidr: 192.168.5.11/32}}], ports: [{port: 6443}]}";
    is_only(&[&with(block)], Severity::Info, "dns-server-cannot-forward");
    is_nothing(&[&with(&format!("{block}, {dns}"))]);
    let without = |policy: &str| {
        let objects = CLUSTER.replace("kind: EndpointSlice", "kind: EndpointSlices");
        let objects = objects.replace("name: kubernetes, labels", "name: none, labels");
        let folder = TempDir::new().unwrap();
        let all = format!("{objects}---\n{policy}\n")
            .replace("namespace: default, name: kubernetes", "namespace: default, name: other");
        fs::write(folder.path().join("all.yaml"), all).unwrap();
        run(&["doctor"], &folder).1.contains("dns-server-cut-off")
    };
    assert!(without(&policy("kube-system", "d", closed)));
    assert!(without(&with(dns)));
    assert!(!without(&with("{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}")));
    assert!(!without(&with("{}")));
}

#[test]
fn the_fix_has_the_containers_protocol() {
    for (wrong, right) in [("UDP", "TCP"), ("TCP", "UDP")] {
        let named = CLUSTER.replace(
            "{name: https, containerPort: 8443}",
            &format!("{{name: https, containerPort: 8443, protocol: {right}}}"),
        );
        let rule = ingress(&format!("{{ports: [{{port: https, protocol: {wrong}}}]}}"));
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("all.yaml"), format!("{named}---\n{rule}\n")).unwrap();
        let (_, text) = run(&["doctor"], &folder);
        assert!(text.contains(&format!("`protocol: {right}`")), "{text}");
    }
}

#[test]
fn an_absent_number_beside_a_name_is_named() {
    let rule = |ports: &str| {
        egress(&format!(
            "{{to: [{{podSelector: {{matchLabels: {{app: api}}}}}}], ports: [{ports}]}}"
        ))
    };
    let only = is_only(&[&rule("{port: https}, {port: 9999}")], Severity::Info, "port-not-listed");
    assert!(only.places[0].contains("spec.egress[1].ports[1]: TCP 9999"), "{only:#?}");
    is_nothing(&[&rule("{port: https}, {port: 8443}")]);
}

/// A pod with Linkerd's proxy.
fn meshed(name: &str, annotations: &str, init: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{namespace: new, name: {name}, labels: {{app: {name}}}, annotations: \
         {{linkerd.io/inject: enabled{annotations}}}}}, spec: {{nodeName: n1, {init} containers: [{{name: c, ports: [{{name: \
         http, containerPort: 8080}}]}}, {{name: linkerd-proxy, ports: [{{containerPort: 4143}}]}}]}}, status: {{phase: \
         Running, podIP: 10.244.9.{}}}}}",
        name.len()
    )
}

#[test]
fn ports_that_pass_the_proxy_need_no_port_of_the_mesh() {
    let of = |selector: &str, rules: &str| {
        policy(
            "new",
            "m",
            &format!("podSelector: {{matchLabels: {{app: {selector}}}}}, ingress: [{rules}]"),
        )
    };
    let from = |port: &str| {
        of(
            "a",
            &format!(
                "{{from: [{{podSelector: {{matchLabels: {{app: bb}}}}}}], ports: [{{port: {port}}}]}}"
            ),
        )
    };
    let pods = |own: &str, peer: &str| [meshed("a", own, ""), meshed("bb", peer, "")];
    let skip = ", config.linkerd.io/skip-inbound-ports: '25,8000-8100'";
    let out = ", config.linkerd.io/skip-outbound-ports: '8080'";
    for (own, peer, port, is_found) in [
        ("", "", "8080", true),
        (skip, "", "8080", false),
        (skip, "", "http", false),
        (skip, "", "9000", true),
        (", config.linkerd.io/skip-inbound-ports: '25'", "", "8080", true),
        ("", out, "8080", false),
        (out, "", "8080", true),
        (", traffic.sidecar.istio.io/excludeInboundPorts: '8080'", "", "8080", false),
        (", traffic.sidecar.istio.io/includeInboundPorts: '8081,9000'", "", "8080", false),
        (", traffic.sidecar.istio.io/includeInboundPorts: '8080'", "", "8080", true),
        (", traffic.sidecar.istio.io/includeInboundPorts: '*'", "", "8080", true),
        (", traffic.sidecar.istio.io/includeInboundPorts: ''", "", "8080", false),
    ] {
        let [a, b] = pods(own, peer);
        let found = found(&[&a, &b, &from(port)]);
        let is_mesh = |it: &(Severity, String)| it.1 == "mesh-port";
        assert_eq!(found.iter().any(is_mesh), is_found, "{own} {peer} {port}: {found:?}");
    }
    // Annotations of the namespace reach the pod as arguments of the init container.
    let init =
        "initContainers: [{name: linkerd-init, args: [--inbound-ports-to-ignore, '4190,8080']}],";
    is_nothing(&[&meshed("a", "", init), &meshed("bb", "", ""), &from("8080")]);
    // Egress is checked against the receiver's ports.
    let to = "podSelector: {matchLabels: {app: bb}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: \
              a}}}], ports: [{port: 8080}]}]";
    let [a, b] = pods(skip, "");
    let egress = found(&[&a, &b, &policy("new", "e", to)]);
    assert!(!egress.iter().any(|it| it.1 == "mesh-port"), "{egress:?}");
}

#[test]
fn blocks_of_other_rules_and_policies_name_the_nodes() {
    let agent = "{apiVersion: v1, kind: Pod, metadata: {namespace: app, name: agent, labels: {app: agent}}, spec: {nodeName: n2, \
                 hostNetwork: true, containers: [{name: c}]}, status: {phase: Running, podIP: 192.168.5.12}}";
    let labels = "{from: [{podSelector: {matchLabels: {app: agent}}}], ports: [{port: 8443}]}";
    let block = |port: &str| {
        format!("{{from: [{{ipBlock: {{cidr: 192.168.5.0/24}}}}], ports: [{{port: {port}}}]}}")
    };
    let warning = (Severity::Warning, "peer-on-host-network");
    is_only(&[agent, &ingress(labels)], warning.0, warning.1);
    is_nothing(&[agent, &ingress(&format!("{labels}, {}", block("8443")))]);
    is_only(&[agent, &ingress(&format!("{labels}, {}", block("https")))], warning.0, warning.1);
    let other = |labels: &str, rule: &str| {
        policy("app", "q", &format!("podSelector: {{{labels}}}, ingress: [{rule}]"))
    };
    is_nothing(&[agent, &ingress(labels), &other("", &block("8443"))]);
    let of_web = other("matchLabels: {app: web}", &block("8443"));
    let all = found(&[agent, &ingress(labels), &of_web]);
    assert!(all.contains(&(warning.0, warning.1.to_owned())), "{all:?}");
    // The blocks of an audited policy count for that policy alone.
    let on_trial = |text: String| {
        text.replacen("metadata: {", "metadata: {annotations: {netpold.io/enforcement: audit}, ", 1)
    };
    let both = format!("{labels}, {}", block("8443"));
    is_nothing(&[agent, &on_trial(ingress(&both))]);
    let beside = [agent, &ingress(labels), &on_trial(other("", &block("8443")))];
    let all = found(&beside);
    assert!(all.contains(&(warning.0, warning.1.to_owned())), "{all:?}");
    // One of the two selected pods is on the host network.
    let twin = agent
        .replace("name: agent,", "name: agent-2,")
        .replace("hostNetwork: true, ", "")
        .replace("192.168.5.12", "10.244.2.9");
    let only =
        is_only(&[agent, &twin, &ingress(labels)], Severity::Info, "peer-partly-on-host-network");
    assert!(only.places[0].contains("Pod app/agent at 192.168.5.12/32"), "{only:#?}");
    is_nothing(&[agent, &twin, &ingress("{from: [{podSelector: {}}], ports: [{port: 8443}]}")]);
}

/// A named port of a ClusterNetworkPolicy is an entry of `protocols` of its own and applies to every protocol.
#[test]
fn a_named_port_of_a_cluster_policy_needs_no_protocol() {
    let of = |protocols: &str| {
        format!(
            "{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: c}}, spec: {{tier: \
             Admin, priority: 1, subject: {{namespaces: {{matchLabels: {{kubernetes.io/metadata.name: app}}}}}}, ingress: \
             [{{action: Accept, from: [{{namespaces: {{}}}}], protocols: [{protocols}]}}]}}}}"
        )
    };
    is_nothing(&[&of("{destinationNamedPort: http}")]);
    let absent = findings(&[&of(
        "{tcp: {destinationPort: {number: 8443}}}, {destinationNamedPort: absent}",
    )]);
    let places: Vec<&String> = absent.iter().flat_map(|finding| &finding.places).collect();
    assert_eq!(places.len(), 1, "{places:?}");
    assert!(places[0].contains("protocols[1]: absent"), "{places:?}");
}

/// A ClusterNetworkPolicy of the Admin tier for the pods of a namespace.
fn tier(name: &str, namespace: &str, rules: &str) -> String {
    format!(
        "{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: {name}}}, spec: {{tier: Admin, \
         priority: 1, subject: {{namespaces: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}}}, {rules}}}}}"
    )
}

/// NetworkPolicies are not evaluated where a rule of the Admin tier decides.
#[test]
fn the_cluster_policy_that_denies_dns_is_named() {
    let denied = tier("d", "app", "egress: [{action: Deny, to: [{namespaces: {}}]}]");
    let only = is_only(
        &[&egress("{to: [{podSelector: {}}], ports: [{port: 8443}]}"), &denied],
        Severity::Warning,
        "no-dns",
    );
    assert!(only.places.iter().all(|it| it.starts_with("ClusterNetworkPolicy d: ")), "{only:#?}");
    assert!(only.fix.contains("{action: Accept, ") && only.places.len() == 2, "{only:#?}");
    let accepted = "egress: [{action: Accept, to: [{namespaces: {}}]}, {action: Deny, to: [{namespaces: {}}]}]";
    is_nothing(&[
        &egress("{to: [{podSelector: {}}], ports: [{port: 8443}]}"),
        &tier("d", "app", accepted),
    ]);
    // The name server itself, on another node than the API server; with a NetworkPolicy and without.
    let cut_off =
        tier("de", "kube-system", "egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]");
    let open = policy("kube-system", "dns", "podSelector: {}, egress: [{}], policyTypes: [Egress]");
    for objects in [&[&*cut_off][..], &[&*cut_off, &open]] {
        let only = is_only(objects, Severity::Warning, "dns-server-cut-off");
        assert!(only.places[0].starts_with("ClusterNetworkPolicy de: "), "{only:#?}");
        assert!(only.fix.contains("action Accept"), "{only:#?}");
    }
}

/// A pod always reaches the API server on its own node; no policy can deny it.
#[test]
fn a_name_server_beside_the_api_server_is_not_cut_off() {
    let beside = "{apiVersion: v1, kind: Pod, metadata: {namespace: kube-system, name: beside, labels: {k8s-app: kube-dns}}, spec: \
                  {nodeName: n1, containers: [{name: c, ports: [{name: dns, containerPort: 53, protocol: UDP}, {name: dns-tcp, \
                  containerPort: 53}]}]}, status: {phase: Running, podIP: 10.244.1.2}}";
    let upstream = policy(
        "kube-system",
        "dns",
        "podSelector: {}, policyTypes: [Egress], egress: [{ports: [{protocol: UDP, port: 53}]}]",
    );
    let only = is_only(&[beside, &upstream], Severity::Warning, "dns-server-cut-off");
    assert!(only.places[0].starts_with("Pod kube-system/coredns: not to the API"), "{only:#?}");
}

#[test]
fn cluster_policies_may_accept_the_meshs_port() {
    let (one, other) = (meshed("a", "", ""), meshed("bb", "", ""));
    let rule = policy(
        "new",
        "m",
        "podSelector: {matchLabels: {app: a}}, ingress: [{from: [{podSelector: {matchLabels: {app: bb}}}], ports: [{port: 8080}]}]",
    );
    is_only(&[&one, &other, &rule], Severity::Warning, "mesh-port");
    let accept = |port: u16| {
        let protocols = format!("[{{tcp: {{destinationPort: {{number: {port}}}}}}}]");
        tier(
            "mesh",
            "new",
            &format!(
                "ingress: [{{action: Accept, from: [{{namespaces: {{}}}}], protocols: {protocols}}}]"
            ),
        )
    };
    is_nothing(&[&one, &other, &rule, &accept(4143)]);
    let found = found(&[&one, &other, &rule, &accept(4144)]);
    assert!(found.iter().any(|(_, check)| check == "mesh-port"), "{found:?}");
}

/// A ClusterNetworkPolicy has no `ipBlock` and cannot name nodes as senders.
#[test]
fn fixes_are_of_the_kind_of_the_policy() {
    let agent = "{apiVersion: v1, kind: Pod, metadata: {namespace: new, name: agent, labels: {app: agent}}, spec: {nodeName: n2, \
                 hostNetwork: true, containers: [{name: c}]}, status: {phase: Running, podIP: 192.168.5.12}}";
    let new = "[{namespaces: {matchLabels: {kubernetes.io/metadata.name: new}}}]";
    for (rules, fix) in [
        (format!("ingress: [{{action: Accept, from: {new}}}]"), "none in this kind"),
        (format!("egress: [{{action: Accept, to: {new}}}]"), "networks: [ADDRESS/32]"),
    ] {
        let only =
            is_only(&[agent, &tier("c", "app", &rules)], Severity::Warning, "peer-on-host-network");
        assert!(only.fix.contains(fix), "{only:#?}");
    }
    let service = "egress: [{action: Deny, to: [{networks: [10.96.0.10/32]}]}]";
    let only = is_only(&[&tier("c", "app", service)], Severity::Warning, "block-of-a-service");
    assert!(only.fix.contains("as networks"), "{only:#?}");
}

/// netpold's own preset has a peer that selects namespaces by an opt-in label.
#[test]
fn a_peer_by_a_label_of_no_namespace_is_optional_beside_others() {
    let shared = "{namespaceSelector: {matchLabels: {shared: 'true'}}}";
    let beside = format!("{{from: [{{podSelector: {{}}}}, {shared}]}}");
    let only = is_only(&[&ingress(&beside)], Severity::Info, "peer-without-pods");
    assert_eq!(only.problem, "no pod is one of the peers of a rule: this peer allows nothing");
    let only = is_only(
        &[&ingress(&format!("{{from: [{shared}]}}"))],
        Severity::Warning,
        "peer-without-pods",
    );
    assert_eq!(only.problem, "no pod is the peer of a rule: it allows nothing");
}

/// The only pods are on the host's network: no policy applies to them.
#[test]
fn a_chart_of_pods_on_the_hosts_network_is_checked() {
    let folder = TempDir::new().unwrap();
    let exporter = "{apiVersion: apps/v1, kind: DaemonSet, metadata: {namespace: app, name: ne}, spec: {selector: {matchLabels: \
                    {app: ne}}, template: {metadata: {labels: {app: ne}}, spec: {hostNetwork: true, containers: [{name: c}]}}}}";
    let objects = [exporter, &policy("app", "ne", "podSelector: {matchLabels: {app: ne}}")];
    fs::write(folder.path().join("all.yaml"), objects.join("\n---\n")).unwrap();
    let (status, text) = run(&["doctor"], &folder);
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("selects-host-network") && !text.contains("no Pod among"), "{text}");
}

#[test]
fn a_namespace_may_be_prepared_or_on_its_way_out() {
    let deny = "podSelector: {}, policyTypes: [Ingress, Egress]";
    for namespace in ["new", "gone"] {
        is_only(&[&policy(namespace, "p", deny)], Severity::Info, "namespace-without-pods");
    }
    let web = "podSelector: {matchLabels: {app: web}}";
    is_only(&[&policy("new", "p", web)], Severity::Warning, "namespace-without-pods");
    is_only(&[&policy("gone", "p", web)], Severity::Info, "namespace-without-pods");
    is_only(
        &[&policy("new", "p", "podSelector: {matchLabels: {app: later}}")],
        Severity::Info,
        "namespace-without-pods",
    );
    is_only(&[&policy("typo", "p", deny)], Severity::Warning, "namespace-without-pods");
}

#[test]
fn enforcers_are_named_by_the_path_of_their_command() {
    let set = |name: &str, command: &str| {
        format!(
            "{{apiVersion: apps/v1, kind: DaemonSet, metadata: {{namespace: kube-system, name: {name}}}, spec: {{template: \
             {{metadata: {{labels: {{x: z}}}}, spec: {{hostNetwork: true, containers: [{{name: policy, image: a/b:v1, command: \
             [{command}]}}]}}}}}}}}"
        )
    };
    for (command, name) in [
        ("/hybridnet/policyinit.sh", "Hybridnet"),
        ("/usr/bin/policyinit.sh", "Terway"),
        ("policyinit.sh", "Terway"),
    ] {
        let found = is_only(&[&set("x", command)], Severity::Warning, "other-enforcer-deployed");
        assert!(found.problem.starts_with(name), "{found:#?}");
    }
    is_nothing(&[&set("x", "/usr/bin/xpolicyinit.sh")]);
}

#[test]
fn k3s_contains_an_enforcer() {
    let node = |version: &str, arguments: &str| {
        format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: n3, annotations: {{k3s.io/node-args: '{arguments}'}}}}, status: \
             {{nodeInfo: {{kubeletVersion: {version}}}}}}}"
        )
    };
    is_only(&[&node("v1.31.1+k3s1", "[\"server\"]")], Severity::Info, "embedded-enforcer");
    is_nothing(&[&node("v1.31.1+k3s1", "[\"server\",\"--disable-network-policy\"]")]);
    is_nothing(&[&node("v1.31.1+rke2r1", "[]")]);
}

#[test]
fn a_services_address_is_no_source() {
    let rule = "{from: [{ipBlock: {cidr: 10.96.0.0/16}}], ports: [{port: 8443}]}";
    let only = is_only(&[&ingress(rule)], Severity::Warning, "block-of-a-service");
    assert!(only.problem.contains("no packet has as its source"), "{only:#?}");
    assert!(only.fix.contains("the senders' pods"), "{only:#?}");
}

#[test]
fn a_job_that_no_workload_makes_is_information() {
    let nightly = "{apiVersion: batch/v1, kind: CronJob, metadata: {namespace: app, name: nightly}, spec: {jobTemplate: {spec: \
                   {template: {metadata: {labels: {app: nightly}}, spec: {containers: [{name: c}]}}}}}}";
    let from = |job: &str| {
        ingress(&format!("{{from: [{{podSelector: {{matchLabels: {{job-name: {job}}}}}}}]}}"))
    };
    let only = is_only(&[nightly, &from("other")], Severity::Info, "peer-without-pods");
    assert!(only.places[0].contains("no workload has such a job-name"), "{only:#?}");
    is_nothing(&[nightly, &from("nightly-29384756")]);
}

/// An unreadable document does not affect the others.
#[test]
fn an_open_bracket_is_named_and_the_rest_is_checked() {
    let broken = policy("app", "x", "podSelector: {matchLabels: {app: web}").replace("}}}", "}");
    let absent = policy("app", "q", "podSelector: {matchLabels: {app: absent}}");
    let (status, text) = run(&["doctor"], &folder(&[&broken, &absent]));
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("document-not-read") && text.contains("(all.yaml:"), "{text}");
    assert!(text.contains("NetworkPolicy app/q: pods app=absent"), "{text}");
    let ask = ["explain", "--from", "app/web", "--to", "app/api", "--port", "8443"];
    let (status, text) = run(&ask, &folder(&[&broken]));
    assert!(status == 2 && text.contains("all.yaml:"), "{text}");
}
