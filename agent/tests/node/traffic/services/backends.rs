//! Allowed and denied backends, on the client's node and on another.

use netpold_testbed::cluster::{MOMENT, NAMESPACE, PATIENCE, TestCluster};
use netpold_testbed::services::{
    NOBODY, SERVICE_PORT, TestService, answer, describe, lost, may_reach, outcomes, provide,
};
use netpold_testbed::{ProbeProtocol, Proxy, require_root};
use serde_json::json;

/// Returns a cluster with a client on each node that may reach friends; both nodes have friends and enemies.
pub(super) fn two_nodes() -> TestCluster {
    let mut cluster = TestCluster::two();
    for (node, number) in [(0, "1"), (1, "2")] {
        for app in ["client", "friend", "enemy"] {
            let spec = netpold_testbed::PodSpec::new(NAMESPACE, &format!("{app}{number}"));
            cluster.add_as(node, spec.label("app", app));
        }
    }
    cluster.add(0, "free");
    cluster.policy("client", may_reach("client", &["friend"]));
    cluster
}

const EVERYBODY: [&str; 4] = ["friend1", "enemy1", "friend2", "enemy2"];

fn mixed(proxy: Proxy) {
    let mut cluster = two_nodes();
    let mixed = TestService::new(1, "mixed").pods(&cluster, &EVERYBODY);
    let good = TestService::new(2, "good").pods(&cluster, &["friend1", "friend2"]);
    let bad = TestService::new(3, "bad").pods(&cluster, &["enemy1", "enemy2"]);
    let services = [mixed, good, bad];
    provide(&mut cluster, proxy, &services);
    cluster.enforce();
    let [mixed, good, bad] = services.map(|service| service.sockets());
    answer(cluster.pod("free"), &mixed, &EVERYBODY);
    for (node, client) in [(0, "client1"), (1, "client2")] {
        let client = cluster.pod(client);
        answer(client, &good, &["friend1", "friend2"]);
        let before = (lost(&cluster, node, "service_backend"), lost(&cluster, node, "policy"));
        answer(client, &bad, NOBODY);
        let between = (lost(&cluster, node, "service_backend"), lost(&cluster, node, "policy"));
        assert_eq!(between.0, before.0, "no backend is allowed: dropped at the pod");
        assert!(between.1 > before.1);
        answer(client, &mixed, &["", "friend1", "friend2"]);
        assert!(lost(&cluster, node, "service_backend") > between.0, "dropped behind translation");
        assert_eq!(lost(&cluster, node, "policy"), between.1);
        cluster.agents[node].wait_for("explained", PATIENCE, explains_the_backend).unwrap();
    }
    // Verdicts on a backend's own address do not change.
    cluster.denied("client1", "enemy1");
    cluster.denied("client1", "enemy2");
}

/// Returns whether a drop after the translation reports the place of the verdict, the policies that isolate the
/// client, and that no rule allows the backend.
fn explains_the_backend(status: &serde_json::Value) -> bool {
    let drops = status["recent_drops"].as_array().into_iter().flatten();
    let said = drops.filter(|drop| drop["reason"] == "service_backend");
    let said = said.map(|drop| drop["explanation"].to_string()).next().unwrap_or_default();
    ["after the node's Service translation", "denied, no rule allows it", "isolated by", "nearest:"]
        .iter()
        .all(|part| said.contains(part))
}

#[test]
fn services_of_allowed_and_other_backends_by_nftables() {
    require_root!();
    mixed(Proxy::Nftables);
}

#[test]
fn services_of_allowed_and_other_backends_by_iptables() {
    require_root!();
    mixed(Proxy::Iptables);
}

fn pinned(proxy: Proxy) {
    let mut cluster = two_nodes();
    let mut sticky = TestService::new(1, "sticky").pods(&cluster, &EVERYBODY);
    sticky.affinity = Some(60);
    provide(&mut cluster, proxy, std::slice::from_ref(&sticky));
    cluster.enforce();
    for to in sticky.cluster_ips() {
        let first = cluster.pod("client1").probe(ProbeProtocol::Tcp, to, SERVICE_PORT, MOMENT * 5);
        // The same backend gets all connections.
        let all = outcomes(cluster.pod("client1"), &[(to, SERVICE_PORT).into()]);
        assert!(all.keys().all(|name| !name.contains("enemy")), "{first} {all:?}");
        assert!(all.len() <= 2, "one backend for each protocol: {all:?}");
    }
}

#[test]
fn services_with_session_affinity() {
    require_root!();
    pinned(Proxy::Nftables);
    pinned(Proxy::Iptables);
}

/// Checks that the rules lead to no backend that is not ready, and that only ready backends decide the verdict.
#[test]
fn services_with_endpoints_that_are_not_ready() {
    require_root!();
    let mut cluster = two_nodes();
    let service =
        TestService::new(1, "s").pods(&cluster, &["enemy2"]).not_ready(&cluster, "friend1");
    provide(&mut cluster, Proxy::Nftables, std::slice::from_ref(&service));
    cluster.enforce();
    answer(cluster.pod("client1"), &service.sockets(), NOBODY);
    let service =
        TestService::new(1, "s").pods(&cluster, &["friend2"]).not_ready(&cluster, "enemy1");
    provide(&mut cluster, Proxy::Nftables, std::slice::from_ref(&service));
    cluster.enforce();
    answer(cluster.pod("client1"), &service.sockets(), &["friend2"]);
}

/// Opens a connection to one of two backends, then changes the policy for that backend.
#[test]
fn services_follow_policy_while_flows_run() {
    require_root!();
    let mut cluster = two_nodes();
    for (backend, app) in [("friend1", "friend"), ("friend2", "friend")] {
        let service = TestService::new(1, "s").pods(&cluster, &[backend]);
        // The other backend stays allowed and is never chosen: the packet passes the client's veth.
        let listed = service.clone().not_ready(&cluster, "enemy2");
        provide(&mut cluster, Proxy::Nftables, &[listed]);
        cluster.policy("client", may_reach("client", &[app, "enemy"])).enforce();
        let client = cluster.pod("client1");
        let mut flows: Vec<_> = service
            .cluster_ips()
            .into_iter()
            .flat_map(|to| {
                netpold_testbed::services::PROTOCOLS.map(|protocol| {
                    client.open_flow(protocol, (to, SERVICE_PORT).into(), PATIENCE).unwrap()
                })
            })
            .collect();
        assert!(flows.iter_mut().all(|flow| flow.ping(PATIENCE)));
        let before = lost(&cluster, 0, "service_backend") + lost(&cluster, 0, "policy");
        cluster.policy("client", may_reach("client", &["enemy"])).enforce();
        assert!(flows.iter_mut().all(|flow| !flow.ping(MOMENT)), "to {backend}");
        assert!(lost(&cluster, 0, "service_backend") + lost(&cluster, 0, "policy") > before);
        cluster.policy("client", may_reach("client", &[app])).enforce();
        assert!(flows.iter_mut().all(|flow| flow.ping(PATIENCE)), "to {backend} again");
    }
}

/// Sends to Services without a proxy: the pod's packets pass if some backend is allowed, and then have no route.
#[test]
fn services_that_nobody_translates() {
    require_root!();
    let mut cluster = two_nodes();
    let good = TestService::new(1, "good").pods(&cluster, &["friend1"]);
    let bad = TestService::new(2, "bad").pods(&cluster, &["enemy1"]);
    describe(&mut cluster, &[good.clone(), bad.clone()]);
    cluster.enforce();
    for (service, passes) in [(good, true), (bad, false)] {
        for to in service.cluster_ips() {
            let result =
                cluster.pod("client1").probe(ProbeProtocol::Tcp, to, SERVICE_PORT, MOMENT * 4);
            let expected = if passes { "unreachable" } else { "timed out" };
            assert_eq!(result.to_string(), expected, "{} at {to}", service.name);
        }
    }
}

/// Allows a block with a Service's address: the packet passes to that address, but is judged again after translation.
#[test]
fn services_in_an_allowed_block_are_judged_by_backend_too() {
    require_root!();
    let mut cluster = two_nodes();
    let mixed = TestService::new(1, "mixed").pods(&cluster, &EVERYBODY);
    provide(&mut cluster, Proxy::Nftables, std::slice::from_ref(&mixed));
    let blocks = ["10.96.0.0/16", "fd00:96::/64"].map(|c| json!({ "ipBlock": { "cidr": c } }));
    let friend = json!({ "podSelector": { "matchLabels": { "app": "friend" } } });
    let to = [&blocks[..], &[friend]].concat();
    cluster.policy(
        "client",
        json!({ "podSelector": { "matchLabels": { "app": "client" } },
                "policyTypes": ["Egress"], "egress": [{ "to": to }] }),
    );
    cluster.enforce();
    answer(cluster.pod("client1"), &mixed.sockets(), &["", "friend1", "friend2"]);
}
