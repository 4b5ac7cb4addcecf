//! NodeLocal DNS cache: a cache on the node answers at the cluster address of kube-dns and at a link-local address, in
//! place of the Service's pods.

use std::net::{IpAddr, SocketAddr};

use netpold_testbed::cluster::{PATIENCE, TestCluster, isolate};
use netpold_testbed::services::{NOBODY, PROTOCOLS, TestService, may_reach, outcomes, provide};
use netpold_testbed::{ProbeProtocol, ProbeResult, Proxy, TestNode, require_root};

use super::backends::two_nodes;

const DNS: u16 = 53;
/// Link-local address of the cache, as in the manifest of NodeLocal DNS cache.
const CACHE: &str = "169.254.20.10";
/// Name of the cache's device: a bridge without ports, in place of a dummy device.
const DEVICE: &str = "nodelocaldns";

/// Starts the cache: adds its addresses to a device of the node, and rules that exempt its packets from conntrack and
/// so from translation.
fn start_cache(node: &TestNode, addresses: &[IpAddr]) {
    let mut batch = format!("link add {DEVICE} type bridge\nlink set {DEVICE} up\n");
    let mut rules = String::new();
    for address in addresses {
        let (family, length) = if address.is_ipv4() { ("ip", 32) } else { ("ip6", 128) };
        let nodad = if address.is_ipv4() { "" } else { "nodad" };
        batch += &format!("address add {address}/{length} dev {DEVICE} {nodad}\n");
        for (hook, side) in [("prerouting", "daddr"), ("output", "daddr"), ("output", "saddr")] {
            let port = if side == "daddr" { "dport" } else { "sport" };
            let chain = format!("{hook}-{side}");
            rules += &format!(
                "add table {family} dnscache\n\
                 add chain {family} dnscache {chain} {{ type filter hook {hook} priority raw; }}\n\
                 add rule {family} dnscache {chain} {family} {side} {address} \
                 meta l4proto {{ tcp, udp }} th {port} {DNS} notrack\n"
            );
        }
    }
    node.netns().ip(&batch).unwrap();
    node.netns().nft(&rules).unwrap();
    PROTOCOLS.into_iter().for_each(|protocol| node.serve(protocol, DNS).unwrap());
}

/// Stops the cache as on SIGTERM: removes its device and its rules.
fn stop_cache(node: &TestNode) {
    node.netns().nft("delete table ip dnscache\ndelete table ip6 dnscache\n").unwrap();
    node.netns().ip(&format!("link del {DEVICE}\n")).unwrap();
}

/// Asserts that exactly the servers `names` answer a pod at these addresses; the empty name means no answer.
#[track_caller]
fn answers(cluster: &TestCluster, from: &str, addresses: &[IpAddr], names: &[&str]) {
    let sockets: Vec<SocketAddr> = addresses.iter().map(|a| (*a, DNS).into()).collect();
    let seen = outcomes(cluster.pod(from), &sockets);
    let seen: Vec<&str> =
        seen.keys().map(|name| &name[name.find('/').map_or(0, |i| i + 1)..]).collect();
    assert_eq!(seen, names, "{from} at {addresses:?}");
}

/// Asserts the state without a cache: the Service's pod answers the clients, and `deaf` gets no answer.
#[track_caller]
fn pods_answer(cluster: &TestCluster, service: &[IpAddr]) {
    answers(cluster, "client1", service, &["friend2"]);
    answers(cluster, "client2", service, &["friend2"]);
    answers(cluster, "deaf", service, NOBODY);
}

/// Runs a cache on the node `here`. Clients may send to the pods behind kube-dns; the pod `deaf` may send nothing.
fn cached(proxy: Proxy, here: usize) {
    let mut cluster = two_nodes();
    cluster.add(here, "deaf");
    let mut dns = TestService::new(10, "kube-dns").pods(&cluster, &["friend2"]);
    dns.port = DNS;
    provide(&mut cluster, proxy, std::slice::from_ref(&dns));
    cluster.policy("deaf", isolate("deaf", &["Egress"])).enforce();
    let service = dns.cluster_ips();
    pods_answer(&cluster, &service);

    let cache: IpAddr = CACHE.parse().unwrap();
    start_cache(&cluster.nodes[here], &[service[0], service[1], cache]);
    let node = cluster.nodes[here].name().to_owned();
    let (client, other) = if here == 0 { ("client1", "client2") } else { ("client2", "client1") };
    // The cache's own address belongs to the node. The first probe repeats until the agent has learned the address.
    let first = cluster.pod("deaf").probe(ProbeProtocol::Tcp, cache, DNS, PATIENCE);
    assert_eq!(first, ProbeResult::Connected(node.clone()));
    for pod in [client, "deaf"] {
        answers(&cluster, pod, &[cache], &[&node]);
    }
    // The cluster address remains the Service's: policy has the same effect as without the cache.
    answers(&cluster, client, &service, &[&node]);
    answers(&cluster, other, &service, &["friend2"]);
    answers(&cluster, "deaf", &service, NOBODY);
    cluster.policy("client", may_reach("client", &["nobody"])).enforce();
    answers(&cluster, client, &service, NOBODY);
    cluster.policy("client", may_reach("client", &["friend"])).enforce();
    answers(&cluster, client, &service, &[&node]);

    stop_cache(&cluster.nodes[here]);
    pods_answer(&cluster, &service);
}

#[test]
fn services_behind_a_dns_cache_on_a_ptp_node() {
    require_root!();
    cached(Proxy::Nftables, 0);
}

#[test]
fn services_behind_a_dns_cache_on_a_bridge_node() {
    require_root!();
    cached(Proxy::Iptables, 1);
}
