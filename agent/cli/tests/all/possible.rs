//! `explain`, `test` and `diff` of objects that leave several verdicts possible: several addresses of a hostNetwork pod,
//! Services where nothing answers, endpoints whose pods are absent, and policies that API servers refuse.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;

use tempfile::TempDir;

use crate::command::{plugin, run, states};
use crate::objects::{policy, service};

const ALLOWED: i32 = 0;
const DENIED: i32 = 1;
const CANNOT_TELL: i32 = 2;

const SHOP: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}";
const ADDRESS: &str = "clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9]";

/// Runs a command about objects. Returns its exit status and its output.
fn netpold(command: &str, objects: &[&str], arguments: &[&str]) -> (i32, String) {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("all.yaml"), objects.join("\n---\n")).unwrap();
    run(plugin(&[command, "--manifests"]).arg(folder.path()).args(arguments))
}

/// Explains a TCP connection, and compares the exit status and parts of the text.
#[track_caller]
fn explained(
    objects: &[&str],
    (from, to, port): (&str, &str, &str),
    status: i32,
    parts: &[&str],
) -> String {
    let asked = ["--from", from, "--to", to, "--port", port];
    states(netpold("explain", objects, &asked), status, parts)
}

/// A pod with its name as label `app`, and more of its spec.
fn pod(name: &str, (node, address): (&str, &str), spec: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{namespace: shop, name: {name}, labels: {{app: {name}}}}}, spec: \
         {{nodeName: {node}{spec}, containers: [{{name: c, ports: [{{name: http, containerPort: 8080}}]}}]}}, status: \
         {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}}}"
    )
}

fn node(number: u8, annotations: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Node, metadata: {{name: n{number}, annotations: {{{annotations}}}}}, spec: {{podCIDR: \
         10.244.{number}.0/24}}, status: {{addresses: [{{type: InternalIP, address: 192.168.5.{number}}}]}}}}"
    )
}

/// An EndpointSlice of Service `web` with one endpoint.
fn slice(pod: &str, address: &str, ports: &str, ready: bool) -> String {
    format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, metadata: {{namespace: shop, name: \
         web-1, labels: {{kubernetes.io/service-name: web}}}}, ports: [{ports}], endpoints: [{{addresses: [{address}], \
         conditions: {{ready: {ready}}}, targetRef: {{kind: Pod, namespace: shop, name: {pod}}}}}]}}"
    )
}

#[test]
fn a_host_network_pod_may_send_from_its_nodes_tunnel() {
    let calico = |number: u8| {
        node(number, &format!("projectcalico.org/IPv4VXLANTunnelAddr: 10.244.{number}.77"))
    };
    let flannel = |number: u8, backend: &str| {
        node(number, &format!("flannel.alpha.coreos.com/backend-type: {backend}"))
    };
    let web = pod("web", ("n1", "10.244.1.5"), "");
    let near = pod("near", ("n1", "192.168.5.1"), ", hostNetwork: true");
    let far = pod("far", ("n2", "192.168.5.2"), ", hostNetwork: true");
    let to_nodes = policy("web", "ingress: [{from: [{ipBlock: {cidr: 192.168.5.0/24}}]}]");
    let to_tunnels = policy("web", "ingress: [{from: [{ipBlock: {cidr: 10.244.0.0/16}}]}]");
    let to_both = policy(
        "web",
        "ingress: [{from: [{ipBlock: {cidr: 192.168.5.0/24}}, {ipBlock: {cidr: 10.244.2.0/24}}]}]",
    );
    let front = service(&format!("{ADDRESS}, selector: {{app: web}}, ports: [{{port: 8080}}]"));
    let ask = |nodes: [&str; 2], policy: &str, from: &str, status: i32, parts: &[&str]| {
        let objects = [&[SHOP, &web, &near, &far, &front, policy], &nodes[..]].concat();
        for to in ["shop/web", "svc/shop/web"] {
            explained(&objects, (from, to, "8080"), status, parts);
        }
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("a.yaml");
        let text =
            format!("assertions: [{{from: {from}, to: shop/web, port: 8080, expect: allow}}]");
        fs::write(&file, text).unwrap();
        let tested = netpold("test", &objects, &["-f", file.to_str().unwrap()]);
        states(tested, status, &[]);
    };
    let [one, two] = [1, 2].map(calico);
    let nodes = [one.as_str(), two.as_str()];
    let tunnel = "10.244.2.77 is an address of node n2 (Calico's VXLAN tunnel, vxlan.calico)";
    for closed in [&to_nodes, &to_tunnels] {
        ask(nodes, closed, "shop/far", CANNOT_TELL, &[tunnel, "192.168.5.2 to "]);
    }
    ask(nodes, &to_both, "shop/far", ALLOWED, &[]);
    ask(nodes, &policy("web", "ingress: []"), "shop/far", DENIED, &[]);
    // A node always reaches its own pods, and an address as the sender is the only one.
    ask(nodes, &to_nodes, "shop/near", ALLOWED, &[]);
    ask(nodes, &to_nodes, "192.168.5.2", ALLOWED, &[]);
    let [one, two] = [1, 2].map(|number| flannel(number, "vxlan"));
    ask([&one, &two], &to_nodes, "shop/far", CANNOT_TELL, &["10.244.2.0 is an address of node n2"]);
    // Flannel's host-gw backend has no tunnel, nor has a podCIDR alone.
    let [one, two] = [1, 2].map(|number| flannel(number, "host-gw"));
    ask([&one, &two], &to_nodes, "shop/far", ALLOWED, &[]);
    let [one, two] = [1, 2].map(|number| node(number, ""));
    ask([&one, &two], &to_nodes, "shop/far", ALLOWED, &[]);
}

#[test]
fn a_service_where_nothing_answers_has_the_verdict_of_all_possible_backends_or_none() {
    let [web, api] = [("web", "10.244.1.5"), ("api", "10.244.2.5")]
        .map(|(name, address)| pod(name, ("n1", address), ""));
    let front = |target: &str| {
        service(&format!(
            "{ADDRESS}, selector: {{app: web}}, ports: [{{port: 80, targetPort: {target}}}]"
        ))
    };
    let numbered = front("8080");
    let ask = ("shop/api", "svc/shop/web", "80");
    let none = "Service shop/web has no ready backend: nothing answers";
    // Nothing is behind the Service, and no policy is there.
    let text =
        explained(&[SHOP, &api, &numbered], ask, CANNOT_TELL, &[none, "app=web matches no pod"]);
    assert!(text.starts_with("cannot tell: shop/api"), "{text}");
    let asked = ["--from", ask.0, "--to", ask.1, "--port", ask.2, "-o", "json"];
    let (_, json) = netpold("explain", &[SHOP, &api, &numbered], &asked);
    assert!(json.contains(none) && !json.contains("is not a pod's address"), "{json}");
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("a.yaml");
    for expect in ["allow", "deny"] {
        let text = format!(
            "assertions: [{{from: shop/api, to: svc/shop/web, port: 80, expect: {expect}}}]"
        );
        fs::write(&file, text).unwrap();
        let tested = netpold("test", &[SHOP, &api, &numbered], &["-f", file.to_str().unwrap()]);
        states(tested, CANNOT_TELL, &["DEPENDS", none]);
    }
    // No rule of the sender allows any pod that the selector may match.
    let closed = policy(
        "api",
        "policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: db}}}]}]",
    );
    explained(&[SHOP, &api, &numbered, &closed], ask, DENIED, &[none, "isolated by shop/api"]);
    for open in [
        "[{to: [{podSelector: {matchLabels: {app: web}}}]}]",
        "[{to: [{podSelector: {matchLabels: {tier: front}}}], ports: [{port: 8080}]}]",
        "[{to: [{ipBlock: {cidr: 10.244.0.0/16}}]}]",
    ] {
        let open = policy("api", &format!("policyTypes: [Egress], egress: {open}"));
        explained(&[SHOP, &api, &numbered, &open], ask, CANNOT_TELL, &[none]);
    }
    let other = policy("api", "policyTypes: [Egress], egress: [{ports: [{port: 9090}]}]");
    explained(&[SHOP, &api, &numbered, &other], ask, DENIED, &[none]);
    // Backends that are not ready.
    let waiting = slice("web", "10.244.1.5", "{port: 8080}", false);
    let objects = [SHOP, &web, &api, &numbered, &waiting];
    explained(&objects, ask, ALLOWED, &[none, "now; the possible one is allowed"]);
    let text = explained(&[&objects[..], &[&closed]].concat(), ask, DENIED, &[none, "is denied"]);
    assert!(text.contains("isolated by shop/api"), "{text}");
    // A wrong name of a port.
    explained(
        &[SHOP, &web, &api, &front("htpp")],
        ask,
        CANNOT_TELL,
        &[none, "targetPort htpp is not the name of a port of shop/web"],
    );
    // Only backends of the client's node are chosen, and there is none.
    let local = numbered.replace("clusterIP:", "internalTrafficPolicy: Local, clusterIP:");
    let away = pod("api", ("n2", "10.244.2.5"), "");
    let objects = [SHOP, &web, &away, &local];
    explained(&objects, ask, CANNOT_TELL, &["internalTrafficPolicy is Local", "nothing answers"]);
    explained(&[&objects[..], &[&closed]].concat(), ask, DENIED, &["isolated by shop/api"]);
}

#[test]
fn the_pod_of_an_endpoint_need_not_be_among_the_objects() {
    let api = pod("api", ("n2", "10.244.2.5"), "");
    let front = service(&format!(
        "{ADDRESS}, selector: {{app: web}}, ports: [{{port: 80, targetPort: http}}]"
    ));
    let endpoint = slice("web-6b8f7", "10.244.1.5", "{port: 8080}", true);
    let export = [SHOP, &api, &front, &endpoint];
    let ask = ("shop/api", "svc/shop/web", "80");
    let egress = |rules: &str| policy("api", &format!("policyTypes: [Egress], egress: {rules}"));
    let to = |labels: &str| {
        egress(&format!("[{{to: [{{podSelector: {{matchLabels: {{{labels}}}}}}}]}}]"))
    };
    let judge = |more: &[&str], status: i32, parts: &[&str]| {
        explained(&[&export[..], more].concat(), ask, status, parts);
    };
    let absent = "not among the objects";
    judge(&[&to("app: web")], ALLOWED, &[absent]);
    judge(&[&to("app: db")], DENIED, &[absent]);
    judge(
        &[&to("app: web, tier: front")],
        CANNOT_TELL,
        &["pod shop/web-6b8f7", "depends on its tier"],
    );
    // The targetPort gives one name, any other one is unknown.
    judge(&[&egress("[{ports: [{port: http}]}]")], ALLOWED, &[absent]);
    judge(&[&egress("[{ports: [{port: metrics}]}]")], CANNOT_TELL, &["port metrics"]);
    // The endpoint's own policies judge it, too.
    judge(&[&policy("web", "ingress: []")], DENIED, &["isolated by shop/web"]);
    // A template has all labels.
    let template = "{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: shop, name: web}, spec: {template: \
                    {metadata: {labels: {app: web, tier: front}}, spec: {containers: [{name: c}]}}}}";
    judge(&[template, &to("app: web, tier: front")], ALLOWED, &[]);
    judge(&[template, &to("app: web, tier: back")], DENIED, &[]);
}

#[test]
fn a_policy_that_api_servers_refuse_decides_nothing() {
    let [web, api] = [("web", "10.244.1.5"), ("api", "10.244.2.5")]
        .map(|(name, address)| pod(name, ("n1", address), ""));
    let of = |version: &str, spec: &str| {
        format!(
            "{{apiVersion: {version}, kind: NetworkPolicy, metadata: {{namespace: shop, name: bad}}, spec: {{{spec}}}}}"
        )
    };
    let current = |spec: &str| of("networking.k8s.io/v1", spec);
    let ask = ("shop/api", "shop/web", "8080");
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("a.yaml");
    let deny = "assertions: [{from: shop/api, to: shop/web, port: 8080, expect: deny}]";
    fs::write(&file, deny).unwrap();
    let depends = "depends on NetworkPolicy shop/bad";
    for bad in [
        current("podSelector: {matchLabels: {enabled: true}}, policyTypes: [Ingress]"),
        of("extensions/v1beta1", "podSelector: {}, policyTypes: [Ingress]"),
        current("podSelector: {}, policyTypes: [ingress]"),
        current("podSelector: {}, policyTypes: [Egress], egress: [{namespaceSelector: {}}]"),
        current("podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/40}}]}]"),
        current("podSelector: {}, policyTypes: [Ingress, Egress, Ingress]"),
    ] {
        explained(&[SHOP, &web, &api, &bad], ask, CANNOT_TELL, &[depends]);
        let tested = netpold("test", &[SHOP, &web, &api, &bad], &["-f", file.to_str().unwrap()]);
        states(tested, CANNOT_TELL, &["DEPENDS", depends]);
    }
    // Pods that it cannot select, and pods that another policy opens, have their verdict.
    let bad = "policyTypes: [ingress]";
    let other = current(&format!("podSelector: {{matchLabels: {{app: db}}}}, {bad}"));
    explained(&[SHOP, &web, &api, &other], ask, ALLOWED, &[]);
    let bad = current(&format!("podSelector: {{}}, {bad}"));
    let opens = ["web", "api"]
        .map(|app| policy(app, "policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]"));
    explained(&[SHOP, &web, &api, &bad, &opens[0], &opens[1]], ask, ALLOWED, &[]);
    // Another policy denies it anyway, unless a field that is left out opens the refused one.
    let denies = policy("web", "ingress: []");
    explained(&[SHOP, &web, &api, &bad, &denies], ask, DENIED, &["isolated by shop/bad, shop/web"]);
    let pruned = current("podSelector: {}, policyTypes: [Ingress], ingress: [{podSelector: {}}]");
    explained(&[SHOP, &web, &api, &pruned, &denies], ask, CANNOT_TELL, &[depends]);
    // An annotation of netpold is no problem of API servers.
    let own = current("podSelector: {}, policyTypes: [Ingress]")
        .replace("name: bad", "name: bad, annotations: {netpold.io/deny: perhaps}");
    explained(&[SHOP, &web, &api, &own], ask, DENIED, &["isolated by shop/bad"]);
    // A change by such a policy is not compared, and cuts nothing.
    fs::write(&file, &bad).unwrap();
    let changed = netpold("diff", &[SHOP, &web, &api], &["-f", file.to_str().unwrap()]);
    let text = states(changed, CANNOT_TELL, &["not compared", "NetworkPolicy shop/bad"]);
    assert!(!text.contains("loses"), "{text}");
}

/// By the schema of its definition.
#[test]
fn a_cluster_policy_that_api_servers_refuse_decides_nothing() {
    let [web, api] = [("web", "10.244.1.5"), ("api", "10.244.2.5")]
        .map(|(name, address)| pod(name, ("n1", address), ""));
    let of = |metadata: &str, head: &str, rules: &str| {
        format!(
            "{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: bad{metadata}}}, \
             spec: {{tier: {head}, subject: {{namespaces: {{}}}}, ingress: [{rules}]}}}}"
        )
    };
    let everyone = "from: [{namespaces: {}}]";
    let deny = format!("{{action: Deny, {everyone}}}");
    let many = vec![deny.as_str(); 26].join(", ");
    let ask = ("shop/api", "shop/web", "8080");
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("a.yaml");
    let expects = "assertions: [{from: shop/api, to: shop/web, port: 8080, expect: deny}]";
    fs::write(&file, expects).unwrap();
    let depends = "depends on ClusterNetworkPolicy bad";
    let (admin, word) = ("Admin, priority: 1", format!("{{action: Block, {everyone}}}"));
    for bad in [
        of("", "Middle, priority: 1", &deny),
        of("", "Admin, priority: 1001", &deny),
        of("", "Admin", &deny),
        of("", admin, &word),
        of("", admin, "{action: Deny, from: [{moons: {}}]}"),
        of("", admin, "{action: Deny, from: []}"),
        of("", admin, &many),
    ] {
        explained(&[SHOP, &web, &api, &bad], ask, CANNOT_TELL, &[depends]);
        let tested = netpold("test", &[SHOP, &web, &api, &bad], &["-f", file.to_str().unwrap()]);
        states(tested, CANNOT_TELL, &["DEPENDS", depends]);
    }
    // Pods that are no subject, and connections that are denied anyway.
    let bad = of("", admin, &word);
    let other =
        bad.replace("namespaces: {}}, ingress", "namespaces: {matchLabels: {a: b}}}, ingress");
    explained(&[SHOP, &web, &api, &other], ask, ALLOWED, &[]);
    let denies = policy("web", "ingress: []");
    explained(&[SHOP, &web, &api, &bad, &denies], ask, DENIED, &[]);
    // An API server has stored the policy.
    let stored = of(", uid: u", admin, &many);
    explained(&[SHOP, &web, &api, &stored], ask, DENIED, &[]);
    // A change by such a policy is not compared, and cuts nothing.
    fs::write(&file, &bad).unwrap();
    let changed = netpold("diff", &[SHOP, &web, &api], &["-f", file.to_str().unwrap()]);
    let text = states(changed, CANNOT_TELL, &["not compared", "ClusterNetworkPolicy bad"]);
    assert!(!text.contains("loses"), "{text}");
}

#[test]
fn a_service_is_named_in_the_namespace_of_the_option() {
    let [web, api] = [("web", "10.244.1.5"), ("api", "10.244.2.5")]
        .map(|(name, address)| pod(name, ("n1", address), ""));
    let front = service(&format!("{ADDRESS}, selector: {{app: web}}, ports: [{{port: 8080}}]"));
    let asked = ["-n", "shop", "--from", "api", "--to", "svc/web", "--port", "8080"];
    states(netpold("explain", &[SHOP, &web, &api, &front], &asked), ALLOWED, &["svc/shop/web"]);
    let asked = ["-n", "shop", "--from", "api", "--to", "svc/wob", "--port", "8080"];
    states(netpold("explain", &[SHOP, &web, &api, &front], &asked), CANNOT_TELL, &["svc/wob"]);
}
