//! Findings about rules with the port of a Service instead of the backend's: of the API server, of Services without
//! selector, and of other Services.

use netpold_doctor::Severity;

use super::{examine, places, policy};

/// Returns `default/kubernetes`, which maps 443 to a port of a node, and a pod of `x` on another node.
fn cluster(target: u16, endpoints: &str) -> String {
    format!(
        "
{{apiVersion: v1, kind: Node, metadata: {{name: n1}}, status: {{addresses: [{{type: InternalIP, address: 192.168.5.11}}]}}}}
---
{{apiVersion: v1, kind: Node, metadata: {{name: n2}}, status: {{addresses: [{{type: InternalIP, address: 192.168.5.12}}]}}}}
---
{{apiVersion: v1, kind: Service, metadata: {{name: kubernetes, namespace: default}}, spec: {{clusterIP: 10.96.0.1, ports: [{{name: https, port: 443, targetPort: {target}}}]}}}}
---
{endpoints}
---
apiVersion: v1
kind: Pod
metadata: {{name: agent, namespace: x, labels: {{app: agent}}}}
spec: {{nodeName: n1, containers: [{{name: c}}]}}
status: {{podIP: 10.0.0.1}}
---
"
    )
}

fn slice(port: u16) -> String {
    format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: kubernetes, namespace: default, labels: \
         {{kubernetes.io/service-name: kubernetes}}}}, addressType: IPv4, ports: [{{name: https, port: {port}}}], endpoints: \
         [{{addresses: [192.168.5.12]}}]}}"
    )
}

fn endpoints(port: u16) -> String {
    format!(
        "{{apiVersion: v1, kind: Endpoints, metadata: {{name: kubernetes, namespace: default}}, subsets: [{{addresses: \
         [{{ip: 192.168.5.12}}], ports: [{{name: https, port: {port}}}]}}]}}"
    )
}

fn egress(rules: &str) -> String {
    let dns = "{ports: [{port: 53, protocol: UDP}]}";
    policy("p", &format!("podSelector: {{}}, policyTypes: [Egress], egress: [{dns}, {rules}]"))
}

#[test]
fn the_api_server_is_behind_another_port() {
    let at = |place: &str| format!("NetworkPolicy x/p: spec.egress[1].ports[0]: {place}");
    let found = at("TCP 443, Service default/kubernetes, whose endpoints get it at 6443");
    for (kind, objects) in
        [("slice", slice(6443)), ("Endpoints", endpoints(6443)), ("none", String::new())]
    {
        let finds = |rules: &str| {
            let (_, report) = examine(&format!("{}{}", cluster(6443, &objects), egress(rules)));
            let all = places(&report);
            all.get("port-of-the-service")
                .map_or(Vec::new(), |it| it.iter().map(ToString::to_string).collect())
        };
        assert_eq!(finds("{ports: [{port: 443}]}"), [found.as_str()], "{kind}");
        let none: [&str; 0] = [];
        for rules in [
            "{ports: [{port: 443}, {port: 6443}]}",
            "{ports: [{port: 443}]}, {ports: [{port: 6443}]}",
            "{ports: [{port: 443}]}, {}",
            "{ports: [{port: 443, protocol: UDP}]}",
            "{ports: [{port: 8443}]}",
            "{ports: [{port: 1, endPort: 65535}]}",
            "{to: [{ipBlock: {cidr: 203.0.113.0/24}}], ports: [{port: 443}]}",
            "{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [192.168.0.0/16]}}], ports: [{port: 443}]}",
            "{to: [{podSelector: {}}], ports: [{port: 443}]}",
        ] {
            assert_eq!(finds(rules), none, "{kind}: {rules}");
        }
        if kind != "none" {
            let to = |block: &str| {
                format!("{{to: [{{ipBlock: {{cidr: {block}}}}}], ports: [{{port: 443}}]}}")
            };
            for block in ["192.168.5.12/32", "192.168.5.0/24", "192.168.0.0/16"] {
                assert_eq!(finds(&to(block)), [found.as_str()], "{kind}: {block}");
            }
            // For pods with the default service account, the block means the Internet.
            assert_eq!(finds(&to("0.0.0.0/0")), none, "{kind}");
            let own = "spec: {nodeName: n1, serviceAccountName: agent,";
            let cluster = cluster(6443, &objects).replace("spec: {nodeName: n1,", own);
            let (_, report) = examine(&format!("{cluster}{}", egress(&to("0.0.0.0/0"))));
            assert!(places(&report).contains_key("port-of-the-service"), "{kind}: {report:#?}");
        }
    }
}

/// A rule without peers beside a rule for pods means other hosts, unless the pods have a service account of their own.
#[test]
fn a_rule_beside_rules_for_pods_is_for_other_hosts() {
    let severity = |cluster: &str, rules: &str| {
        let (_, report) = examine(&format!("{cluster}{}", egress(rules)));
        report
            .findings
            .into_iter()
            .find(|it| it.check == "port-of-the-service")
            .map(|it| it.severity)
    };
    let own = "spec: {nodeName: n1, serviceAccountName: agent,";
    for objects in [slice(6443), String::new()] {
        let cluster = cluster(6443, &objects);
        let (alone, web) =
            ("{ports: [{port: 443}]}", "{to: [{podSelector: {}}], ports: [{port: 8080}]}");
        let beside = format!("{alone}, {web}");
        assert_eq!(severity(&cluster, alone), Some(Severity::Warning));
        assert_eq!(severity(&cluster, &beside), Some(Severity::Info));
        let cluster = cluster.replace("spec: {nodeName: n1,", own);
        assert_eq!(severity(&cluster, &beside), Some(Severity::Warning));
    }
}

/// The API server has several endpoints, and a rule names one.
#[test]
fn some_of_the_endpoints() {
    let three = slice(6443).replace("[192.168.5.12]", "[192.168.5.12, 192.168.5.13, 192.168.5.11]");
    let cluster = cluster(6443, &three);
    let finds = |cluster: &str, rules: &str| {
        let (_, report) = examine(&format!("{cluster}{}", egress(rules)));
        let all = places(&report);
        all.get("endpoints-of-some").map(|it| it.join(" "))
    };
    let to = |blocks: &[&str], port: u16| {
        let blocks: Vec<String> =
            blocks.iter().map(|it| format!("{{ipBlock: {{cidr: {it}}}}}")).collect();
        format!("{{to: [{}], ports: [{{port: {port}}}]}}", blocks.join(", "))
    };
    // The pod's own node, 192.168.5.11, needs no rule.
    let place = "NetworkPolicy x/p: spec.egress[1].to[0]: Service default/kubernetes: denied to Pod x/agent: 192.168.5.13:6443";
    let one = to(&["192.168.5.12/32"], 6443);
    assert_eq!(finds(&cluster, &one).as_deref(), Some(place));
    assert_eq!(finds(&cluster, &to(&["192.168.5.12/32", "192.168.5.13/32"], 6443)), None);
    assert_eq!(finds(&cluster, &format!("{one}, {}", to(&["192.168.5.13/32"], 6443))), None);
    assert_eq!(finds(&cluster, &to(&["192.168.5.0/24"], 6443)), None);
    assert_eq!(finds(&cluster, &to(&["192.168.5.12/32"], 9100)), None, "the node's own service");
    assert_eq!(finds(&self::cluster(6443, &slice(6443)), &one), None, "the only endpoint");
    let no_token = "spec: {nodeName: n1, automountServiceAccountToken: false,";
    assert_eq!(finds(&cluster.replace("spec: {nodeName: n1,", no_token), &one), None);
}

#[test]
fn equal_ports_and_pods_without_credentials_are_no_finding() {
    for objects in [slice(443), endpoints(443), String::new()] {
        let (_, report) =
            examine(&format!("{}{}", cluster(443, &objects), egress("{ports: [{port: 443}]}")));
        assert!(!places(&report).contains_key("port-of-the-service"), "{report:#?}");
    }
    // A pod without credentials does not use the API server.
    for objects in [slice(6443), String::new()] {
        let cluster = cluster(6443, &objects).replace(
            "spec: {nodeName: n1,",
            "spec: {nodeName: n1, automountServiceAccountToken: false,",
        );
        let (_, report) = examine(&format!("{cluster}{}", egress("{ports: [{port: 443}]}")));
        assert!(!places(&report).contains_key("port-of-the-service"), "{report:#?}");
    }
    // The pod is on the API server's own node.
    let cluster = cluster(6443, &slice(6443)).replace("nodeName: n1", "nodeName: n2");
    let (_, report) = examine(&format!("{cluster}{}", egress("{ports: [{port: 443}]}")));
    assert!(!places(&report).contains_key("port-of-the-service"), "{report:#?}");
}

/// A pod on the API server's own node reaches the API server in any case; other pods of the workload do not.
#[test]
fn a_pod_on_the_api_servers_node_hides_no_other() {
    let pod = |name: &str, node: &str, address: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: x, labels: {{app: twin}}}}, spec: {{nodeName: \
             {node}, containers: [{{name: c}}]}}, status: {{podIP: {address}}}}}\n---\n"
        )
    };
    let egress = policy(
        "p",
        "podSelector: {matchLabels: {app: twin}}, policyTypes: [Egress], egress: [{ports: [{port: 443}]}, {ports: \
         [{port: 53, protocol: UDP}]}]",
    );
    let near = pod("a", "n2", "10.0.0.21");
    let far = pod("b", "n1", "10.0.0.22");
    for (pods, finds) in [(near.clone(), false), (near + &far, true), (far, true)] {
        let (_, report) = examine(&format!("{}{pods}{egress}", cluster(6443, &slice(6443))));
        assert_eq!(places(&report).contains_key("port-of-the-service"), finds, "{report:#?}");
    }
}

/// A chart has neither addresses nor endpoints: selectors and named ports lead from Services to pods.
#[test]
fn services_of_a_chart() {
    let pod = |name: &str, port: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: x, labels: {{app: {name}}}}}, spec: {{containers: \
             [{{name: c, ports: [{port}]}}]}}}}\n---\n"
        )
    };
    let service = |target: &str| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: s, namespace: x}}, spec: {{selector: {{app: web}}, ports: \
             [{{name: http, port: 80, targetPort: {target}}}]}}}}\n---\n"
        )
    };
    let web = pod("web", "{name: http, containerPort: 8080}") + &pod("client", "");
    let rule = |port: &str| {
        policy(
            "p",
            &format!(
                "podSelector: {{matchLabels: {{app: web}}}}, ingress: [{{ports: [{{port: {port}}}]}}]"
            ),
        )
    };
    for (target, port, finds) in [
        ("http", "80", true),
        ("8080", "80", true),
        ("8080", "8080", false),
        ("http", "http", false),
        ("80", "80", false),
    ] {
        let (_, report) = examine(&format!("{web}{}{}", service(target), rule(port)));
        let found = places(&report).contains_key("port-of-the-service");
        assert_eq!(found, finds, "{target} {port}: {report:#?}");
    }
    // Nothing translates the port of a headless Service.
    let headless = service("8080").replace("spec: {selector", "spec: {clusterIP: None, selector");
    let (_, report) = examine(&format!("{web}{headless}{}", rule("80")));
    assert_eq!(
        places(&report)["port-of-the-service"],
        [
            "NetworkPolicy x/p: spec.ingress[0].ports[0]: TCP 80, Service x/s, whose pods listen at 8080: it is headless, so clients connect to \
             them"
        ]
    );
    // A rule for the Internet does not refer to the chart's own Service.
    let (_, report) =
        examine(&format!("{web}{}{}", service("8080"), egress("{ports: [{port: 80}]}")));
    assert!(!places(&report).contains_key("port-of-the-service"), "{report:#?}");
}

/// A rule has the node port, by which clients reach the pods, instead of the container port.
#[test]
fn ports_of_nodes() {
    let pod = |ports: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: web, namespace: x, labels: {{app: web}}}}, spec: {{nodeName: n1, \
             containers: [{{name: c, ports: [{ports}]}}]}}, status: {{podIP: 10.0.0.7}}}}\n---\n"
        )
    };
    let service = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: x}, spec: {type: NodePort, clusterIP: \
                   10.96.0.7, selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}}\n---\n";
    let finds = |ports: &str, rule: &str| {
        let spec =
            format!("podSelector: {{matchLabels: {{app: web}}}}, ingress: [{{ports: [{rule}]}}]");
        let (_, report) = examine(&format!("{}{service}{}", pod(ports), policy("p", &spec)));
        let found = places(&report);
        assert!(
            !found.contains_key("port-not-listed") || !found.contains_key("port-of-the-node"),
            "{report:#?}"
        );
        found
            .get("port-of-the-node")
            .map(|it| it.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let at = "NetworkPolicy x/p: spec.ingress[0].ports[0]:";
    let plain = "{containerPort: 8080}";
    let of_service =
        format!("{at} TCP 30080, nodePort of Service x/web, whose pods get it at 8080");
    assert_eq!(finds(plain, "{port: 30080}"), Some(vec![of_service]));
    let host = "{containerPort: 8080, hostPort: 18080}";
    let of_host = format!("{at} TCP 18080, hostPort of Pod x/web, whose containerPort is 8080");
    assert_eq!(finds(host, "{port: 18080}"), Some(vec![of_host]));
    for (ports, rule) in [
        (plain, "{port: 30080}, {port: 8080}"),
        (plain, "{port: 30080, protocol: UDP}"),
        (plain, "{port: 30000, endPort: 32767}"),
        (plain, "{port: 18080}"),
        (host, "{port: 18080}, {port: 8000, endPort: 9000}"),
        ("{containerPort: 18080, hostPort: 18080}", "{port: 18080}"),
    ] {
        assert_eq!(finds(ports, rule), None, "{ports}: {rule}");
    }
}

/// A pod reaches the API server on its own node without any rule, which shows nothing about the others.
#[test]
fn own_nodes_do_not_hide_the_block_of_a_service() {
    let near = "
apiVersion: v1
kind: Pod
metadata: {name: near, namespace: x, labels: {app: near}}
spec: {nodeName: n2, containers: [{name: c}]}
status: {podIP: 10.0.2.1}
---
";
    let far = cluster(6443, &slice(6443));
    let rule = "{to: [{ipBlock: {cidr: 10.96.0.1/32}}], ports: [{port: 443}]}";
    let endpoint = "{to: [{ipBlock: {cidr: 192.168.5.12/32}}], ports: [{port: 6443}]}";
    let finds = |objects: &str, rules: &str| {
        let (_, report) = examine(&format!("{objects}{near}{}", egress(rules)));
        places(&report).contains_key("block-of-a-service")
    };
    assert!(finds(&far, rule));
    assert!(!finds(&far, &format!("{rule}, {endpoint}")));
    assert!(!finds(&far.replace("nodeName: n1", "nodeName: n2"), rule), "its node has every pod");
}
