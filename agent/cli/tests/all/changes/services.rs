//! Services that change, and their clients.

use super::{CANNOT_TELL, DIFFERENT, NAMESPACE, SAME, deployment, expect, pod};
use crate::objects::{policy, service};

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

/// Policy allowed the same connections to the pods before, so nothing opens; a note names the clients of the Service.
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

/// Before and after, one of two backends is open, but not the same one.
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

/// The number of the named port changes, the Service does not.
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

/// Slice of Service `web`: pod `web`, at the port of its container.
fn slice(address: &str, port: u16) -> String {
    format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{namespace: shop, name: web-1, labels: \
         {{kubernetes.io/service-name: web}}}}, addressType: IPv4, ports: [{{name: '', port: {port}, protocol: TCP}}], \
         endpoints: [{{addresses: [{address}], conditions: {{ready: true}}}}]}}"
    )
}

/// The objects after a change often contain the slices from before it.
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
