//! Name servers: their Service, its port, and the pods that may reach them.

use super::{examine, places, policy};

/// Cluster with a name server: its namespace, labels, Service, and the port that its pods listen on.
struct Server {
    namespace: &'static str,
    service: &'static str,
    label: (&'static str, &'static str),
    port: u16,
    named: bool,
    slices: bool,
}

impl Server {
    fn objects(&self) -> String {
        let Self { namespace, service, label: (key, value), port, named, slices } = self;
        let target = if *named { "dns".to_owned() } else { port.to_string() };
        let mut objects = format!(
            "
{{apiVersion: v1, kind: Node, metadata: {{name: n1}}, status: {{addresses: [{{type: InternalIP, address: 192.168.0.1}}]}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: server, namespace: {namespace}, labels: {{{key}: {value}}}}}
spec: {{nodeName: n2, containers: [{{name: c, ports: [{{name: dns, containerPort: {port}, protocol: UDP}}, {{name: dns-tcp, containerPort: {port}}}]}}]}}
status: {{podIP: 10.0.0.4}}
---
apiVersion: v1
kind: Service
metadata: {{name: {service}, namespace: {namespace}}}
spec:
  clusterIP: 10.96.0.10
  selector: {{{key}: {value}}}
  ports: [{{name: dns, port: 53, protocol: UDP, targetPort: {target}}}, {{name: dns-tcp, port: 53, targetPort: {port}}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: client, namespace: x, labels: {{app: client}}}}
spec: {{nodeName: n1, containers: [{{name: c}}]}}
status: {{podIP: 10.0.0.1}}
---
"
        );
        if *slices {
            objects.push_str(&format!(
                "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: s, namespace: {namespace}, labels: {{kubernetes.io/service-name: {service}}}}}
addressType: IPv4
ports: [{{name: dns, port: {port}, protocol: UDP}}, {{name: dns-tcp, port: {port}}}]
endpoints: [{{addresses: [\"10.0.0.4\"]}}]
---
"
            ));
        }
        objects
    }
}

fn servers() -> Vec<Server> {
    let mut servers = Vec::new();
    for (namespace, service, label) in [
        ("kube-system", "kube-dns", ("k8s-app", "kube-dns")),
        ("kube-system", "rke2-coredns-rke2-coredns", ("k8s-app", "kube-dns")),
        ("openshift-dns", "dns-default", ("dns.operator.openshift.io/daemonset-dns", "default")),
        ("name-service", "dns-main", ("dns", "main")),
    ] {
        for port in [53, 5353, 1053] {
            for (named, slices) in [(false, true), (true, true), (true, false), (false, false)] {
                servers.push(Server { namespace, service, label, port, named, slices });
            }
        }
    }
    servers
}

/// Returns rules, each with whether it allows queries to the server.
fn rules(server: &Server) -> Vec<(String, bool)> {
    let Server { namespace, label: (key, value), port, .. } = server;
    let by_name =
        format!("namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}");
    let by_label = format!("podSelector: {{matchLabels: {{{key}: {value}}}}}");
    let udp = |port: &str| format!("ports: [{{protocol: UDP, port: {port}}}]");
    let own = udp(&port.to_string());
    vec![
        ("{}".to_owned(), true),
        (format!("{{{own}}}"), true),
        (format!("{{to: [{{{by_name}}}], {own}}}"), true),
        (format!("{{to: [{{{by_name}}}]}}"), true),
        (format!("{{to: [{{{by_name}, {by_label}}}], {}}}", udp("dns")), true),
        (format!("{{to: [{{ipBlock: {{cidr: 10.0.0.4/32}}}}], {own}}}"), true),
        (format!("{{to: [{{{by_name}}}], {}}}", udp("53")), *port == 53),
        // If the doctor only guesses the name server, the rule may be meant for another one, and counts.
        (format!("{{to: [{{{by_label}}}], {own}}}"), server.service == "dns-main" && *port != 1053),
        (format!("{{to: [{{{by_name}}}], ports: [{{port: {port}}}]}}"), false),
        (format!("{{to: [{{{by_name}}}], {}}}", udp("54")), false),
        // Reported as `block-of-a-service` instead.
        (format!("{{to: [{{ipBlock: {{cidr: 10.96.0.10/32}}}}], {}}}", udp("53")), true),
        ("{to: [{podSelector: {}}]}".to_owned(), false),
    ]
}

fn egress(rules: &str) -> String {
    policy("p", &format!("podSelector: {{}}, policyTypes: [Egress], egress: [{rules}]"))
}

#[test]
fn questions_are_judged_behind_the_service() {
    let mut wrong = Vec::new();
    for server in servers() {
        for (rules, resolves) in rules(&server) {
            let objects = format!("{}{}", server.objects(), egress(&rules));
            let (_, report) = examine(&objects);
            let finding = report.findings.iter().find(|finding| finding.check == "no-dns");
            if finding.is_none() != resolves {
                wrong.push(format!("{rules} (resolves: {resolves})\n{objects}\n{report:#?}"));
                continue;
            }
            // The suggested rule solves the problem, and names existing objects.
            if let Some(finding) = finding {
                let rule = finding.fix.strip_prefix("add an egress rule: - ").unwrap();
                let (_, fixed) = examine(&format!(
                    "{}{}",
                    server.objects(),
                    egress(&format!("{rules}, {rule}"))
                ));
                assert!(!places(&fixed).contains_key("no-dns"), "{rule}\n{fixed:#?}");
                let added = "NetworkPolicy x/p: spec.egress[1]";
                let all = places(&fixed);
                let wrong = all.values().flatten().find(|place| place.starts_with(added));
                assert_eq!(wrong, None, "{rule}\n{fixed:#?}");
            }
        }
    }
    assert!(wrong.is_empty(), "{} are judged wrongly:\n{}", wrong.len(), wrong.join("\n\n"));
}

#[test]
fn a_closed_name_server_is_found() {
    let server = || servers().remove(0);
    let of_server = |spec: &str| {
        let text = policy("deny", spec).replace("namespace: x", "namespace: kube-system");
        let (_, report) = examine(&format!("{}{text}", server().objects()));
        report
    };
    let closed = of_server("podSelector: {}, policyTypes: [Ingress]");
    let finding = closed.findings.iter().find(|it| it.check == "dns-server-closed").unwrap();
    assert_eq!(
        places(&closed)["dns-server-closed"],
        ["Service kube-system/kube-dns: no other pod is allowed by NetworkPolicy kube-system/deny"]
    );
    let rule = finding.fix.split_once(": - ").unwrap().1;
    for (ingress, is_closed) in [
        (rule.to_owned(), false),
        ("{from: [{podSelector: {}}]}".to_owned(), true),
        (
            "{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: x}}}]}"
                .to_owned(),
            false,
        ),
        ("{ports: [{port: 53}]}".to_owned(), true),
        ("{ports: [{port: dns, protocol: UDP}]}".to_owned(), false),
        ("{from: [{ipBlock: {cidr: 10.0.0.0/8}}]}".to_owned(), false),
        ("{}".to_owned(), false),
    ] {
        let report =
            of_server(&format!("podSelector: {{}}, policyTypes: [Ingress], ingress: [{ingress}]"));
        assert_eq!(
            places(&report).contains_key("dns-server-closed"),
            is_closed,
            "{ingress}: {report:#?}"
        );
    }
    // Policies for the egress of the server, and for other pods of its namespace.
    let egress = of_server("podSelector: {}, policyTypes: [Egress], egress: [{}]");
    assert!(!places(&egress).contains_key("dns-server-closed"), "{egress:#?}");
    let other = of_server("podSelector: {matchLabels: {app: other}}, policyTypes: [Ingress]");
    assert!(!places(&other).contains_key("dns-server-closed"), "{other:#?}");
    let trial = policy("deny", "podSelector: {}").replace(
        "namespace: x",
        "namespace: kube-system, annotations: {netpold.io/enforcement: audit}",
    );
    let (_, trial) = examine(&format!("{}{trial}", server().objects()));
    assert!(!places(&trial).contains_key("dns-server-closed"), "{trial:#?}");
}

/// A name server that reaches the API server, but no other name server.
#[test]
fn a_name_server_that_cannot_forward() {
    let check = "dns-server-cannot-forward";
    let server = &servers()[0];
    let finds = |egress: &str| {
        let spec = format!("podSelector: {{}}, policyTypes: [Egress], egress: [{egress}]");
        let policy = policy("p", &spec).replace("namespace: x", "namespace: kube-system");
        let (_, report) = examine(&format!("{}{policy}", server.objects()));
        let all = places(&report);
        assert!(!all.contains_key("dns-server-cut-off"), "{report:#?}");
        all.get(check).map(|it| it.join(" "))
    };
    let place = "Pod kube-system/server (NetworkPolicy kube-system/p)";
    assert_eq!(finds("{ports: [{port: 6443}]}").as_deref(), Some(place));
    for rule in [
        "{ports: [{port: 53, protocol: UDP}]}",
        "{ports: [{port: 853}]}",
        "{to: [{ipBlock: {cidr: 192.0.2.1/32}}], ports: [{port: 53, protocol: UDP}]}",
        "{to: [{namespaceSelector: {}}], ports: [{port: 53, protocol: UDP}]}",
        "{}",
    ] {
        assert_eq!(finds(&format!("{{ports: [{{port: 6443}}]}}, {rule}")), None, "{rule}");
    }
}

/// A Service without selector leads to a name server outside of the cluster: the fix names its address.
#[test]
fn a_name_server_outside_of_the_cluster() {
    let objects = "{apiVersion: v1, kind: Namespace, metadata: {name: kube-system}}
---
{apiVersion: v1, kind: Service, metadata: {name: kube-dns, namespace: kube-system}, spec: {clusterIP: 10.96.0.10, ports: [{name: dns, port: 53, protocol: UDP}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: client, namespace: x, labels: {app: client}}, spec: {nodeName: n1, containers: [{name: c}]}, status: {podIP: 10.0.0.1}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}, addressType: IPv4, ports: [{name: dns, port: 53, protocol: UDP}], endpoints: [{addresses: [\"172.16.9.9\"]}]}
---
";
    let finds = |rules: &str| examine(&format!("{objects}{}", egress(rules))).1;
    let web = "{to: [{ipBlock: {cidr: 203.0.113.0/24}}], ports: [{port: 443}]}";
    let report = finds(web);
    assert_eq!(places(&report)["no-dns"].len(), 1);
    let fix = "add an egress rule: - {to: [{ipBlock: {cidr: 172.16.9.9/32}}], ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]}";
    assert_eq!(report.findings[0].fix, fix);
    let ask = "{to: [{ipBlock: {cidr: 172.16.0.0/16}}], ports: [{port: 53, protocol: UDP}]}";
    assert!(finds(&format!("{web}, {ask}")).findings.is_empty());
}

/// Checks node-local caches, name servers of clouds, pods that ask other servers, and servers run by the user.
#[test]
fn other_name_servers() {
    let objects = servers().remove(0).objects();
    let finds = |more: &str, rules: &str| {
        let (_, report) = examine(&format!("{objects}{more}{}", egress(rules)));
        places(&report).get("no-dns").map_or(0, Vec::len)
    };
    let web = "{to: [{ipBlock: {cidr: 203.0.113.0/24}}], ports: [{port: 443}]}";
    assert_eq!(finds("", web), 1);
    for resolver in ["169.254.20.10/32", "169.254.169.253/32", "168.63.129.16/32", "169.254.0.0/16"]
    {
        let rule = format!(
            "{web}, {{to: [{{ipBlock: {{cidr: {resolver}}}}}], ports: [{{port: 53, protocol: UDP}}]}}"
        );
        assert_eq!(finds("", &rule), 0, "{resolver}");
    }
    // Rules for single addresses, and for blocks without usable addresses, need no name lookups.
    for block in ["203.0.113.9/32", "0.0.0.0/24"] {
        assert_eq!(finds("", &format!("{{to: [{{ipBlock: {{cidr: {block}}}}}]}}")), 0, "{block}");
    }
    let public = "{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}], ports: [{port: 53, protocol: UDP}]}";
    assert_eq!(finds("", public), 1);
    let cache = |arguments: &str| {
        format!(
            "{{apiVersion: apps/v1, kind: DaemonSet, metadata: {{name: node-local-dns, namespace: kube-system}}, spec: \
             {{template: {{metadata: {{labels: {{k8s-app: node-local-dns}}}}, spec: {{hostNetwork: true, containers: \
             [{{name: node-cache, args: [-localip, '{arguments}']}}]}}}}}}}}\n---\n"
        )
    };
    assert_eq!(finds(&cache("169.254.20.10"), web), 0, "policy lets pods reach their own node");
    assert_eq!(
        finds(&cache("169.254.20.10,10.96.0.10"), web),
        1,
        "the Service's address counts by its backends"
    );
    let client = "name: client, namespace: x";
    let own = objects.replace(
        "spec: {nodeName: n1, containers",
        "spec: {nodeName: n1, dnsPolicy: Default, containers",
    );
    assert_ne!(own, objects);
    assert!(own.contains(client));
    let (_, report) = examine(&format!("{own}{}", egress(web)));
    assert!(!places(&report).contains_key("no-dns"), "{report:#?}");
}

/// A rule without ports for pods of the own namespace allows no DNS, except in a namespace of name servers.
#[test]
fn rules_for_own_pods_reach_no_name_server() {
    let finds = |namespace: &str, rules: &str| {
        let objects = ["web", "client"].map(|app| {
            let spec = "spec: {containers: [{name: c}]}";
            format!(
                "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: {app}, namespace: {namespace}}}, spec: \
                 {{template: {{metadata: {{labels: {{app: {app}}}}}, {spec}}}}}}}\n---\n"
            )
        });
        let policy = egress(rules).replace("namespace: x", &format!("namespace: {namespace}"));
        let (_, report) = examine(&format!("{}{policy}", objects.concat()));
        places(&report).contains_key("no-dns")
    };
    for (rules, is_found) in [
        ("{to: [{podSelector: {matchLabels: {app: web}}}]}", true),
        ("{to: [{podSelector: {}}]}", true),
        ("{to: [{podSelector: {matchLabels: {app: cache}}}]}", false),
        ("{to: [{namespaceSelector: {}}]}", false),
        ("{to: [{podSelector: {}}, {ipBlock: {cidr: 10.0.0.0/8}}]}", false),
        ("{to: [{podSelector: {}}]}, {ports: [{port: 53, protocol: UDP}]}", false),
    ] {
        assert_eq!(finds("x", rules), is_found, "{rules}");
        assert!(!finds("kube-system", rules), "{rules}");
    }
}

#[test]
fn caches_of_other_nodes() {
    let objects = servers().remove(0).objects();
    let cache = "
apiVersion: v1
kind: Pod
metadata: {name: node-local-dns-1, namespace: kube-system, labels: {k8s-app: node-local-dns}}
spec: {hostNetwork: true, nodeName: n1}
status: {podIP: 192.168.0.1}
---
";
    let of = |more: &str, rules: &str| {
        let spec = format!("podSelector: {{}}, policyTypes: [Ingress], ingress: [{rules}]");
        let policy = policy("p", &spec).replace("namespace: x", "namespace: kube-system");
        examine(&format!("{objects}{more}{policy}")).1
    };
    let check = "dns-server-closed";
    let pods = "{from: [{namespaceSelector: {}}], ports: [{port: 53, protocol: UDP}, {port: 53}]}";
    assert!(!places(&of("", pods)).contains_key(check));
    let report = of(cache, pods);
    let place = places(&report)[check][0];
    assert!(place.contains("caches of other nodes (Pod kube-system/node-local-dns-1)"), "{place}");
    let finding = report.findings.iter().find(|it| it.check == check).unwrap();
    let rule = finding.fix.split_once(": - ").unwrap().1;
    let block = "{from: [{ipBlock: {cidr: 192.168.0.0/24}}, {namespaceSelector: {}}]}";
    for rules in [rule, "{}", block] {
        assert!(!places(&of(cache, rules)).contains_key(check), "{rules}");
    }
    // Caches of unknown addresses: information only.
    let (_, report) = examine(&format!("{objects}{cache}{}", egress("{to: [{podSelector: {}}]}")));
    let finding = report.findings.iter().find(|it| it.check == "no-dns").unwrap();
    assert_eq!(finding.severity, super::Severity::Info, "{report:#?}");
}

#[test]
fn the_rule_for_a_cluster_network_policy_has_the_pods_port() {
    for server in servers().into_iter().filter(|server| server.service != "dns-main") {
        let of = |first: &str| {
            let policy = format!(
                "
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {{name: c}}
spec:
  tier: Admin
  priority: 1
  subject: {{namespaces: {{matchLabels: {{kubernetes.io/metadata.name: x}}}}}}
  egress: [{first}{{action: Deny, to: [{{namespaces: {{}}}}]}}]
"
            );
            examine(&format!("{}{policy}", server.objects())).1
        };
        let report = of("");
        let finding = report.findings.iter().find(|it| it.check == "no-dns").unwrap();
        let rule = finding.fix.split_once(": - ").unwrap().1;
        let fixed = of(&format!("{rule}, "));
        assert!(fixed.findings.is_empty(), "{rule}\n{fixed:#?}");
    }
}
