//! Answers behind a Service: they come from the address that the client asked.

use netpold_testbed::cluster::{Cluster, NAMESPACE};
use netpold_testbed::services::{Service, may_reach, provide};
use netpold_testbed::{PodSpec, Proxy, require_root};

use super::{annotated, refused, rejecting};

/// Clients on both nodes, and a server on each.
fn cluster() -> Cluster {
    let mut cluster = Cluster::two();
    for (node, number) in [(0, "1"), (1, "2")] {
        for app in ["client", "server", "friend"] {
            let spec = PodSpec::new(NAMESPACE, &format!("{app}{number}"));
            cluster.add_as(node, spec.label("app", app));
        }
    }
    cluster
}

/// Ingress of the backends is denied: the node of the backend answers, and translates the answer back.
fn denied_by_the_backend(proxy: Proxy) {
    let mut cluster = cluster();
    for server in ["server1", "server2"] {
        let service = Service::new(1, "s").pods(&cluster, &[server]);
        provide(&mut cluster, proxy, std::slice::from_ref(&service));
        cluster.objects.push(rejecting("server", "Ingress"));
        cluster.enforce();
        let to = service.cluster_ips().map(|address| (address, service.port).into());
        for client in ["client1", "client2"] {
            refused(cluster.pod(client), &to);
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
    let service = Service::new(1, "s").pods(&cluster, &["server1", "server2"]);
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
