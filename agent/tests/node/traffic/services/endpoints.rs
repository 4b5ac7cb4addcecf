//! Endpoints that are added and removed, and headless Services.

use netpold_testbed::cluster::{MOMENT, PATIENCE, PORT, TestCluster};
use netpold_testbed::services::{
    EndpointState, NOBODY, SERVICE_PORT, TestService, answer, lost, may_reach, provide,
};
use netpold_testbed::{ProbeProtocol, Proxy, require_root};

use super::backends::two_nodes;

const CLIENTS: [&str; 2] = ["client1", "client2"];

/// Replaces all Services by one, and waits until it is in force.
fn only(cluster: &mut TestCluster, service: TestService) -> TestService {
    provide(cluster, Proxy::Nftables, std::slice::from_ref(&service));
    cluster.enforce();
    service
}

/// Removes an endpoint from translation by a failing readiness probe, for new connections only.
#[test]
fn services_keep_connections_to_a_backend_that_is_not_ready() {
    require_root!();
    let mut cluster = two_nodes();
    let ready = TestService::new(1, "s").pods(&cluster, &["friend1"]);
    let to = only(&mut cluster, ready).cluster_ips();
    let mut flows: Vec<_> = CLIENTS
        .into_iter()
        .flat_map(|client| to.map(|address| (client, (address, SERVICE_PORT).into())))
        .map(|(name, to)| cluster.pod(name).open_flow(ProbeProtocol::Tcp, to, PATIENCE).unwrap())
        .collect();
    assert!(flows.iter_mut().all(|flow| flow.ping(PATIENCE)));
    let waiting = TestService::new(1, "s").not_ready(&cluster, "friend1");
    only(&mut cluster, waiting);
    assert!(flows.iter_mut().all(|flow| flow.ping(PATIENCE)), "they go on");
    for address in to {
        let new = cluster.pod("client1").probe(ProbeProtocol::Tcp, address, SERVICE_PORT, MOMENT);
        assert!(!new.connected(), "new ones are led nowhere: {new}");
    }
    cluster.policy("client", may_reach("client", &["nobody"])).enforce();
    assert!(flows.iter_mut().all(|flow| !flow.ping(MOMENT)), "policy cuts them");
    cluster.policy("client", may_reach("client", &["friend"])).enforce();
    assert!(flows.iter_mut().all(|flow| flow.ping(PATIENCE)), "and lets them go on");
}

#[test]
fn services_with_backends_that_are_leaving() {
    require_root!();
    let mut cluster = two_nodes();
    // Each case uses new addresses: the kernel keeps the translation of a client's port, and ports are reused.
    let mut numbers = 1..;
    let mut next = || TestService::new(numbers.next().unwrap(), "s");
    // While no endpoint is ready, terminating and published endpoints get packets.
    for state in [EndpointState::Last, EndpointState::Published] {
        for (backend, answers) in [("friend1", &["friend1"][..]), ("enemy1", NOBODY)] {
            let service = next().pod(&cluster, backend, state);
            let service = only(&mut cluster, service);
            for client in CLIENTS {
                answer(cluster.pod(client), &service.sockets(), answers);
            }
        }
    }
    // A ready endpoint gets all packets, so its verdict counts.
    let good = next().pods(&cluster, &["friend2"]);
    let good = good.pod(&cluster, "enemy1", EndpointState::Leaving);
    let good = only(&mut cluster, good);
    answer(cluster.pod("client1"), &good.sockets(), &["friend2"]);
    let bad = next().pods(&cluster, &["enemy2"]);
    let bad = bad.pod(&cluster, "friend1", EndpointState::Leaving);
    let bad = only(&mut cluster, bad);
    let before = lost(&cluster, 0, "service_backend");
    answer(cluster.pod("client1"), &bad.sockets(), NOBODY);
    assert!(lost(&cluster, 0, "service_backend") > before, "judged where it led");
}

/// Checks that clients of a headless Service, for which DNS returns pod addresses, are judged by these pods.
#[test]
fn services_without_an_address_are_their_pods() {
    require_root!();
    let mut cluster = two_nodes();
    let mut peers = TestService::new(1, "peers").pods(&cluster, &["friend2", "enemy1"]);
    peers = peers.pod(&cluster, "friend1", EndpointState::Published);
    peers.headless = true;
    only(&mut cluster, peers);
    for client in CLIENTS {
        let from = cluster.pod(client);
        for backend in ["friend1", "friend2", "enemy1"] {
            for to in cluster.pod(backend).addresses() {
                let result = from.probe(ProbeProtocol::Tcp, *to, PORT, MOMENT * 5);
                let allowed = backend.starts_with("friend");
                assert_eq!(result.connected(), allowed, "{client} to {backend} at {to}: {result}");
                let elsewhere = from.probe(ProbeProtocol::Tcp, *to, SERVICE_PORT, MOMENT);
                assert!(elsewhere.dropped(), "the Service's port is nothing here: {elsewhere}");
            }
        }
    }
}
