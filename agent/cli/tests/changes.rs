//! `diff` of moves into and out of the host's network, of Services, and of addresses that the objects do not give.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod objects;

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use objects::{policy, service};

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
}

/// Policy allowed as much to the pods before, so nothing opens; a note names who reaches the Service.
#[test]
fn ports_of_services_that_begin_to_lead_to_pods_are_noted() {
    let (cart, web, api) = (deployment("cart", ""), deployment("web", ""), deployment("api", ""));
    let rule =
        "ingress: [{from: [{podSelector: {matchLabels: {app: cart}}}], ports: [{port: http}]}]";
    let rule = policy("web", rule);
    let of =
        |app: &str, ports: &str| service(&format!("selector: {{app: {app}}}, ports: [{ports}]"));
    let (http, other) =
        ("{name: a, port: 80, targetPort: http}", "{name: b, port: 81, targetPort: 9}");
    let one = of("web", http);
    let side = |more: &[&str]| -> Vec<String> {
        let all = [NAMESPACE, &cart, &web, &api, &rule].into_iter().chain(more.iter().copied());
        all.map(str::to_owned).collect()
    };
    #[track_caller]
    fn same(before: &[String], after: &[String], parts: &[&str]) {
        let [before, after] = [before, after].map(|all| all.iter().map(String::as_str).collect());
        let [before, after]: [Vec<&str>; 2] = [before, after];
        let parts = [&["no connection is cut or opened\n"], parts].concat();
        expect(&before, &after, SAME, &parts);
    }
    let reached = "at TCP 80, allowed from shop/cart, denied from shop/api, shop/web\n";
    let new = format!("Service shop/web is new: {reached}");
    same(&side(&[]), &side(&[&one]), &[&new]);
    let first = format!("Service shop/web has its first pods: {reached}");
    same(&side(&[&of("wbe", http)]), &side(&[&one]), &[&first]);
    let both = of("web", &format!("{http}, {other}"));
    let port =
        "Service shop/web has a new port: at TCP 81, denied from shop/api, shop/cart, shop/web\n";
    same(&side(&[&one]), &side(&[&both]), &[port]);
    same(&side(&[]), &side(&[&both]), &[&new, "Service shop/web is new: at TCP 81, denied from"]);
    let nobody = "Service shop/web is new: at TCP 80, no pod is behind it\n";
    same(&side(&[]), &side(&[&of("wbe", http)]), &[nobody]);
    let balancer = one.replace("spec: {", "spec: {type: LoadBalancer, ");
    let outside =
        "clients outside of the cluster reach it as far as policy allows them at its pods";
    same(&side(&[]), &side(&[&balancer]), &[outside]);
    // Clients of a headless Service connect to its pods.
    let headless = one.replace("spec: {", "spec: {clusterIP: None, ");
    let (before, after) = (side(&[]), side(&[&headless]));
    let [before, after] = [&before, &after].map(|all| all.iter().map(String::as_str).collect());
    let [before, after]: [Vec<&str>; 2] = [before, after];
    let text = expect(&before, &after, SAME, &[]);
    assert!(!text.contains("Service"), "{text}");
}

/// `10.0.0.5/32` is a database outside, not the address that some template's pod may get.
#[test]
fn a_single_address_is_no_pod_of_a_template() {
    let (cart, web) = (deployment("cart", ""), deployment("web", ""));
    let side = |block: &str, port: u16| {
        let rule = format!(
            "egress: [{{to: [{{ipBlock: {{cidr: {block}}}}}], ports: [{{port: {port}}}]}}]"
        );
        let policy = policy("web", &format!("policyTypes: [Egress], {rule}"));
        [NAMESPACE.to_owned(), cart.clone(), web.clone(), policy]
    };
    let compare = |block: &str, arguments: &[&str]| {
        let (before, after) = (side(block, 1), side(block, 2));
        let [before, after] = [&before, &after].map(|all| all.each_ref().map(String::as_str));
        compared(&before, &after, arguments)
    };
    let (status, text) = compare("10.0.0.5/32", &[]);
    assert_eq!(status, DIFFERENT, "{text}");
    let outside =
        "shop/web -> 10.0.0.5/32: loses TCP 1, gains TCP 2\ncut: 1 pair, opened: 1 pair\n";
    let note =
        "pods that have no address yet are taken to be at other addresses than 10.0.0.5/32\n";
    assert!(text.starts_with(outside) && text.contains(note), "{text}");
    let pods = "shop/web -> shop/cart, shop/web";
    for (block, arguments) in
        [("10.0.0.5/32", &["--pod-cidrs", "10.0.0.5/32"][..]), ("10.0.0.4/30", &[])]
    {
        let (_, text) = compare(block, arguments);
        assert!(text.contains(pods) && !text.contains("no address yet"), "{text}");
    }
    let (_, text) = compare("203.0.113.5/32", &[]);
    assert!(text.contains("cut: 1 pair") && !text.contains("no address yet"), "{text}");
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
    let [one, other, public] = ["192.168.0.0/24", "192.168.1.0/24", "203.0.113.0/24"].map(&to);
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
    let [open, customers] = ["0.0.0.0/0", "203.0.113.0/24"].map(from);
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

/// Slice of Service `web`: pod `web`, at the port of its container.
fn slice(address: &str, port: u16) -> String {
    format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{namespace: shop, name: web-1, labels: \
         {{kubernetes.io/service-name: web}}}}, addressType: IPv4, ports: [{{name: '', port: {port}, protocol: TCP}}], \
         endpoints: [{{addresses: [{address}], conditions: {{ready: true}}}}]}}"
    )
}

/// Slices in the objects after a change are often those of before it.
#[test]
fn slices_of_before_the_change_do_not_hide_it() {
    let (cart, web) = (pod("cart", "n1", "10.0.0.8"), pod("web", "n2", "10.0.0.7"));
    let old = pod("old", "n2", "10.0.0.6");
    let rule = policy("web", "ingress: [{from: [{podSelector: {}}], ports: [{port: 8080}]}]");
    let closed = policy("old", "policyTypes: [Ingress]");
    let to = |selector: &str, target: u16| {
        service(&format!(
            "clusterIP: 10.96.0.1, selector: {{{selector}}}, ports: [{{port: 80, targetPort: {target}}}]"
        ))
    };
    let slice = slice("10.0.0.7", 8080);
    let endpoints = "{apiVersion: v1, kind: Endpoints, metadata: {namespace: shop, name: web}, subsets: [{addresses: \
                     [{ip: 10.0.0.7}], ports: [{port: 8080, protocol: TCP}]}]}";
    let good = to("app: web", 8080);
    for made in [&*slice, endpoints] {
        let with = |service: &str, web: &str| {
            [NAMESPACE, &cart, &old, &rule, &closed, made, service, web].map(str::to_owned)
        };
        let side = |it: &[String; 8]| -> Vec<&'static str> {
            it.iter().map(|text| &*text.clone().leak()).collect()
        };
        let before = side(&with(&good, &web));
        let cuts = "shop/cart, shop/old -> svc/shop/web: loses TCP 80";
        let after = side(&with(&to("app: web", 9090), &web));
        expect(&before, &after, DIFFERENT, &[cuts]);
        let after = side(&with(&to("app: old", 8080), &web));
        expect(&before, &after, DIFFERENT, &["shop/cart", "-> svc/shop/web: loses TCP 80"]);
        let out = web.replace("app: web", "app: out");
        let nobody = "connections to Service shop/web at TCP 80: no pod is behind it any more";
        let text = expect(&before, &side(&with(&good, &out)), DIFFERENT, &[nobody]);
        assert!(text.contains("OPEN: shop/web"), "{text}");
        // Endpoints of a Service without a selector are not a controller's.
        let [own, other] = ["8080", "9090"].map(|target| {
            service(&format!("clusterIP: 10.96.0.1, ports: [{{port: 80, targetPort: {target}}}]"))
        });
        if made == slice {
            expect(&side(&with(&own, &web)), &side(&with(&other, &web)), SAME, &[]);
        }
    }
}

/// Before and after, one of two backends is open, each time another one.
#[test]
fn equal_reasons_are_no_equal_verdicts() {
    let front = |name: &str| deployment(name, "").replace("labels: {", "labels: {tier: front, ");
    let plain = |name: &str| deployment(name, "");
    let (closed, cart) = (policy("b", "policyTypes: [Ingress]"), plain("cart"));
    let service = service("selector: {tier: front}, ports: [{port: 8080}]");
    expect(
        &[NAMESPACE, &cart, &service, &closed, &front("a"), &front("b"), &plain("c")],
        &[NAMESPACE, &cart, &service, &closed, &plain("a"), &front("b"), &front("c")],
        CANNOT_TELL,
        &[
            "connections to Service shop/web at TCP 8080: it depends on the backend: 1 of 2 is allowed",
        ],
    );
}

#[test]
fn clients_outside_of_the_cluster_are_no_compared_senders_to_a_service() {
    let (web, cart) = (deployment("web", ""), deployment("cart", ""));
    let rule = policy(
        "web",
        "ingress: [{from: [{ipBlock: {cidr: 203.0.113.0/24}}], ports: [{port: 8080}]}, {from: [{podSelector: {}}]}]",
    );
    let outside = "connections to Service shop/web from outside of the cluster and at node ports";
    for kind in ["type: LoadBalancer", "type: NodePort", "externalIPs: [198.51.100.7]"] {
        let to = |target: u16| {
            service(&format!(
                "{kind}, selector: {{app: web}}, ports: [{{port: 80, targetPort: {target}}}]"
            ))
        };
        let (good, bad) = (to(8080), to(9090));
        expect(
            &[NAMESPACE, &web, &cart, &rule, &good],
            &[NAMESPACE, &web, &cart, &rule, &bad],
            CANNOT_TELL,
            &[outside],
        );
        let same = [NAMESPACE, &web, &cart, &rule, &good];
        expect(&same, &same, SAME, &[]);
    }
}

/// The number behind the port's name changes, the Service does not.
#[test]
fn a_named_target_port_with_another_number_cuts_its_clients() {
    let (cart, web) = (deployment("cart", ""), deployment("web", ""));
    let moved = web.replace("8080", "9090");
    let rule = policy("web", "ingress: [{from: [{podSelector: {}}], ports: [{port: 8080}]}]");
    let front = service("selector: {app: web}, ports: [{port: 80, targetPort: http}]");
    expect(
        &[NAMESPACE, &cart, &rule, &front, &web],
        &[NAMESPACE, &cart, &rule, &front, &moved],
        DIFFERENT,
        &["shop/cart, shop/web -> svc/shop/web: loses TCP 80"],
    );
}

/// Two replicas with equal labels on one node: a policy names the address of the second one.
#[test]
fn replicas_are_senders_by_their_addresses() {
    let replica = |number: u8| {
        pod("cart", "n1", &format!("10.0.0.{number}"))
            .replace("name: cart, labels", &format!("name: cart-{number}, labels"))
    };
    let (one, two, web) = (replica(7), replica(8), pod("web", "n2", "10.0.1.1"));
    let rule =
        policy("web", "ingress: [{from: [{ipBlock: {cidr: 10.0.0.8/32}}], ports: [{port: 8080}]}]");
    let to = |target: u16| {
        service(&format!(
            "clusterIP: 10.96.0.1, selector: {{app: web}}, ports: [{{port: 80, targetPort: {target}}}]"
        ))
    };
    let (good, bad) = (to(8080), to(9090));
    expect(
        &[NAMESPACE, &one, &two, &web, &rule, &good],
        &[NAMESPACE, &one, &two, &web, &rule, &bad],
        DIFFERENT,
        &["shop/cart-7 -> svc/shop/web: loses TCP 80 (some pods or addresses)"],
    );
}

/// Runs `diff --manifests`, with the objects of `-f`.
fn applied(present: &[&str], change: &str, arguments: &[&str]) -> (i32, String) {
    let folder = TempDir::new().unwrap();
    let (all, file) = (folder.path().join("all"), folder.path().join("change.yaml"));
    fs::create_dir(&all).unwrap();
    fs::write(all.join("all.yaml"), present.join("\n---\n")).unwrap();
    fs::write(&file, change).unwrap();
    let mut process = Command::new(env!("CARGO_BIN_EXE_kubectl-netpold"));
    process.arg("diff").arg("--manifests").arg(all).arg("-f").arg(file).args(arguments);
    let output = process.env_clear().output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[test]
fn an_applied_service_replaces_the_former_one_in_the_namespace_of_n_too() {
    let (cart, web) = (deployment("cart", ""), deployment("web", ""));
    let rule = policy("web", "ingress: [{from: [{podSelector: {}}], ports: [{port: 8080}]}]");
    let front = service("selector: {app: web}, ports: [{port: 80, targetPort: 8080}]");
    let named = service("type: ExternalName, externalName: web.example.com, ports: [{port: 80}]");
    let wrong = front.replace("targetPort: 8080", "targetPort: 9090");
    let with = |service| [NAMESPACE, &cart, &web, &rule, service];
    for text in [wrong.clone(), wrong.replace("namespace: shop, ", "")] {
        let (status, text) = applied(&with(&front), &text, &["-n", "shop"]);
        assert_eq!(status, DIFFERENT, "{text}");
        assert!(text.contains("shop/cart, shop/web -> svc/shop/web: loses TCP 80"), "{text}");
    }
    let (status, text) = applied(&with(&front), &named, &[]);
    assert_eq!(status, CANNOT_TELL, "{text}");
    assert!(text.contains("connections to Service shop/web"), "{text}");
    // Nobody had connections of the name to lose.
    let (status, text) = applied(&with(&named), &front, &[]);
    assert_eq!(status, SAME, "{text}");
    let (status, text) = applied(&with(&front), &front, &["--delete"]);
    assert_eq!(status, CANNOT_TELL, "{text}");
    assert!(text.contains("connections to Service shop/web: it is gone"), "{text}");
}

/// Outside of CI, a cluster is often meant.
#[test]
fn a_test_without_a_configured_cluster_is_reported() {
    let (cart, web) = (deployment("cart", ""), deployment("web", ""));
    let folder = TempDir::new().unwrap();
    let [assertions, objects] =
        ["assertions.yaml", "objects.yaml"].map(|name| folder.path().join(name));
    let assertion = "assertions:\n- {from: shop/cart, to: shop/web, port: 8080, expect: allow}\n";
    fs::write(&assertions, assertion).unwrap();
    fs::write(&objects, [NAMESPACE, &cart, &web].join("\n---\n")).unwrap();
    let mut process = Command::new(env!("CARGO_BIN_EXE_kubectl-netpold"));
    process.arg("test").arg("-f").arg(assertions).arg("-f").arg(objects);
    let output = process.env_clear().output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(SAME), "{text}");
    assert_eq!(text, "netpold: no cluster is configured: judged by the objects of -f alone\n");
}

/// The usual chart: its policies name pods of other charts, or those that an operator creates.
#[test]
fn parts_of_policies_without_pods_are_not_compared_in_a_chart() {
    let (cart, web) = (deployment("cart", ""), deployment("web", ""));
    let from = |peer: &str, port: u16| {
        policy("web", &format!("ingress: [{{from: [{peer}], ports: [{{port: {port}}}]}}]"))
    };
    let nginx = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress-nginx}}}";
    let agent = "{podSelector: {matchLabels: {app: agent}}}";
    let kept = "{podSelector: {matchLabels: {app: cart}}}";
    let side = |policy| [NAMESPACE.to_owned(), cart.clone(), web.clone(), policy];
    let compare = |before: &str, after: &str, status, parts: &[&str]| {
        let (before, after) = (side(before.to_owned()), side(after.to_owned()));
        let [before, after] = [&before, &after].map(|all| all.each_ref().map(String::as_str));
        expect(&before, &after, status, parts)
    };
    let no_pod = "no connection is cut or opened among those compared\nnot compared: NetworkPolicy shop/web: ingress from pods of \
                  namespaces kubernetes.io/metadata.name=ingress-nginx: no pod matches\n";
    compare(&from(nginx, 80), &from(nginx, 8080), CANNOT_TELL, &[no_pod]);
    let added = from(&format!("{kept}, {agent}"), 80);
    let no_agent =
        "NetworkPolicy shop/web: ingress from pods app=agent of namespace shop: no pod matches\n";
    compare(&from(kept, 80), &added, CANNOT_TELL, &[no_agent]);
    // A part that stays as it was changes no connection, whoever its pods are.
    let text = compare(&added, &from(&format!("{agent}, {kept}"), 80), SAME, &[]);
    assert_eq!(text.lines().next(), Some("no connection is cut or opened"));
    let other = from(nginx, 80).replace("app: web", "app: operated");
    let nobody = "not compared: NetworkPolicy shop/web: it selects no pod\n";
    compare(&other, &other.replace("port: 80", "port: 8080"), CANNOT_TELL, &[nobody]);
    compare(&other, &other, SAME, &["no connection is cut or opened\n"]);
    // Labels that controllers set are those of some pod.
    let hash = "{podSelector: {matchLabels: {app: cart, pod-template-hash: 5f6}}}";
    let text = compare(&from(kept, 80), &from(&format!("{kept}, {hash}"), 80), SAME, &[]);
    assert!(!text.contains("no pod matches"), "{text}");
    let tier = |namespace: &str, priority: u16| {
        format!(
            "{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: tier}}, spec: {{tier: \
             Admin, priority: {priority}, subject: {{namespaces: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}}}, \
             ingress: [{{action: Deny, from: [{{namespaces: {{matchLabels: {{team: b}}}}}}]}}]}}}}"
        )
    };
    let nobody = "not compared: ClusterNetworkPolicy tier: it selects no pod\n";
    compare(&tier("other", 1), &tier("other", 2), CANNOT_TELL, &[nobody]);
    let no_team =
        "ClusterNetworkPolicy tier: ingress from pods of namespaces team=b: no pod matches\n";
    compare(&tier("shop", 1), &tier("shop", 1).replace("Deny", "Accept"), CANNOT_TELL, &[no_team]);
}

/// A cluster's objects show every pod that exists.
#[test]
fn parts_of_policies_without_pods_are_noted_in_a_cluster() {
    let (web, cart) = (pod("web", "n1", "10.0.0.1"), pod("cart", "n2", "10.0.0.2"));
    let from = |peer: &str| policy("web", &format!("ingress: [{{from: [{peer}]}}]"));
    let kept = "{podSelector: {matchLabels: {app: cart}}}";
    let (before, after) =
        (from(kept), from(&format!("{kept}, {{podSelector: {{matchLabels: {{app: agent}}}}}}")));
    let note = "without effect on the pods that exist: NetworkPolicy shop/web: ingress from pods app=agent of namespace shop: no \
                pod matches\n";
    let text = expect(
        &[NAMESPACE, &web, &cart, &before],
        &[NAMESPACE, &web, &cart, &after],
        SAME,
        &[note],
    );
    assert_eq!(text.lines().next(), Some("no connection is cut or opened"));
    let other = after.replace("app: web", "app: nobody");
    let note = "without effect on the pods that exist: NetworkPolicy shop/web: it selects no pod\n";
    expect(&[NAMESPACE, &web, &cart], &[NAMESPACE, &web, &cart, &other], SAME, &[note]);
}

/// A policy of another API on one side only may decide connections where its enforcer runs.
#[test]
fn policies_of_other_apis_that_come_or_go_are_not_compared() {
    let web = deployment("web", "");
    let cilium = "{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: a, namespace: shop}, spec: {}}";
    let text = "not enforced by netpold, and not part of this answer: CiliumNetworkPolicy shop/a\n";
    let (without, with) = ([NAMESPACE, web.as_str()], [NAMESPACE, web.as_str(), cilium]);
    let of_gaps = format!("not compared: {text}");
    expect(&without, &with, CANNOT_TELL, &[&of_gaps]);
    expect(&with, &without, CANNOT_TELL, &[&of_gaps]);
    let same = expect(&with, &with, SAME, &[text]);
    assert!(!same.contains("not compared"), "{same}");
}

/// Workloads of controllers that Kubernetes does not have itself.
#[test]
fn pod_templates_of_other_controllers_are_compared() {
    let rule = |port: u16| {
        policy(
            "web",
            &format!(
                "ingress: [{{from: [{{podSelector: {{matchLabels: {{app: cart}}}}}}], ports: [{{port: {port}}}]}}]"
            ),
        )
    };
    for (version, kind) in [
        ("argoproj.io/v1alpha1", "Rollout"),
        ("apps.kruise.io/v1alpha1", "CloneSet"),
        ("apps.kruise.io/v1beta1", "StatefulSet"),
        ("apps.openshift.io/v1", "DeploymentConfig"),
    ] {
        let of = |name: &str| {
            deployment(name, "")
                .replace("apps/v1, kind: Deployment", &format!("{version}, kind: {kind}"))
        };
        let (cart, web) = (of("cart"), of("web"));
        let text = "shop/cart -> shop/web: loses TCP 8080, gains TCP 80\n";
        let by = format!(
            "by pod template, no pods exist: {kind} shop/cart (template), {kind} shop/web (template)"
        );
        expect(
            &[NAMESPACE, &cart, &web, &rule(8080)],
            &[NAMESPACE, &cart, &web, &rule(80)],
            DIFFERENT,
            &[text, &by],
        );
    }
    // A Rollout's pods belong to a ReplicaSet, and a Rollout may refer to a Deployment.
    let rollout = deployment("web", "")
        .replace("apps/v1, kind: Deployment", "argoproj.io/v1alpha1, kind: Rollout");
    let pod = "{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: web-5f6-abcde, labels: {app: web, \
               rollouts-pod-template-hash: 5f6}, ownerReferences: [{kind: ReplicaSet, name: web-5f6, controller: true}]}, spec: {nodeName: \
               n1, containers: [{name: c}]}, status: {podIP: 10.0.0.1}}";
    let by_reference = "{apiVersion: argoproj.io/v1alpha1, kind: Rollout, metadata: {namespace: shop, name: api}, spec: {workloadRef: {kind: \
                        Deployment, name: api}}}";
    let objects = [NAMESPACE, &rollout, pod, by_reference];
    let text = expect(&objects, &objects, SAME, &["no connection is cut or opened\n"]);
    assert!(!text.contains("template"), "{text}");
}
