//! Statements of `explain`, `test`, `diff` and `doctor` about objects as clusters and charts have them: conditions of
//! endpoints, words of YAML 1.1, files without Namespaces.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;

use tempfile::TempDir;

use crate::command;
use crate::objects::{policy, service};

const ALLOWED: i32 = 0;
const DENIED: i32 = 1;
const DIFFERENT: i32 = 1;
const CANNOT_TELL: i32 = 2;

/// Runs a command in a folder with these files. Returns its exit status and its output.
fn netpold(files: &[(&str, &str)], arguments: &[&str]) -> (i32, String) {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    command::run(command::plugin(arguments).current_dir(folder.path()))
}

/// Runs a command, and compares the exit status and parts of the text.
#[track_caller]
fn states(files: &[(&str, &str)], arguments: &[&str], status: i32, parts: &[&str]) -> String {
    command::states(netpold(files, arguments), status, parts)
}

/// Asks `explain` for a TCP connection of these objects.
#[track_caller]
fn explained(
    objects: &[String],
    (from, to, port): (&str, &str, &str),
    status: i32,
    parts: &[&str],
) -> String {
    let asked = ["explain", "--manifests", ".", "--from", from, "--to", to, "--port", port];
    states(&[("all.yaml", &objects.join("\n---\n"))], &asked, status, parts)
}

fn pod(name: &str, node: &str, address: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{namespace: shop, name: {name}, labels: {{app: {name}}}}}, spec: \
         {{nodeName: {node}, containers: [{{name: c, ports: [{{name: http, containerPort: 8080}}]}}]}}, status: {{phase: \
         Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}}}"
    )
}

/// Namespace `shop`, two nodes, and pods `api` and `new` on the first, `web` and `old` on the second.
fn shop() -> Vec<String> {
    let node = |number: u8| {
        format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: n{number}}}, status: {{addresses: [{{type: InternalIP, \
             address: 192.168.5.{number}}}]}}}}"
        )
    };
    let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}".to_owned();
    let pods = [
        pod("api", "n1", "10.244.1.2"),
        pod("new", "n1", "10.244.1.3"),
        pod("web", "n2", "10.244.2.2"),
        pod("old", "n2", "10.244.2.3"),
    ];
    [vec![namespace, node(1), node(2)], pods.to_vec()].concat()
}

/// An EndpointSlice of Service `web`: addresses and conditions.
fn slice(endpoints: &[(&str, &str)]) -> String {
    let endpoints: Vec<String> = endpoints
        .iter()
        .map(|(address, conditions)| {
            format!("{{addresses: [{address}], conditions: {{{conditions}}}}}")
        })
        .collect();
    format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{namespace: shop, name: web-1, labels: \
         {{kubernetes.io/service-name: web}}}}, addressType: IPv4, ports: [{{name: http, port: 8080}}], endpoints: \
         [{}]}}",
        endpoints.join(", ")
    )
}

const TERMINATING: &str = "ready: false, serving: true, terminating: true";
const ENDED: &str = "ready: false, serving: false, terminating: true";

/// The nodes' proxy uses terminating endpoints that still serve only while no endpoint is ready.
#[test]
fn terminating_endpoints_count_while_none_is_ready() {
    let [open, closed] = [policy("web", "ingress: [{}]"), policy("old", "ingress: []")];
    let port = "ports: [{name: http, port: 80, targetPort: http}]";
    let of = |spec: &str, endpoints: &[(&str, &str)]| {
        let front = service(&format!("{spec}, {port}"));
        [shop(), vec![open.clone(), closed.clone(), front, slice(endpoints)]].concat()
    };
    let (web, old) = ("10.244.2.2", "10.244.2.3");
    let ask = ("shop/api", "svc/shop/web", "80");
    let every = "every backend is allowed";
    let none = "none of its backends is allowed";
    for spec in ["clusterIP: 10.96.0.9, type: ClusterIP", "type: ClusterIP"] {
        let of = |endpoints: &[(&str, &str)]| of(spec, endpoints);
        let text =
            explained(&of(&[(web, "ready: true"), (old, TERMINATING)]), ask, ALLOWED, &[every]);
        assert!(!text.contains("shop/old"), "{text}");
        let objects = of(&[(web, TERMINATING), (old, "ready: true")]);
        explained(&objects, ask, DENIED, &[none]);
        let objects = of(&[(web, TERMINATING), (old, ENDED)]);
        explained(&objects, ask, ALLOWED, &[every]);
        explained(&of(&[(old, TERMINATING)]), ask, DENIED, &[none]);
    }
    // The name of a headless Service resolves to ready pods alone.
    let objects = of("clusterIP: None", &[(web, TERMINATING)]);
    let ask_pods = ("shop/api", "svc/shop/web", "8080");
    explained(&objects, ask_pods, ALLOWED, &["has no ready backend: nothing answers now"]);
}

/// Without EndpointSlices a Service leads to the pods that it selects, which may be terminating.
#[test]
fn terminating_pods_are_terminating_endpoints() {
    let closed = policy("web", "ingress: []").replace("{app: web}", "{leaves: 'yes'}");
    let spec = "clusterIP: 10.96.0.9, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]";
    let objects = |deletion: &str| {
        let labels = format!("name: old, {deletion} labels: {{app: web, leaves: 'yes'}}");
        let leaving = |it: String| it.replace("name: old, labels: {app: old}", &labels);
        let pods: Vec<String> = shop().into_iter().map(leaving).collect();
        [pods, vec![closed.clone(), service(spec)]].concat()
    };
    let ask = ("shop/api", "svc/shop/web", "80");
    let differs = "it depends on the backend: 1 of 2 is allowed";
    explained(&objects(""), ask, CANNOT_TELL, &[differs]);
    let terminating = objects("deletionTimestamp: '2026-11-28T00:00:00Z',");
    explained(&terminating, ask, ALLOWED, &["every backend is allowed"]);
}

/// Local traffic falls back to terminating endpoints of the node, although endpoints of other nodes are ready.
#[test]
fn terminating_endpoints_of_the_node_count_where_the_service_is_local() {
    let port = "ports: [{name: http, port: 80, targetPort: http}]";
    let front = service(&format!("clusterIP: 10.96.0.9, internalTrafficPolicy: Local, {port}"));
    let endpoints = slice(&[("10.244.1.3", "ready: true"), ("10.244.2.3", TERMINATING)]);
    let objects =
        |spec: &str| [shop(), vec![policy("old", spec), front.clone(), endpoints.clone()]].concat();
    let ask = ("shop/web", "svc/shop/web", "80");
    let of = |count: &str| format!("none is ready there, and {count} terminating ones");
    explained(&objects("ingress: [{}]"), ask, ALLOWED, &[&of("1 of 1")]);
    explained(&objects("ingress: []"), ask, DENIED, &[&of("0 of 1")]);
}

/// Plain `y` and `n` are booleans to kubectl, which an API server refuses as labels: the policy is not understood, and no
/// verdict that depends on it is known.
#[test]
fn letters_that_kubectl_reads_as_booleans_are_no_text() {
    let ask = ("shop/api", "shop/web", "8080");
    let objects = |letter: &str| {
        let labelled = policy("web", "policyTypes: [Egress], egress: [{}]")
            .replace("{app: web}}", &format!("{{app: web, d: {letter}}}}}"));
        [shop(), vec![labelled]].concat()
    };
    explained(&objects("'y'"), ask, ALLOWED, &[]);
    for (letter, boolean) in [("y", "true"), ("Y", "true"), ("n", "false"), ("N", "false")] {
        let text = objects(letter).join("\n---\n");
        let parts = ["not-understood", &format!("is boolean `{boolean}`")];
        states(&[("all.yaml", &text)], &["doctor", "--manifests", "."], DENIED, &parts);
        let reason = "depends on NetworkPolicy shop/web";
        explained(&objects(letter), ("shop/web", "shop/api", "8080"), CANNOT_TELL, &[reason]);
    }
}

/// A file with a Namespace that the present objects lack: its labels are no change that the file makes.
#[test]
fn labels_of_a_namespace_that_one_side_lacks_are_no_change() {
    let labelled = "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}";
    let selector = |team: &str| format!("namespaceSelector: {{matchLabels: {{team: {team}}}}}");
    let from =
        |team: &str| policy("web", &format!("ingress: [{{from: [{{{}}}]}}]", selector(team)));
    let before = |team: &str| {
        let objects: Vec<String> =
            shop().into_iter().filter(|it| !it.contains("kind: Namespace")).collect();
        [objects, vec![from(team)]].concat().join("\n---\n")
    };
    let diff = ["diff", "--manifests", "now", "-f", "new.yaml"];
    let assumed =
        "not compared: Namespace shop is not among the objects before: labels as on the other side";
    let files = [("now/all.yaml", &*before("a")), ("new.yaml", labelled)];
    states(&files, &diff, CANNOT_TELL, &["no connection is cut or opened", assumed]);
    // A change of a selector is one, by the labels of the other side.
    let new = format!("{labelled}\n---\n{}", from("a"));
    let files = [("now/all.yaml", &*before("b")), ("new.yaml", &new)];
    let text = states(&files, &diff, DIFFERENT, &[assumed, "-> shop/web: gains everything"]);
    assert!(!text.contains("loses"), "{text}");
    // Without any Namespace the labels are not known.
    let new = from("a");
    let files = [("now/all.yaml", &*before("b")), ("new.yaml", &new)];
    let depends =
        "connections that depend on label team of Namespace shop, which is not among the objects";
    states(&files, &diff, CANNOT_TELL, &[depends]);
}

/// One document that cannot be read takes no assertion of the others, and is named with its line.
#[test]
fn assertions_beside_a_document_that_cannot_be_read_are_judged() {
    let all = shop().join("\n---\n");
    let own = "- {from: 192.168.5.1, to: shop/api, port: 8080, expect: allow}\n";
    let other = "- {from: shop/api, to: shop/web, port: 8080, expect: allow}\n";
    let test = ["test", "--manifests", "now", "-f", "test.yaml"];
    let run = |text: &str, status: i32, parts: &[&str]| {
        states(&[("now/all.yaml", &all), ("test.yaml", text)], &test, status, parts)
    };
    run(&format!("assertions:\n{own}{other}"), ALLOWED, &["2 passed"]);
    // Assertions decide about no others.
    let broken = format!("assertions:\n- {{from: [}}\n---\nassertions:\n{own}{other}");
    let parts = ["2 passed, 0 failed", "assertions that cannot be read: test.yaml:2: "];
    run(&broken, CANNOT_TELL, &parts);
    let fails = broken.replace("expect: allow}\n- {from: shop", "expect: deny}\n- {from: shop");
    run(&fails, DIFFERENT, &["1 passed, 1 failed", "cannot be read: test.yaml:2: "]);
    // An object may decide, but not about a node and a pod on it.
    let object = format!("kind: NetworkPolicy\nspec: {{[}}\n---\nassertions:\n{own}{other}");
    let parts = ["1 passed, 0 failed", "cannot be read: test.yaml:2: "];
    run(&object, CANNOT_TELL, &parts);
    // No assertion is left.
    run("assertions: [\n", CANNOT_TELL, &["test.yaml:"]);
}

/// A Deployment of a chart: its pods have no addresses yet.
fn deployment(name: &str) -> String {
    format!(
        "{{apiVersion: apps/v1, kind: Deployment, metadata: {{namespace: shop, name: {name}}}, spec: {{template: \
         {{metadata: {{labels: {{app: {name}}}}}, spec: {{containers: [{{name: c, ports: [{{name: http, containerPort: \
         8080}}]}}]}}}}}}}}"
    )
}

/// The address of a Service of a chart leads to the same backends as its name.
#[test]
fn addresses_of_a_service_lead_to_pods_without_addresses() {
    let objects = |spec: &str, rules: &str| {
        let port = "ports: [{name: http, port: 80, targetPort: http, nodePort: 30080}]";
        let front = service(&format!("clusterIP: 10.96.0.9, type: NodePort, {spec} {port}"));
        let [node, namespace] = [&shop()[1], &shop()[0]].map(Clone::clone);
        let chart = [deployment("web"), deployment("api"), policy("web", rules), front];
        [vec![namespace, node], chart.to_vec()].concat()
    };
    let (all, none) = ("ingress: [{}]", "ingress: []");
    let selector = "selector: {app: web},";
    for to in ["svc/shop/web", "10.96.0.9"] {
        let ask = |from| (from, to, "80");
        explained(&objects(selector, all), ask("shop/api"), ALLOWED, &["every backend is allowed"]);
        explained(&objects(selector, none), ask("shop/api"), DENIED, &["none of its backends"]);
        explained(&objects(selector, all), ask("198.51.100.7"), ALLOWED, &["every backend"]);
        // The answer is about two pods of the Deployment; it may have one.
        let itself = "none of its backends is allowed, but a pod of shop/web that is chosen itself is reached";
        explained(&objects(selector, none), ask("shop/web"), DENIED, &[itself]);
        explained(&objects(selector, all), ask("shop/web"), ALLOWED, &[]);
        let ping = ["--from", "shop/api", "--to", to, "--protocol", "ICMP"];
        let chart = objects(selector, none).join("\n---\n");
        let ask_ping = [&["explain", "--manifests", "."][..], &ping].concat();
        let text = states(&[("all.yaml", &chart)], &ask_ping, ALLOWED, &["no policy isolates"]);
        assert!(!text.contains("backend"), "nothing translates it: {text}");
        let unknown = "its EndpointSlices are not among the objects: its backends are not known";
        explained(&objects("", none), ask("shop/api"), CANNOT_TELL, &[unknown]);
    }
    let unaddressed = objects(selector, none).join("\n---\n").replace("clusterIP: 10.96.0.9,", "");
    let ask_ping = [
        "explain",
        "--manifests",
        ".",
        "--from",
        "shop/api",
        "--to",
        "svc/shop/web",
        "--protocol",
        "ICMP",
    ];
    let reason = "Service shop/web has no address yet, and nothing translates ICMP";
    states(&[("all.yaml", &unaddressed)], &ask_ping, CANNOT_TELL, &[reason]);
    let at_node = ("shop/api", "192.168.5.1", "30080");
    let reason = "a node port of Service shop/web, whose backends have no addresses yet";
    explained(&objects(selector, none), at_node, CANNOT_TELL, &[reason]);
}
