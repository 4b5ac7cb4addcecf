//! Policies compared with pods: selectors, ports, tiers.

use super::{CLUSTER, examine, found, of, one, places, policy};

#[test]
fn selectors_that_nothing_is() {
    let web = "podSelector: {matchLabels: {app: web}}";
    assert_eq!(one(web), []);
    assert_eq!(
        one("podSelector: {matchLabels: {app: wbe}}"),
        found("selects-nothing", "NetworkPolicy x/p: pods app=wbe")
    );
    // The client is in another namespace: a podSelector without a namespaceSelector selects in the policy's namespace
    // only.
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
    // A rule with the Service's port, without and with the port that packets have after the Service's translation.
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
    // A pod without listed ports may listen on any port.
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
    // Another policy may allow name lookups, for example to the name server only.
    let dns = "podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {}, \
               podSelector: {matchLabels: {k8s-app: kube-dns}}}]}]";
    assert_eq!(of(&[policy("p", &egress(client)), policy("dns", dns)]), []);
    // If the objects have no name server, any rule for the port may be meant for one.
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

/// A misspelt annotation leaves a policy enforced that was meant to be audited.
#[test]
fn annotations_of_policies() {
    let with = |metadata: &str| {
        let web = policy("p", "podSelector: {matchLabels: {app: web}}");
        of(&[web.replace("namespace: x", &format!("namespace: x, {metadata}"))])
    };
    let annotated = |entry: &str| with(&format!("annotations: {{netpold.io/{entry}}}"));
    assert_eq!(annotated("enforcement: audit"), []);
    assert_eq!(annotated("deny: reject"), []);
    let at = "NetworkPolicy x/p: metadata.annotations.netpold.io/";
    assert_eq!(
        annotated("enforcement: Audit"),
        found(
            "annotation-not-understood",
            &format!("{at}enforcement: `Audit` is not enforce or audit; the policy is enforced")
        )
    );
    assert_eq!(annotated("enforce: audit"), found("annotation-unknown", &format!("{at}enforce")));
    assert_eq!(
        with("labels: {netpold.io/enforcement: audit}"),
        found("annotation-unknown", "NetworkPolicy x/p: metadata.labels.netpold.io/enforcement")
    );
}

/// Selectors of operators' objects match no pod template of a chart.
#[test]
fn a_policy_of_a_chart_without_pods() {
    let chart = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: x}, spec: {template: {metadata: \
                 {labels: {app: web}}, spec: {containers: [{name: c}]}}}}\n---\n";
    let (status, report) =
        examine(&format!("{chart}{}", policy("p", "podSelector: {matchLabels: {app: operated}}")));
    let [finding] = &report.findings[..] else { panic!("{report:?}") };
    assert_eq!((status, &*finding.check), (0, "selects-nothing"));
    assert!(!finding.fix.contains("delete"), "{finding:?}");
}

/// Returns a ClusterNetworkPolicy of the Admin tier for a namespace.
fn admin(name: &str, namespace: &str, rules: &str) -> String {
    format!(
        "{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: {name}}}, spec: \
         {{tier: Admin, priority: 10, subject: {{namespaces: {{matchLabels: {{kubernetes.io/metadata.name: \
         '{namespace}'}}}}}}, {rules}}}}}\n---\n"
    )
}

/// The API leaves the order open only of policies that both apply to some traffic.
#[test]
fn equal_priorities_of_the_same_pods() {
    let deny = "[{action: Deny, to: [{networks: [203.0.113.0/24]}]}]";
    let egress = format!("egress: {deny}");
    let ingress = "ingress: [{action: Deny, from: [{namespaces: {}}]}]";
    let two = |first: &str, second: &str, rules: &str| {
        of(&[admin("a", first, &egress), admin("b", second, rules)])
    };
    assert_eq!(two("x", "x", &egress), found("equal-priority", "Admin 10: a, b"));
    assert_eq!(two("x", "y", &egress), [], "each tenant has its own");
    assert_eq!(two("x", "x", ingress), [], "of different directions");
}

/// Packets never have the Service's address where policy sees them: a Deny of the address denies nothing.
#[test]
fn a_deny_of_a_service_denies_nothing() {
    let rules = "egress: [{action: Deny, to: [{networks: [10.96.0.1/32]}]}]";
    let (status, report) = examine(&format!("{CLUSTER}{}", admin("p", "y", rules)));
    let [finding] = &report.findings[..] else { panic!("{report:?}") };
    assert_eq!((status, &*finding.check), (1, "block-of-a-service"));
    assert!(finding.problem.ends_with("it denies nothing"), "{finding:?}");
}

/// A NetworkPolicy cannot open DNS that a ClusterNetworkPolicy of the Admin tier denies.
#[test]
fn dns_that_a_tier_denies() {
    let to = "to: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: kube-system}}}]";
    let deny = admin("p", "y", &format!("egress: [{{action: Deny, {to}}}]"));
    let (_, report) = examine(&format!("{CLUSTER}{deny}"));
    let [finding] = &report.findings[..] else { panic!("{report:?}") };
    assert_eq!((&*finding.check, finding.places.len()), ("no-dns", 1), "{finding:?}");
    assert!(finding.fix.contains("- {action: Accept, to: [{pods: "), "{finding:?}");
    let all = "egress: [{action: Deny, to: [{networks: [0.0.0.0/0, '::/0']}]}]";
    assert_eq!(of(&[admin("p", "y", all)]), [], "pods that reach nothing need no names");
    let from = admin("p", "kube-system", "ingress: [{action: Deny, from: [{namespaces: {}}]}]");
    let (_, report) = examine(&format!("{CLUSTER}{from}"));
    let closed = report.findings.iter().find(|finding| finding.check == "dns-server-closed");
    let closed = closed.unwrap();
    assert!(closed.places[0].contains("ClusterNetworkPolicy p: spec.ingress"), "{closed:?}");
    assert!(closed.fix.contains("- {action: Accept, from: "), "{closed:?}");
}

#[test]
fn named_ports_of_some_pods() {
    let twin = "{apiVersion: v1, kind: Pod, metadata: {name: twin, namespace: x, labels: {app: web, v: '2'}}, spec: {nodeName: n2, \
                containers: [{name: c, ports: [{containerPort: 8080}]}]}, status: {podIP: 10.0.0.8}}\n---\n";
    let finds = |selector: &str| {
        let spec = format!("podSelector: {selector}, ingress: [{{ports: [{{port: http}}]}}]");
        let (_, report) = examine(&format!("{CLUSTER}{twin}{}", policy("p", &spec)));
        let found = places(&report);
        found
            .get("port-name-of-some")
            .map(|it| it.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let place = "NetworkPolicy x/p: spec.ingress[0].ports[0]: http (TCP), not Pod x/twin";
    assert_eq!(finds("{matchLabels: {app: web}}"), Some(vec![place.to_owned()]));
    // A rule for every pod applies to the pods with the port.
    assert_eq!(finds("{}"), None);
    assert_eq!(
        finds(
            "{matchExpressions: [{key: v, operator: DoesNotExist}, {key: app, operator: In, values: [web]}]}"
        ),
        None
    );
}
