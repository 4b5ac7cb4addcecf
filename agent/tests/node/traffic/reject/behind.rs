//! Answers behind a Service: they come from the address to which the client sent.

use netpold_testbed::cluster::{NAMESPACE, TestCluster};
use netpold_testbed::services::{TestService, describe, lost, may_reach, provide};
use netpold_testbed::{PodSpec, Proxy, require_root};

use super::{annotated, refused, rejecting};

/// Clients on both nodes, and a server on each.
fn cluster() -> TestCluster {
    let mut cluster = TestCluster::two();
    for (node, number) in [(0, "1"), (1, "2")] {
        for app in ["client", "server", "friend"] {
            let spec = PodSpec::new(NAMESPACE, &format!("{app}{number}"));
            cluster.add_as(node, spec.label("app", app));
        }
    }
    cluster
}

/// Ingress of the backends is denied: the node of the backend answers, and translates the answer back. Packets to the
/// external addresses are masqueraded, also from pods of the backend's own bridge.
fn denied_by_the_backend(proxy: Proxy) {
    let mut cluster = cluster();
    for server in ["server1", "server2"] {
        let service = TestService::new(1, "s").pods(&cluster, &[server]);
        provide(&mut cluster, proxy, std::slice::from_ref(&service));
        cluster.objects.push(rejecting("server", "Ingress"));
        cluster.enforce();
        for client in ["client1", "client2"] {
            refused(cluster.pod(client), &service.sockets());
        }
    }
}

#[test]
fn services_with_denying_backends_by_nftables() {
    require_root!();
    denied_by_the_backend(Proxy::Nftables);
}

#[test]
fn services_with_denying_backends_by_iptables() {
    require_root!();
    denied_by_the_backend(Proxy::Iptables);
}

/// Egress to all backends is denied: the client's own interface answers.
fn denied_at_the_client(proxy: Proxy) {
    let mut cluster = cluster();
    let service = TestService::new(1, "s").pods(&cluster, &["server1", "server2"]);
    provide(&mut cluster, proxy, std::slice::from_ref(&service));
    cluster.objects.push(annotated("client", &may_reach("client", &["friend"]), "reject"));
    cluster.enforce();
    let to = service.sockets();
    for client in ["client1", "client2"] {
        refused(cluster.pod(client), &to);
    }
}

#[test]
fn services_that_clients_may_not_reach() {
    require_root!();
    denied_at_the_client(Proxy::Nftables);
    denied_at_the_client(Proxy::Iptables);
}

/// Sends to a Service with an allowed backend, which the proxy does not use, and a denied one, which it uses: the
/// packet passes the client's interface, and is denied where it leaves for the backend, also if it is masqueraded.
fn denied_after_the_translation(cluster: &mut TestCluster, proxy: Proxy) {
    for server in ["server1", "server2"] {
        let service = TestService::new(1, "s").pods(cluster, &[server]);
        provide(cluster, proxy, std::slice::from_ref(&service));
        describe(cluster, &[service.clone().pods(cluster, &["friend1"])]);
        cluster.objects.push(annotated("client", &may_reach("client", &["friend"]), "reject"));
        cluster.enforce();
        for (node, client) in [(0, "client1"), (1, "client2")] {
            let before = lost(cluster, node, "service_backend");
            refused(cluster.pod(client), &service.sockets());
            assert!(lost(cluster, node, "service_backend") >= before + 12, "{client} to {server}");
        }
    }
}

#[test]
fn backends_that_clients_may_not_reach_by_nftables() {
    require_root!();
    denied_after_the_translation(&mut cluster(), Proxy::Nftables);
}

#[test]
fn backends_that_clients_may_not_reach_by_iptables() {
    require_root!();
    denied_after_the_translation(&mut cluster(), Proxy::Iptables);
}

#[test]
fn backends_that_clients_may_not_reach_through_a_tunnel() {
    require_root!();
    let mut cluster = cluster();
    (0..2).for_each(|node| cluster.tunnel(node));
    denied_after_the_translation(&mut cluster, Proxy::Nftables);
}

/// Packets leave by a device without a link header (a tunnel of IP packets); their answers get a link header.
#[test]
fn backends_that_clients_may_not_reach_through_a_device_without_link_header() {
    require_root!();
    let mut cluster = cluster();
    let device = "tuntap add dev tun9 mode tun\nlink set tun9 up\n\
                  route replace 10.1.2.0/24 dev tun9\nroute replace fd00:1:2::/64 dev tun9\n";
    cluster.nodes[0].netns().ip(device).unwrap();
    let service = TestService::new(1, "s").pods(&cluster, &["server2"]);
    provide(&mut cluster, Proxy::Nftables, std::slice::from_ref(&service));
    let one = service.clone().pods(&cluster, &["friend1"]);
    describe(&mut cluster, &[one]);
    cluster.objects.push(annotated("client", &may_reach("client", &["friend"]), "reject"));
    cluster.enforce();
    let to = service.cluster_ips().map(|address| (address, service.port).into());
    refused(cluster.pod("client1"), &to);
    assert!(lost(&cluster, 0, "service_backend") >= 4);
}
