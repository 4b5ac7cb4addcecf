//! `explain` and `test` of objects that lack a property on which the answer depends: those of charts, of exports without
//! every kind, and Services before controllers have completed them.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::command;
use crate::objects::{policy, service};

const ALLOWED: i32 = 0;
const DENIED: i32 = 1;
const CANNOT_TELL: i32 = 2;

/// Runs a command about objects. Returns its exit status and its output.
fn netpold(command: &str, objects: &[String], arguments: &[&str]) -> (i32, String) {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("all.yaml"), objects.join("\n---\n")).unwrap();
    command::run(command::plugin(&[command, "--manifests"]).arg(folder.path()).args(arguments))
}

/// Explains a TCP connection, and compares the exit status and parts of the text.
#[track_caller]
fn explained(
    objects: &[String],
    (from, to, port): (&str, &str, &str),
    status: i32,
    parts: &[&str],
) -> String {
    let asked = ["--from", from, "--to", to, "--port", port];
    command::states(netpold("explain", objects, &asked), status, parts)
}

fn workload(kind: &str, name: &str) -> String {
    let template = format!(
        "{{metadata: {{labels: {{app: {name}}}}}, spec: {{containers: [{{name: c, ports: [{{name: http, \
         containerPort: 8080}}]}}]}}}}"
    );
    let (version, spec) = match kind {
        "CronJob" => ("batch/v1", format!("{{jobTemplate: {{spec: {{template: {template}}}}}}}")),
        _ => ("apps/v1", format!("{{template: {template}}}")),
    };
    format!(
        "{{apiVersion: {version}, kind: {kind}, metadata: {{namespace: shop, name: {name}}}, spec: {spec}}}"
    )
}

fn pod(name: &str, app: &str, node: &str, address: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{namespace: shop, name: {name}, labels: {{app: {app}}}}}, spec: \
         {{nodeName: {node}, containers: [{{name: c, ports: [{{name: http, containerPort: 8080}}]}}]}}, status: {{phase: \
         Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}}}"
    )
}

fn node(name: &str, number: u8) -> String {
    format!(
        "{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}, spec: {{podCIDR: 10.244.{number}.0/24}}, status: \
         {{addresses: [{{type: InternalIP, address: 192.168.5.{number}}}]}}}}"
    )
}

fn namespace(name: &str, labels: &str) -> String {
    format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, labels: {{{labels}}}}}}}")
}

fn slice(name: &str, port: u16, address: &str, ready: bool) -> String {
    format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{namespace: shop, name: {name}, labels: \
         {{kubernetes.io/service-name: web}}}}, addressType: IPv4, ports: [{{name: http, port: {port}}}], endpoints: \
         [{{addresses: [{address}], conditions: {{ready: {ready}}}}}]}}"
    )
}

/// Ingress from the pods of namespaces with these labels.
fn from_namespaces(selector: &str) -> String {
    policy("web", &format!("ingress: [{{from: [{{namespaceSelector: {{{selector}}}}}]}}]"))
}

const ASK: (&str, &str, &str) = ("shop/api", "shop/web", "8080");
const PORTS: &str = "ports: [{name: http, port: 80, targetPort: http}], selector: {app: web}";

#[test]
fn labels_of_an_absent_namespace_are_not_known() {
    let [web, api] = ["web", "api"].map(|name| workload("Deployment", name));
    let with = |policy: String, more: &[String]| {
        [vec![web.clone(), api.clone(), policy], more.to_vec()].concat()
    };
    let reason = "cannot tell: Namespace shop is not among the objects: the answer depends on its label team";
    for selector in [
        "matchLabels: {team: a}",
        "matchExpressions: [{key: team, operator: DoesNotExist}]",
        "matchExpressions: [{key: team, operator: NotIn, values: [a]}]",
        "matchExpressions: [{key: team, operator: Exists}]",
    ] {
        explained(&with(from_namespaces(selector), &[]), ASK, CANNOT_TELL, &[reason]);
    }
    // The one known label, and labels on which the answer does not depend.
    let own = from_namespaces("matchLabels: {kubernetes.io/metadata.name: shop}");
    explained(&with(own, &[]), ASK, ALLOWED, &[]);
    let other = from_namespaces("matchLabels: {kubernetes.io/metadata.name: mon, team: a}");
    explained(&with(other, &[]), ASK, DENIED, &["the Namespace is not among the objects"]);
    let any = policy("web", "ingress: [{from: [{namespaceSelector: {matchLabels: {a: b}}}]}, {}]");
    explained(&with(any, &[]), ASK, ALLOWED, &[]);
    let absent = from_namespaces("matchExpressions: [{key: team, operator: DoesNotExist}]");
    let known = |labels| [namespace("shop", labels)];
    explained(&with(absent.clone(), &known("")), ASK, ALLOWED, &[]);
    explained(&with(absent, &known("team: a")), ASK, DENIED, &[]);
    let cluster_policy = "{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: p}, \
                          spec: {tier: Admin, priority: 1, subject: {namespaces: {matchLabels: {team: a}}}, ingress: \
                          [{action: Deny, from: [{namespaces: {}}]}]}}";
    explained(&with(cluster_policy.to_owned(), &[]), ASK, CANNOT_TELL, &[reason]);
}

/// A document that cannot be read may hold any policy, pod or Service; the others are used.
#[test]
fn a_document_that_cannot_be_read_may_decide() {
    let [web, api] =
        [("web", "10.244.1.2"), ("api", "10.244.2.3")].map(|(name, at)| pod(name, name, "n1", at));
    let host =
        pod("host", "host", "n2", "192.168.5.2").replace("spec: {", "spec: {hostNetwork: true, ");
    let objects = [web, api, host, node("n1", 1), node("n2", 2), namespace("shop", "")];
    let broken = policy("web", "ingress: [").replace("}}}", "}");
    let with_broken = [&objects[..], &[broken]].concat();
    let reason = "cannot tell: the answer may depend on a document that cannot be read: ";
    let readable = "by the others: allow";
    explained(&objects, ASK, ALLOWED, &[]);
    explained(
        &with_broken,
        ASK,
        CANNOT_TELL,
        &[reason, "all.yaml:13: ", readable, "ingress of pod"],
    );
    explained(&with_broken, ("203.0.113.1", "shop/web", "8080"), CANNOT_TELL, &[reason]);
    explained(&with_broken, ("shop/host", "203.0.113.1", "8080"), CANNOT_TELL, &[reason]);
    // No policy decides on a pod's own address, nor between pods on the host's network and nodes.
    explained(&with_broken, ("shop/web", "shop/web", "8080"), ALLOWED, &[]);
    explained(&with_broken, ("shop/host", "192.168.5.1", "8080"), ALLOWED, &[]);
    explained(&with_broken, ("shop/web", "127.0.0.1", "8080"), ALLOWED, &["loopback"]);
    // A file that cannot be opened, and standard input.
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("all.yaml"), objects.join("\n---\n")).unwrap();
    std::os::unix::fs::symlink("/none", folder.path().join("gone.yaml")).unwrap();
    let pipe = Command::new("mkfifo").arg(folder.path().join("pipe.yaml")).status().unwrap();
    assert!(pipe.success());
    let run = |arguments: &[&str], input: &[u8]| {
        let mut process = command::plugin(arguments);
        process.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = process.stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    };
    let path = folder.path().to_str().unwrap();
    let ask = ["--from", "shop/api", "--to", "shop/web", "--port", "8080"];
    let (status, text) = run(&[&["explain", "--manifests", path], &ask[..]].concat(), b"");
    assert!(status == CANNOT_TELL && text.contains("gone.yaml: cannot be read"), "{text}");
    assert!(text.contains("pipe.yaml: cannot be read: not a regular file"), "{text}");
    let all = with_broken.join("\n---\n");
    let (status, text) =
        run(&[&["explain", "--manifests", "-"], &ask[..]].concat(), all.as_bytes());
    assert!(status == CANNOT_TELL && text.contains("standard input:13: "), "{text}");
    let (status, text) = run(&["doctor", "--manifests", "-"], all.as_bytes());
    assert!(status == 1 && text.contains("document-not-read"), "{text}");
    // Many questions, and assertions.
    let probes = br#"{"from": "shop/api", "to": "shop/web", "port": 8080, "protocol": "TCP"}"#;
    let (status, text) = run(&["explain", "--manifests", path, "--probes", "-"], probes);
    assert!(status == CANNOT_TELL && text.contains("\"error\":\"the answer may depend"), "{text}");
    let assertions = b"assertions: [{from: shop/api, to: shop/web, port: 8080, expect: allow}]";
    let (status, text) = run(&["test", "--manifests", path, "-f", "-"], assertions);
    assert!(status == CANNOT_TELL && text.contains("gone.yaml: cannot be read"), "{text}");
    // A chart's template is named as one.
    fs::write(folder.path().join("z.yaml"), "{{ if .Values.x }}\na: [\n").unwrap();
    let (_, text) = run(&["doctor", "--manifests", path], b"");
    assert!(text.contains("it looks like a template: helm template renders it"), "{text}");
}

/// Values without text, such as those of charts, are empty labels, and an empty rule allows everything.
#[test]
fn empty_values_are_read_as_the_api_server_reads_them() {
    let pods = on_two_nodes();
    let rule = policy("web", "ingress: [null]");
    explained(&[&pods[..], &[rule]].concat(), ASK, ALLOWED, &["isolated by shop/web"]);
    let labelled = pods[0].replace("labels: {app: web}", "labels: {app: web, part: }");
    let selected =
        policy("web", "policyTypes: [Ingress]").replace("{app: web}}", "{app: web, part: }}");
    let objects = [&pods[1..], &[labelled, selected]].concat();
    explained(&objects, ASK, DENIED, &["isolated by shop/web"]);
    let other = ("shop/api", "shop/web2", "8080");
    explained(&objects, other, ALLOWED, &[]);
}

/// Only the pods of an Indexed Job have their index as a label.
#[test]
fn pods_of_an_indexed_job_have_an_index() {
    let job = |mode: &str| {
        workload("Job", "api")
            .replace("apps/v1", "batch/v1")
            .replace("spec: {template", &format!("spec: {{{mode}template"))
    };
    let from = |operator: &str| {
        let key = "batch.kubernetes.io/job-completion-index";
        policy(
            "web",
            &format!(
                "ingress: [{{from: [{{podSelector: {{matchExpressions: [{{key: {key}, operator: {operator}}}]}}}}]}}]"
            ),
        )
    };
    let ask = ("shop/api", "shop/web", "8080");
    let pods = on_two_nodes();
    let web = pods.iter().find(|it| it.contains("name: web,")).unwrap();
    let status = |mode: &str, operator: &str| {
        let objects = [job(mode), web.clone(), from(operator)];
        netpold("explain", &objects, &["--from", ask.0, "--to", ask.1, "--port", ask.2]).0
    };
    let indexed = "completionMode: Indexed, ";
    assert_eq!([status(indexed, "Exists"), status("", "Exists")], [ALLOWED, DENIED]);
    assert_eq!([status(indexed, "DoesNotExist"), status("", "DoesNotExist")], [DENIED, ALLOWED]);
}

/// Pods `web` on node n1 and `api` on node n2, with a Service `web` of both kinds of backends.
fn on_two_nodes() -> Vec<String> {
    let pods =
        [("web", "n1", "10.244.1.2"), ("web2", "n2", "10.244.2.2"), ("api", "n2", "10.244.2.3")];
    let mut objects = pods.map(|(name, at, address)| pod(name, name, at, address)).to_vec();
    objects.extend([node("n1", 1), node("n2", 2), namespace("shop", "")]);
    objects
}

/// kube-proxy replaces the address of every client of an external address, of pods too.
#[test]
fn pods_at_external_addresses_of_services_may_arrive_as_nodes() {
    let from_api = policy("web", "ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]");
    let of = |external: &str| {
        let spec = format!(
            "type: LoadBalancer, clusterIP: 10.96.0.9, externalIPs: [203.0.113.9], {external} selector: {{app: web}}, ports: \
             [{{port: 80, targetPort: 8080, nodePort: 30080}}]"
        );
        [on_two_nodes(), vec![from_api.clone(), service(&spec)]].concat()
    };
    let reason = "the entry node may replace the address of shop/api by an address of its own";
    for to in ["203.0.113.9:80", "192.168.5.2:30080"] {
        let (to, port) = to.split_once(':').unwrap();
        explained(&of(""), ("shop/api", to, port), CANNOT_TELL, &[reason]);
    }
    explained(&of(""), ("shop/api", "10.96.0.9", "80"), ALLOWED, &[]);
    explained(&of(""), ("shop/api", "svc/shop/web", "80"), ALLOWED, &[]);
    let local = of("externalTrafficPolicy: Local,");
    explained(&local, ("shop/api", "203.0.113.9", "80"), ALLOWED, &[]);
    // From outside, a node without a backend answers nothing.
    let at_n2 = ("198.51.100.5", "192.168.5.2", "30080");
    explained(&local, at_n2, DENIED, &["externalTrafficPolicy is Local", "none is ready there"]);
}

#[test]
fn only_backends_of_the_clients_node_are_chosen_where_the_service_is_local() {
    let closed = policy("web2", "ingress: []");
    let of = |traffic: &str| {
        let spec = format!("clusterIP: 10.96.0.9, {traffic} ports: [{{name: http, port: 80}}]");
        let slices = [("10.244.1.2", "a"), ("10.244.2.2", "b")];
        let slices = slices.map(|(address, name)| slice(name, 8080, address, true));
        [on_two_nodes(), vec![closed.clone(), service(&spec)], slices.to_vec()].concat()
    };
    let ask = ("shop/api", "svc/shop/web", "80");
    explained(&of(""), ask, CANNOT_TELL, &["it depends on the backend: 1 of 2 is allowed"]);
    let local = of("internalTrafficPolicy: Local,");
    explained(&local, ask, DENIED, &["only backends on node n2 are chosen (1 left out)"]);
    let from_n1 = ("shop/web", "10.96.0.9", "80");
    explained(&local, from_n1, ALLOWED, &["only backends on node n1 are chosen"]);
}

#[test]
fn a_host_port_is_translated_to_its_pod() {
    let closed = policy("web", "ingress: []");
    let web = pod("web", "web", "n1", "10.244.1.2")
        .replace("containerPort: 8080", "containerPort: 8080, hostPort: 18080");
    let api = pod("api", "api", "n2", "10.244.2.3");
    let objects = [web, api, node("n1", 1), node("n2", 2), namespace("shop", ""), closed];
    let reason = "port 18080 of node n1 is a hostPort of pod shop/web: translated to its port 8080, the answer is deny";
    explained(&objects, ("shop/api", "192.168.5.1", "18080"), CANNOT_TELL, &[reason]);
    explained(&objects, ("shop/api", "192.168.5.1", "18081"), ALLOWED, &[]);
    explained(&objects, ("shop/api", "192.168.5.2", "18080"), ALLOWED, &[]);
}

/// Pods of one workload differ by address and node; and a Service sends nothing.
#[test]
fn a_workload_is_answered_for_all_of_its_pods() {
    let run = |number: u8| {
        let meta = format!(
            "name: dep-7c9f6d5b4-aaaa{number}, labels: {{app: dep, pod-template-hash: 7c9f6d5b4}}"
        );
        pod("NAME", "NAME", &format!("n{number}"), &format!("10.244.{number}.31"))
            .replace("name: NAME, labels: {app: NAME}", &meta)
    };
    let block = policy("web", "ingress: [{from: [{ipBlock: {cidr: 10.244.1.0/24}}]}]");
    let web = pod("web", "web", "n3", "10.244.3.2");
    let objects = [run(4), run(5), web, namespace("shop", ""), block];
    let ask = ("shop/dep", "shop/web", "8080");
    explained(&objects, ask, DENIED, &[]);
    let objects = [&[run(1)][..], &objects].concat();
    explained(&objects, ask, CANNOT_TELL, &["it depends on the pod: ", "name a pod"]);
    let service = service("clusterIP: 10.96.0.9, selector: {app: web}, ports: [{port: 80}]");
    let objects = [&objects[..], &[service]].concat();
    let sends = ("svc/shop/web", "shop/web", "80");
    explained(&objects, sends, CANNOT_TELL, &["a Service sends no packets; name its pods"]);
}

#[test]
fn labels_that_controllers_set_are_present_with_an_unknown_value() {
    let subject = |kind, selector: &str| {
        let policy = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: shop, name: p}, spec: \
                      {podSelector: {SELECTOR}, policyTypes: [Ingress]}}";
        let policy = policy.replace("SELECTOR", selector);
        [workload(kind, "web"), workload("Deployment", "api"), policy]
    };
    let exists = "matchExpressions: [{key: pod-template-hash, operator: Exists}]";
    explained(&subject("Deployment", exists), ASK, DENIED, &["isolated by shop/p"]);
    explained(&subject("StatefulSet", exists), ASK, ALLOWED, &[]);
    let index = "matchLabels: {apps.kubernetes.io/pod-index: \"0\"}";
    let reason = "the answer depends on label apps.kubernetes.io/pod-index, which a controller sets on the pods of \
                  StatefulSet shop/web (template)";
    explained(&subject("StatefulSet", index), ASK, CANNOT_TELL, &[reason]);
    let name = |name| format!("matchLabels: {{statefulset.kubernetes.io/pod-name: {name}}}");
    explained(&subject("StatefulSet", &name("web-0")), ASK, CANNOT_TELL, &["pod-name"]);
    explained(&subject("StatefulSet", &name("db-0")), ASK, ALLOWED, &[]);
    let peer = "ingress: [{from: [{podSelector: {matchExpressions: [{key: job-name, operator: Exists}]}}]}]";
    let jobs = [workload("Deployment", "web"), workload("CronJob", "api"), policy("web", peer)];
    explained(&jobs, ASK, ALLOWED, &[]);
}

#[test]
fn a_pod_and_its_own_node_reach_each_other_at_every_address() {
    let web = pod("web", "web", "n2", "10.244.2.5");
    let closed = policy("web", "policyTypes: [Ingress, Egress]");
    let objects = [node("n1", 1), node("n2", 2), web.clone(), closed.clone()];
    let ask = |from| (from, "shop/web", "8080");
    let bridge = "10.244.2.1 is an address of node n2 (the gateway or bridge";
    explained(&objects, ask("10.244.2.1"), ALLOWED, &["its own node", bridge]);
    explained(&objects, ask("10.244.1.1"), DENIED, &["only an ipBlock can name"]);
    for address in ["169.254.7.127", "169.254.20.10"] {
        explained(&objects, ask(address), CANNOT_TELL, &["is a link-local address"]);
        explained(&objects, ("shop/web", address, "53"), CANNOT_TELL, &["own node"]);
    }
    explained(&objects, ("shop/web", "169.254.169.254", "80"), DENIED, &[]);
    // Without a Node object the address may be that of the pod's node, unless a pod's status names the node's.
    let unknown = [web.clone(), closed.clone()];
    explained(&unknown, ask("192.168.5.2"), CANNOT_TELL, &["Node n2 is not among the objects"]);
    explained(&unknown, ask("203.0.113.9"), DENIED, &[]);
    let with_host = web.replace("phase: Running", "phase: Running, hostIP: 192.168.5.2");
    let known = [with_host, closed.clone()];
    explained(&known, ask("192.168.5.2"), ALLOWED, &["its own node"]);
    explained(&known, ask("192.168.5.3"), DENIED, &[]);
    // A template's pods may run on any node.
    let closed_set = [node("n1", 1), workload("StatefulSet", "web"), closed];
    let reason = "StatefulSet shop/web (template) may run on node n1";
    explained(&closed_set, ask("192.168.5.1"), CANNOT_TELL, &[reason]);
    explained(&closed_set, ("shop/web", "192.168.5.1", "80"), CANNOT_TELL, &[reason]);
    explained(&closed_set, ask("192.168.5.2"), DENIED, &[]);
}

#[test]
fn a_pod_of_a_stateful_set_has_its_stand_in() {
    let objects = [
        workload("StatefulSet", "web"),
        workload("Deployment", "api"),
        policy("web", "ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]"),
    ];
    let named = "StatefulSet shop/web (template)";
    explained(&objects, ("shop/api", "shop/web-0", "80"), ALLOWED, &[named]);
    explained(&objects, ("shop/web-1", "shop/web-12", "80"), DENIED, &[named]);
    for other in ["shop/web-x", "shop/web-", "shop/api-0"] {
        explained(&objects, ("shop/api", other, "80"), CANNOT_TELL, &["not found"]);
    }
}

#[test]
fn a_service_without_slices_has_the_backends_that_controllers_find() {
    let allow = policy(
        "web",
        "ingress: [{from: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: http}]}]",
    );
    let service_of = |spec: &str| service(&format!("{spec}, {PORTS}"));
    let ask = ("shop/api", "svc/shop/web", "80");
    let pods = || vec![pod("web", "web", "n1", "10.0.0.1"), pod("api", "api", "n2", "10.0.0.2")];
    let with = |more: Vec<String>| [pods(), vec![allow.clone()], more].concat();
    let assigned = service_of("clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9]");
    let backend = "backend 10.0.0.1 port 8080, pod shop/web: allow";
    explained(&with(vec![assigned.clone()]), ask, ALLOWED, &[backend]);
    explained(&with(vec![assigned.clone()]), ("shop/api", "10.96.0.9", "80"), ALLOWED, &[backend]);
    let waiting = slice("web-1", 8080, "10.0.0.1", false);
    let none = "has no ready backend";
    explained(&with(vec![assigned.clone(), waiting]), ask, ALLOWED, &[none]);
    // A chart has neither addresses nor slices.
    let chart = |service: &str| {
        let web = ["web", "api"].map(|name| workload("Deployment", name));
        [web.to_vec(), vec![allow.clone(), service.to_owned()]].concat()
    };
    let backend = "backend pod shop/web port 8080: allow";
    explained(
        &chart(&service_of("type: ClusterIP")),
        ask,
        ALLOWED,
        &["has no address yet", backend],
    );
    explained(&chart(&assigned), ask, ALLOWED, &["has no EndpointSlice yet", backend]);
    let unselected =
        "clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9], ports: [{name: http, port: 80}]";
    explained(&with(vec![service(unselected)]), ask, CANNOT_TELL, &["has no selector"]);
    // Objects in the assertions' file count, too.
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("a.yaml");
    let assertion = "assertions: [{from: shop/api, to: svc/shop/web, port: 80, expect: allow}]";
    fs::write(&file, [assertion, &service_of("type: ClusterIP")].join("\n---\n")).unwrap();
    let pods = ["web", "api"].map(|name| workload("Deployment", name));
    let (status, text) = netpold("test", &pods, &["-f", file.to_str().unwrap()]);
    assert_eq!(status, ALLOWED, "{text}");
    // Clients of a headless Service connect to its pods, at any port.
    let headless = service_of("clusterIP: None");
    let ready = slice("web-1", 8080, "10.0.0.1", true);
    for objects in
        [with(vec![headless.clone(), ready]), with(vec![headless.clone()]), chart(&headless)]
    {
        explained(&objects, ask, DENIED, &["is headless", "port 80 is not in it"]);
        explained(&objects, ("shop/api", "svc/shop/web", "8080"), ALLOWED, &["is headless"]);
    }
}

#[test]
fn an_absent_port_of_a_service_is_named() {
    let spec = "clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9], selector: {app: web}, ports: [{name: a, port: 80}, {name: b, \
                port: 8080}]";
    let objects =
        [pod("web", "web", "n1", "10.0.0.1"), pod("api", "api", "n2", "10.0.0.2"), service(spec)];
    let ask = |port| ("shop/api", "svc/shop/web", port);
    explained(&objects, ask("80"), ALLOWED, &[]);
    let reason = "cannot tell: Service shop/web has no port TCP 9000 (it has 80, 8080)";
    explained(&objects, ask("9000"), CANNOT_TELL, &[reason]);
    let udp = ["--from", "shop/api", "--to", "svc/shop/web", "--port", "80", "--protocol", "UDP"];
    let (status, text) = netpold("explain", &objects, &udp);
    assert_eq!(status, CANNOT_TELL, "{text}");
    assert!(text.contains("has no port UDP 80 (it has TCP 80, TCP 8080)"), "{text}");
}

#[test]
fn backends_that_differ_leave_the_answer_open() {
    let spec = format!("clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9], {PORTS}");
    let objects = [
        pod("web-1", "web", "n1", "10.0.0.1"),
        pod("web-2", "web", "n1", "10.0.0.2"),
        pod("api", "api", "n2", "10.0.0.3"),
        service(&spec),
        slice("web-a", 8080, "10.0.0.1", true),
        slice("web-b", 8081, "10.0.0.2", true),
        policy("web", "ingress: [{ports: [{port: 8080}]}]"),
    ];
    let ask = ("shop/api", "svc/shop/web", "80");
    let reason = "it depends on the backend: 1 of 2 is allowed";
    explained(&objects, ask, CANNOT_TELL, &[reason, "10.0.0.2 port 8081, pod shop/web-2: deny"]);
    let assertions = TempDir::new().unwrap();
    let file = assertions.path().join("a.yaml");
    fs::write(
        &file,
        "assertions:\n- {from: shop/api, to: svc/shop/web, port: 80, expect: allow}\n",
    )
    .unwrap();
    let (status, text) = netpold("test", &objects, &["-f", file.to_str().unwrap()]);
    assert_eq!(status, CANNOT_TELL, "{text}");
    assert!(text.contains("DEPENDS") && text.contains(reason), "{text}");
}

#[test]
fn a_node_may_replace_the_address_of_an_outside_client() {
    let client = "203.0.113.9";
    let objects = |service_policy: &str, block: &str| {
        let spec = format!(
            "type: NodePort, externalTrafficPolicy: {service_policy}, clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9], \
             selector: {{app: web}}, ports: [{{name: http, port: 80, targetPort: 8080, nodePort: 30080}}]"
        );
        let rule = format!("ingress: [{{from: [{{ipBlock: {{cidr: {block}}}}}]}}]");
        let web = pod("web", "web", "n2", "10.244.2.5");
        let slice = slice("web-1", 8080, "10.244.2.5", true);
        [node("n1", 1), node("n2", 2), web, service(&spec), slice, policy("web", &rule)]
    };
    let reason = "externalTrafficPolicy of Service shop/web is Cluster";
    let block = "203.0.113.0/24";
    for to in ["192.168.5.1", "svc/shop/web"] {
        let port = if to.starts_with("svc") { "80" } else { "30080" };
        let ask = (client, to, port);
        explained(
            &objects("Cluster", block),
            ask,
            CANNOT_TELL,
            &[reason, "node n1 would get deny"],
        );
        explained(&objects("Cluster", "0.0.0.0/0"), ask, ALLOWED, &[]);
    }
    explained(&objects("Local", block), (client, "svc/shop/web", "80"), ALLOWED, &[]);
    let none = "none is ready there: nothing answers";
    explained(&objects("Local", block), (client, "192.168.5.1", "30080"), CANNOT_TELL, &[none]);
    // The node of the backend always reaches it.
    explained(&objects("Cluster", block), (client, "192.168.5.2", "30080"), ALLOWED, &[]);
}

#[test]
fn the_deciding_judgement_on_a_translated_address_is_shown() {
    let spec = "type: NodePort, clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9], selector: {app: web}, ports: [{name: http, port: \
                80, targetPort: 8080, nodePort: 30080}]";
    let objects = |policy: String| {
        let pods =
            [pod("web", "web", "n1", "10.244.1.5"), pod("api", "api", "n2", "10.244.2.5")].to_vec();
        let rest = [node("n1", 1), node("n2", 2), service(spec), policy];
        [pods, rest.to_vec()].concat()
    };
    let egress =
        policy("api", "policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 192.168.5.1/32}}]}]");
    let line = "egress of pod shop/api: allowed, egress rule 1 of shop/api allows everything to 192.168.5.1/32";
    explained(&objects(egress), ("shop/api", "192.168.5.1", "30080"), ALLOWED, &[line]);
    let denial = "{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: p}, spec: \
                  {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: \
                  [10.96.0.9/32]}]}]}}";
    let note = "that is the Service's address, which is translated before policy is evaluated, so this rule denies nothing";
    let ask = ("shop/api", "svc/shop/web", "80");
    explained(
        &objects(denial.to_owned()),
        ask,
        ALLOWED,
        &["egress rule 1 of Admin policy p", note],
    );
    let text =
        explained(&objects(denial.replace("10.96.0.9/32", "10.244.1.5/32")), ask, DENIED, &[]);
    assert!(!text.contains(note), "{text}");
}

/// `helm template | kubectl netpold test -f -` in a CI job: no cluster is configured, and the objects suffice.
#[test]
fn objects_of_standard_input_suffice_where_no_cluster_is_configured() {
    let test = |input: &str| {
        let mut process = command::plugin(&["test", "-f", "-"]);
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = process.spawn().unwrap();
        process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = process.wait_with_output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    };
    let assertions = "assertions: [{from: {namespace: shop, labels: {app: cart}}, to: shop/web, port: 80, expect: deny}]";
    let objects = [
        namespace("shop", ""),
        workload("Deployment", "cart"),
        workload("Deployment", "web"),
        policy("web", "policyTypes: [Ingress]"),
    ];
    let all = [&objects[..], &[assertions.to_owned()]].concat().join("\n---\n");
    let (status, text) = test(&all);
    assert!(status == 0 && text.contains("1 passed"), "{text}");
    let (status, text) = test(&all.replace("expect: deny", "expect: allow"));
    assert_eq!(status, 1, "{text}");
    // Assertions alone have no objects.
    let (status, text) = test(assertions);
    assert!(status == 2 && text.contains("no source of objects"), "{text}");
}

/// `test` and `explain` give the same reason, and addresses of sockets count as those of the packets.
#[test]
fn external_names_and_written_addresses() {
    let external =
        service("type: ExternalName, externalName: web.example.com, ports: [{port: 80}]");
    let objects = [
        namespace("shop", ""),
        pod("cart", "cart", "n1", "10.244.1.7"),
        pod("api", "api", "n2", "10.244.2.7"),
        policy("api", "ingress: [{ports: [{port: 8080}]}]"),
        external,
    ];
    let reason = "Service shop/web is an ExternalName: it has no address and no pods; its name resolves to web.example.com by DNS";
    explained(&objects, ("shop/cart", "svc/shop/web", "80"), CANNOT_TELL, &[reason]);
    let file = TempDir::new().unwrap();
    let path = file.path().join("a.yaml");
    fs::write(
        &path,
        "assertions:\n- {from: shop/cart, to: svc/shop/web, port: 80, expect: allow}\n",
    )
    .unwrap();
    let (status, text) = netpold("test", &objects, &["-f", path.to_str().unwrap()]);
    assert!(status == CANNOT_TELL && text.contains(reason), "{text}");
    explained(&objects, ("shop/cart", "::ffff:10.244.2.7", "8080"), ALLOWED, &["10.244.2.7"]);
    explained(&objects, ("shop/cart", "::ffff:10.244.2.7", "80"), DENIED, &[]);
    let block = "is neither namespace/pod nor an address";
    explained(&objects, ("10.0.0.0/8", "shop/api", "80"), CANNOT_TELL, &[block]);
}
