//! Datagrams that conntrack reassembles and the node fragments again: the new fragments have no receiving interface.

use std::net::{IpAddr, SocketAddr};

use netpold_testbed::cluster::TestCluster;
use netpold_testbed::packet::{ipv4, ipv6, udp_message};
use netpold_testbed::{Proxy, require_root};

use crate::attacks::volley::{PACKETS, Sender, Tally, Volley, try_both};

/// Destination port of the datagrams.
pub(crate) const PORT: u16 = 4000;
/// Payload length of each fragment, which makes 1,280 bytes with an IPv6 header and a Fragment header.
pub(crate) const PART: usize = 1232;

/// Builds two fragments of 1,280 bytes, with Destination Options behind the Fragment header.
pub(crate) fn fragments6(from: IpAddr, to: IpAddr, ident: u32, payload: &[u8]) -> Vec<Vec<u8>> {
    let (IpAddr::V6(from), IpAddr::V6(to)) = (from, to) else { panic!("IPv6 only") };
    let ends = (SocketAddr::from((from, 5000)), SocketAddr::from((to, PORT)));
    let mut whole = vec![17, 0, 1, 4, 0, 0, 0, 0];
    whole.extend(udp_message(ends.0, ends.1, &payload[..2 * PART - 16]));
    let part = |number: usize| {
        let more = u16::from(number == 0);
        let offset = (number * PART) as u16 | more;
        let mut body = vec![60, 0];
        body.extend(offset.to_be_bytes());
        body.extend(ident.to_be_bytes());
        body.extend(&whole[number * PART..(number + 1) * PART]);
        ipv6((from, to), 44, &body)
    };
    (0..2).map(part).collect()
}

/// Builds two fragments, with `options` in each IPv4 header.
pub(crate) fn fragments4(
    from: IpAddr,
    to: IpAddr,
    ident: u32,
    options: &[u8],
    payload: &[u8],
) -> Vec<Vec<u8>> {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else { panic!("IPv4 only") };
    let ends = (SocketAddr::from((from, 5000)), SocketAddr::from((to, PORT)));
    let whole = udp_message(ends.0, ends.1, &payload[..2 * PART - 8]);
    let part = |number: usize| {
        let more = if number == 0 { 0x2000 } else { 0 };
        let fields = (ident as u16, (number * PART / 8) as u16 | more);
        ipv4((from, to), 17, fields, options, &whole[number * PART..(number + 1) * PART])
    };
    (0..2).map(part).collect()
}

fn attack(sender: &Sender, (from, to): (IpAddr, IpAddr), options: &[u8], volley: Volley) {
    for number in 0..PACKETS {
        let payload = volley.payload(number, 2 * PART);
        let ident = 0x1000 + number as u32;
        let parts = match from {
            IpAddr::V4(_) => fragments4(from, to, ident, options, &payload),
            IpAddr::V6(_) => fragments6(from, to, ident, &payload),
        };
        parts.iter().for_each(|part| sender.send(part));
    }
}

/// Sends fragments to a pod on `node`, from another pod of that node, then from the other node.
fn attack_a_pod(node: usize, v6: bool, options: &[u8]) {
    let mut cluster = TestCluster::two();
    cluster.add(node, "victim");
    cluster.add(node, "stranger");
    // kube-proxy's rules enable conntrack and its defragmentation.
    cluster.nodes[node].translate(Proxy::Nftables, &[]).unwrap();
    let wire = cluster.pod("victim").wire("eth0").unwrap();
    let family = usize::from(v6);
    let mut tally = Tally::default();
    let to = cluster.pod("victim").addresses()[family];
    let stranger = cluster.pod("stranger").addresses()[family];
    let remote = cluster.nodes[1 - node].addresses()[family];
    try_both(&mut cluster, ("from another pod", "victim"), &wire, &mut tally, |cluster, volley| {
        let sender = Sender::pod(cluster.pod("stranger"));
        attack(&sender, (stranger, to), options, volley);
    });
    // A leaked fragment would have opened a flow, in which the victim's packets would pass as answers.
    let answers = cluster.pod("stranger").wire("eth0").unwrap();
    cluster
        .policy(
            "victim",
            netpold_testbed::cluster::isolate("victim", &crate::attacks::volley::BOTH),
        )
        .enforce();
    let volley = Volley::new();
    attack(&Sender::pod(cluster.pod("stranger")), (stranger, to), options, Volley::new());
    Sender::pod(cluster.pod("victim")).datagrams(
        volley,
        (to, PORT).into(),
        (stranger, 5000).into(),
    );
    tally.note("answers to the fragments", volley.leaked(&answers));
    cluster.without_policy("victim");
    try_both(
        &mut cluster,
        ("from another node", "victim"),
        &wire,
        &mut tally,
        |cluster, volley| {
            let sender = Sender::node(cluster, 1 - node);
            attack(&sender, (remote, to), options, volley);
        },
    );
    tally.holds();
}

#[test]
fn refragmented_ipv6_on_a_ptp_node() {
    require_root!();
    attack_a_pod(0, true, &[]);
}

#[test]
fn refragmented_ipv6_on_a_bridge_node() {
    require_root!();
    attack_a_pod(1, true, &[]);
}

#[test]
fn refragmented_ipv4() {
    require_root!();
    attack_a_pod(0, false, &[]);
    attack_a_pod(1, false, &[]);
}

/// Sends fragments with the Router Alert option: the kernel rewrites the fragments one by one.
#[test]
fn refragmented_ipv4_with_options() {
    require_root!();
    attack_a_pod(0, false, &[148, 4, 0, 0]);
    attack_a_pod(1, false, &[148, 4, 0, 0]);
}
