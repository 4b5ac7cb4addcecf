//! Moves into and out of the host's network, and addresses that no object has.

use super::{CANNOT_TELL, DIFFERENT, NAMESPACE, compared, deployment, expect, pod};
use crate::objects::{policy, service};

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

/// Without isolation nothing opens, but the rules of other policies no longer match the pods.
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

/// `10.0.0.5/32` is an external database, not a future address of a template's pod.
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
    // A change that applies to every client does not depend on the address.
    let none = policy("web", "policyTypes: [Ingress]");
    let text = expect(
        &[NAMESPACE, &web, &open, &cluster],
        &[NAMESPACE, &web, &none, &cluster],
        DIFFERENT,
        &[],
    );
    assert!(!text.contains("externalTrafficPolicy"), "{text}");
}
