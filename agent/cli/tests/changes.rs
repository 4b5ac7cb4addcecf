//! `diff` of moves into and out of the host's network, of Services, and of addresses that the objects do not give.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::process::Command;

use tempfile::TempDir;

const SAME: i32 = 0;
const DIFFERENT: i32 = 1;
const CANNOT_TELL: i32 = 2;

/// Compares two sets of objects. Returns the exit status and the output.
fn compared(before: &[&str], after: &[&str], arguments: &[&str]) -> (i32, String) {
    let folder = TempDir::new().unwrap();
    let mut process = Command::new(env!("CARGO_BIN_EXE_kubectl-netpold"));
    process.arg("diff").args(arguments).env_clear();
    for (option, objects) in [("--from", before), ("--to", after)] {
        let side = folder.path().join(option);
        fs::create_dir(&side).unwrap();
        fs::write(side.join("all.yaml"), objects.join("\n---\n")).unwrap();
        process.arg(option).arg(&side);
    }
    let output = process.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

/// Compares, and checks the exit status and parts of the text.
#[track_caller]
fn expect(before: &[&str], after: &[&str], status: i32, parts: &[&str]) -> String {
    let (found, text) = compared(before, after, &[]);
    assert_eq!(found, status, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    text
}

fn deployment(name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: apps/v1, kind: Deployment, metadata: {{namespace: shop, name: {name}}}, spec: {{template: \
         {{metadata: {{labels: {{app: {name}}}}}, spec: {{{spec} containers: [{{name: c, ports: [{{name: http, \
         containerPort: 8080}}]}}]}}}}}}}}"
    )
}

fn policy(app: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{namespace: shop, name: {app}}}, spec: \
         {{podSelector: {{matchLabels: {{app: {app}}}}}, {spec}}}}}"
    )
}

fn service(spec: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{namespace: shop, name: web}}, spec: {{{spec}}}}}"
    )
}

fn pod(name: &str, node: &str, address: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{namespace: shop, name: {name}, labels: {{app: {name}}}}}, spec: \
         {{nodeName: {node}, containers: [{{name: c}}]}}, status: {{phase: Running, podIP: {address}, podIPs: [{{ip: \
         {address}}}]}}}}"
    )
}

const NAMESPACE: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}";

#[test]
fn a_pod_that_moves_into_the_hosts_network_is_named_with_the_policies_it_escapes() {
    let (cart, deny) = (deployment("cart", ""), policy("web", "policyTypes: [Ingress, Egress]"));
    let (web, host) = (deployment("web", ""), deployment("web", "hostNetwork: true,"));
    let (within, outside) = ([NAMESPACE, &cart, &web, &deny], [NAMESPACE, &cart, &host, &deny]);
    let begins = "OPEN: shop/web: it uses the host's network now, so no policy isolates its ingress and egress any more, \
                  shop/web did";
    expect(&within, &outside, DIFFERENT, &[begins, "not compared: shop/web: it uses the host's"]);
    let ends = "ISOLATED: shop/web: it leaves the host's network, so shop/web isolates its ingress and egress";
    expect(&outside, &within, DIFFERENT, &[ends]);
    let (_, text) = compared(&within, &outside, &["-o", "json"]);
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let moved = serde_json::json!([{ "workload": "shop/web", "on_host": true, "some": false }]);
    assert_eq!(document["host_network"], moved);
}

/// Without isolation nothing opens, yet the rules of other policies match the pods no more.
#[test]
fn a_pod_that_no_policy_isolates_is_named_too_and_all_of_many() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let side = |spec: &str| names.map(|name| deployment(name, spec));
    let (within, outside) = (side(""), side("hostNetwork: true,"));
    let [within, outside] = [&within, &outside].map(|all| all.each_ref().map(String::as_str));
    let begin = names.map(|name| {
        format!(
            "HOST NETWORK: shop/{name}: it uses the host's network now: no policy applies to it any more"
        )
    });
    expect(&within, &outside, CANNOT_TELL, &begin.each_ref().map(String::as_str));
    let end = names.map(|name| {
        format!("HOST NETWORK: shop/{name}: it leaves the host's network: policies apply to it now")
    });
    expect(&outside, &within, CANNOT_TELL, &end.each_ref().map(String::as_str));
}

/// The policy allows port 8080 of pods; the changed Service leads its clients to port 9090.
#[test]
fn a_service_that_leads_elsewhere_cuts_its_clients() {
    let (cart, web) = (deployment("cart", ""), deployment("web", ""));
    let rule = policy("web", "ingress: [{from: [{podSelector: {}}], ports: [{port: http}]}]");
    let to = |target: &str| {
        service(&format!("selector: {{app: web}}, ports: [{{port: 80, targetPort: {target}}}]"))
    };
    let side = |service| [NAMESPACE.to_owned(), cart.clone(), web.clone(), rule.clone(), service];
    let (right, wrong) = (side(to("http")), side(to("9090")));
    let [right, wrong] = [&right, &wrong].map(|all| all.each_ref().map(String::as_str));
    // Another replica of web is a client, too.
    let text = "shop/cart, shop/web -> svc/shop/web: loses TCP 80\ncut: 2 pairs, opened: 0 pairs";
    expect(&right, &wrong, DIFFERENT, &[text]);
    expect(&wrong, &right, DIFFERENT, &["shop/cart, shop/web -> svc/shop/web: gains TCP 80"]);
    let number = side(to("8080"));
    let number = number.each_ref().map(String::as_str);
    expect(&right, &number, SAME, &["no connection is cut or opened\n"]);
}

#[test]
fn a_service_that_loses_its_pods_its_port_or_itself_is_not_compared() {
    let (cart, web) = (deployment("cart", ""), deployment("web", ""));
    let of = |selector: &str, port: u16| {
        service(&format!("selector: {{app: {selector}}}, ports: [{{port: {port}}}]"))
    };
    let (good, lost, other) = (of("web", 8080), of("wbe", 8080), of("web", 80));
    let before = [NAMESPACE, &cart, &web, &good];
    let nobody = "connections to Service shop/web at TCP 8080: no pod is behind it any more";
    expect(&before, &[NAMESPACE, &cart, &web, &lost], CANNOT_TELL, &[nobody]);
    let port = "connections to Service shop/web: it has no port TCP 8080 any more";
    expect(&before, &[NAMESPACE, &cart, &web, &other], CANNOT_TELL, &[port]);
    let gone = "connections to Service shop/web: it is gone";
    expect(&before, &[NAMESPACE, &cart, &web], CANNOT_TELL, &[gone]);
    // Its clients reach nobody before the change.
    expect(&[NAMESPACE, &cart, &web, &lost], &before, SAME, &[]);
}

/// One of two workloads behind a changed Service is closed: the answer depends on the backend.
#[test]
fn a_service_with_backends_that_differ_depends_on_the_backend() {
    let labelled = |name: &str| deployment(name, "").replace("labels: {", "labels: {tier: front, ");
    let (cart, web, old) = (deployment("cart", ""), labelled("web"), labelled("old"));
    let closed = policy("old", "policyTypes: [Ingress]");
    let [one, both] = ["app: web", "tier: front"]
        .map(|it| service(&format!("selector: {{{it}}}, ports: [{{port: 8080}}]")));
    let depends =
        "connections to Service shop/web at TCP 8080: it depends on the backend: 1 of 2 is allowed";
    expect(
        &[NAMESPACE, &cart, &web, &old, &closed, &one],
        &[NAMESPACE, &cart, &web, &old, &closed, &both],
        CANNOT_TELL,
        &[depends],
    );
}

#[test]
fn a_pods_own_node_that_is_not_among_the_objects_is_named_where_blocks_change() {
    let (web, cart) = (pod("web", "n1", "10.0.0.7"), pod("cart", "n2", "10.0.0.8"));
    let to = |block: &str| {
        policy(
            "web",
            &format!("policyTypes: [Egress], egress: [{{to: [{{ipBlock: {{cidr: {block}}}}}]}}]"),
        )
    };
    let note = "Node n1 is not among the objects: a pod and its own node always reach each other";
    let [one, other, public] =
        ["192.168.0.0/24", "192.168.1.0/24", "203.0.113.0/24"].map(|block| to(block));
    expect(&[NAMESPACE, &web, &cart, &one], &[NAMESPACE, &web, &cart, &other], DIFFERENT, &[note]);
    let node = "{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: \
                192.168.0.9}]}}";
    let known = [NAMESPACE, node, &web, &cart];
    let side = |policy: &'static str| [&known[..], &[policy]].concat();
    let [one, other] = [one, other].map(|it| &*it.leak());
    let text = expect(&side(one), &side(other), DIFFERENT, &[]);
    assert!(!text.contains("own node always"), "{text}");
    let nothing = to("198.51.100.0/24");
    let text = expect(&[NAMESPACE, &web, &public], &[NAMESPACE, &web, &nothing], DIFFERENT, &[]);
    assert!(!text.contains("own node always"), "{text}");
    let local = to("169.254.20.10/32");
    let link = "169.254.20.10/32 is link-local, maybe of nodes";
    expect(&[NAMESPACE, &web, &local], &[NAMESPACE, &web, &nothing], DIFFERENT, &[link]);
}

#[test]
fn clients_that_may_arrive_with_a_nodes_address_are_named() {
    let web = deployment("web", "");
    let from = |block: &str| {
        policy("web", &format!("ingress: [{{from: [{{ipBlock: {{cidr: {block}}}}}]}}]"))
    };
    let [open, customers] = ["0.0.0.0/0", "203.0.113.0/24"].map(|block| from(block));
    let of = |rest: &str| {
        service(&format!(
            "type: LoadBalancer, selector: {{app: web}}, ports: [{{port: 80, targetPort: http}}]{rest}"
        ))
    };
    let (cluster, local) = (of(""), of(", externalTrafficPolicy: Local"));
    let note = "externalTrafficPolicy of Service shop/web is Cluster: a node may replace the address of a client";
    expect(
        &[NAMESPACE, &web, &open, &cluster],
        &[NAMESPACE, &web, &customers, &cluster],
        DIFFERENT,
        &[note],
    );
    let sides = ([NAMESPACE, &web, &open, &local], [NAMESPACE, &web, &customers, &local]);
    let text = expect(&sides.0, &sides.1, DIFFERENT, &[]);
    assert!(!text.contains("externalTrafficPolicy"), "{text}");
    // A change for every client alike is none that depends on the address.
    let none = policy("web", "policyTypes: [Ingress]");
    let text = expect(
        &[NAMESPACE, &web, &open, &cluster],
        &[NAMESPACE, &web, &none, &cluster],
        DIFFERENT,
        &[],
    );
    assert!(!text.contains("externalTrafficPolicy"), "{text}");
}
