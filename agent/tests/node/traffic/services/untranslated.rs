//! Services with the addresses of real hosts, without a proxy that translates them.

use std::net::IpAddr;

use netpold_testbed::cluster::TestCluster;
use netpold_testbed::services::{
    NOBODY, PROTOCOLS, SERVICE_PORT, TestService, answer, describe, lost, provide,
};
use netpold_testbed::{Proxy, require_root};
use serde_json::{Value, json};

use super::backends::two_nodes;

/// Adds these addresses to the second node, and routes to them to the first node.
fn host(cluster: &TestCluster, addresses: &[IpAddr]) {
    let [here, there] = [&cluster.nodes[0], &cluster.nodes[1]];
    let (link, [via4, _]) = (cluster.link(0), there.addresses());
    let (mut has, mut routes) = (String::new(), String::new());
    for address in addresses {
        let (length, via) =
            if address.is_ipv4() { (32, via4.to_string()) } else { (128, "fe80::b".to_owned()) };
        let nodad = if address.is_ipv4() { "" } else { "nodad" };
        has += &format!("address add {address}/{length} dev lo {nodad}\n");
        routes += &format!("route add {address}/{length} via {via} dev {link}\n");
    }
    there.netns().ip(&has).unwrap();
    here.netns().ip(&routes).unwrap();
}

/// Writes the Service's objects with this label, without a proxy.
fn labelled(cluster: &mut TestCluster, service: &TestService, label: &str) {
    describe(cluster, std::slice::from_ref(service));
    for object in &mut cluster.objects {
        let labels = &mut object["metadata"]["labels"];
        if labels.is_null() {
            *labels = json!({});
        }
        labels[label] = Value::from("other");
    }
}

/// Asserts that only the second node, the host of the addresses, answers.
#[track_caller]
fn host_answers(cluster: &TestCluster, from: &str, service: &TestService) {
    let seen = netpold_testbed::services::outcomes(cluster.pod(from), &external(service));
    let seen: Vec<&String> = seen.keys().collect();
    assert_eq!(seen, [cluster.nodes[1].name()], "{from}");
}

fn external(service: &TestService) -> [std::net::SocketAddr; 2] {
    service.external_ips().map(|address| (address, SERVICE_PORT).into())
}

/// A tenant's Service with an allowed pod as backend must not open the host at the Service's address.
#[test]
fn services_at_real_hosts_addresses() {
    require_root!();
    let mut cluster = two_nodes();
    let trap = TestService::new(1, "trap").pods(&cluster, &["friend1"]);
    host(&cluster, &trap.external_ips());
    PROTOCOLS.iter().for_each(|it| cluster.nodes[1].serve(*it, SERVICE_PORT).unwrap());
    cluster.enforce();
    host_answers(&cluster, "free", &trap);
    answer(cluster.pod("client1"), &external(&trap), NOBODY);

    // The proxy does not serve the Service yet.
    describe(&mut cluster, std::slice::from_ref(&trap));
    cluster.enforce();
    let before = lost(&cluster, 0, "service_backend");
    answer(cluster.pod("client1"), &external(&trap), NOBODY);
    assert!(lost(&cluster, 0, "service_backend") > before, "dropped where it leaves the node");
    host_answers(&cluster, "free", &trap);

    // The Service belongs to another proxy, or is headless by its label.
    for label in ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"] {
        labelled(&mut cluster, &trap, label);
        cluster.enforce();
        let before = lost(&cluster, 0, "policy");
        answer(cluster.pod("client1"), &external(&trap), NOBODY);
        assert!(lost(&cluster, 0, "policy") > before, "{label}: dropped at the pod");
    }

    // An untranslated packet passes if policy allows its literal address.
    describe(&mut cluster, std::slice::from_ref(&trap));
    let blocks = trap.external_ips().map(|address| {
        let length = if address.is_ipv4() { 32 } else { 128 };
        json!({ "ipBlock": { "cidr": format!("{address}/{length}") } })
    });
    let spec = json!({ "podSelector": { "matchLabels": { "app": "client" } },
                       "policyTypes": ["Egress"], "egress": [{ "to": blocks }] });
    cluster.policy("block", spec).enforce();
    host_answers(&cluster, "client1", &trap);
    cluster.without_policy("block").enforce();

    // A Service that the proxy translates works. It has other addresses, because conntrack still has the former flows.
    let served = TestService::new(2, "served").pods(&cluster, &["friend1"]);
    host(&cluster, &served.external_ips());
    provide(&mut cluster, Proxy::Nftables, std::slice::from_ref(&served));
    cluster.enforce();
    answer(cluster.pod("client1"), &external(&served), &["friend1"]);
}
