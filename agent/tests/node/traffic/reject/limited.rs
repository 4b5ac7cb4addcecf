//! The number of answers in a second, and early drops by XDP.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{PORT, TestCluster, isolate};
use netpold_testbed::packet::{frame, udp_packet};
use netpold_testbed::{Cni, RawSocket, require_root};

use super::{annotated, refused, rejecting, sockets};
use crate::traffic::load::StopOnDrop;

/// Number of denied packets of a burst.
const BURST: usize = 2000;

/// Counts the ICMP errors that arrive until none arrives for a while.
fn errors(wire: &RawSocket) -> usize {
    let (mut count, mut last) = (0, Instant::now());
    while last.elapsed() < Duration::from_millis(300) {
        let Some(frame) = wire.arrived() else {
            std::thread::sleep(Duration::from_millis(2));
            continue;
        };
        if is_error(&frame) {
            (count, last) = (count + 1, Instant::now());
        }
    }
    count
}

/// Whether a frame is an ICMP error about a prohibited packet.
fn is_error(frame: &[u8]) -> bool {
    let at = |place: usize| frame.get(place).copied().unwrap_or_default();
    match (at(12), at(13)) {
        (8, 0) => at(23) == 1 && [at(34), at(35)] == [3, 13],
        (0x86, 0xdd) => at(20) == 58 && [at(54), at(55)] == [1, 1],
        _ => false,
    }
}

/// Sends a burst from a pod; returns the number of answers, and the seconds that it took.
fn burst(cluster: &TestCluster, from: &str, (own, to): (IpAddr, IpAddr)) -> (usize, u64) {
    let pod = cluster.pod(from);
    let wire = pod.wire("eth0").unwrap();
    let packet = udp_packet((own, 4000).into(), (to, PORT).into(), b"burst");
    let frame = frame(pod.gateway_mac(), pod.mac(), &packet);
    let began = Instant::now();
    for _ in 0..BURST {
        wire.send(&frame).unwrap();
    }
    (errors(&wire), began.elapsed().as_secs())
}

#[test]
fn answers_are_limited_by_pod_and_node() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "a", "b"]);
    let rates = ["--reject-rate", "50", "--reject-node-rate", "70"];
    cluster.arguments = rates.map(str::to_owned).into();
    cluster.objects = ["a", "b"].map(|app| rejecting(app, "Egress")).into();
    cluster.enforce();
    for family in 0..2 {
        let to = cluster.pod("server").addresses()[family];
        // Begins in a new second, with unused limits.
        std::thread::sleep(Duration::from_millis(1100));
        let own = |name: &str| cluster.pod(name).addresses()[family];
        let (first, took) = burst(&cluster, "a", (own("a"), to));
        let seconds = usize::try_from(took + 1).unwrap();
        println!("{first} answers to {BURST} packets in {took} s");
        assert!((50..=50 * (seconds + 1)).contains(&first), "{first} in {took} s");
        std::thread::sleep(Duration::from_millis(1100));
        let both = std::thread::scope(|scope| {
            let bursts = ["a", "b"].map(|name| {
                let (cluster, pair) = (&cluster, (own(name), to));
                scope.spawn(move || burst(cluster, name, pair))
            });
            bursts.map(|burst| burst.join().unwrap())
        });
        let seconds = usize::try_from(both[0].1.max(both[1].1) + 1).unwrap();
        let all = both[0].0 + both[1].0;
        assert!(all <= (70 + 2 * 5) * (seconds + 1), "{both:?}");
        assert!(both.iter().all(|(answers, _)| *answers >= 5), "a pod's share: {both:?}");
    }
}

/// A flood of denied packets to a pod does not use up the answers to the pod's own packets.
#[test]
fn a_flood_to_a_pod_takes_no_answer_from_it() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "flooded", "flooding"]);
    cluster.arguments = ["--reject-rate", "50"].map(str::to_owned).into();
    let both = isolate("flooded", &["Ingress", "Egress"]);
    cluster.objects = vec![annotated("flooded", &both, "reject")];
    cluster.enforce();
    let (flooded, flooding) = (cluster.pod("flooded"), cluster.pod("flooding"));
    let ends = [flooding, flooded].map(|pod| (pod.addresses()[0], PORT).into());
    let packet = udp_packet(ends[0], ends[1], b"flood");
    let frame = frame(flooding.gateway_mac(), flooding.mac(), &packet);
    let wire = flooding.wire("eth0").unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                (0..100).for_each(|_| wire.send(&frame).unwrap());
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        for _ in 0..3 {
            refused(flooded, &sockets(cluster.pod("server").addresses()));
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    let answered = errors(&wire);
    assert!(answered >= 50, "the flood used up its own answers: {answered}");
}

#[test]
fn xdp_leaves_packets_that_get_an_answer() {
    require_root!();
    let mut cluster = TestCluster::two();
    cluster.add(0, "client");
    cluster.add(1, "server");
    let xdp = ["--pod-egress-hook", "xdp", "--xdp-uplink", "link*", "--xdp-uplink-drops", "all"];
    cluster.arguments = xdp.map(str::to_owned).into();
    for (app, direction) in [("client", "Egress"), ("server", "Ingress")] {
        let policy = isolate(app, &[direction]);
        cluster.objects = vec![annotated("rejects", &policy, "reject")];
        cluster.enforce();
        refused(cluster.pod("client"), &sockets(cluster.pod("server").addresses()));
    }
}

/// Sends many denied datagrams, with a drop and with answers beyond their limit in turn; compares the shortest times.
#[test]
#[ignore = "a measurement, not a test"]
fn a_flood_of_rejected_packets_costs_little_more_than_one_of_dropped() {
    const ROUNDS: usize = 8;
    const FLOOD: u32 = 20_000;
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "client"]);
    let mut least = [Duration::MAX; 2];
    for round in 0..2 * ROUNDS {
        let value = ["drop", "reject"][round % 2];
        cluster.objects = vec![annotated("floods", &isolate("client", &["Egress"]), value)];
        cluster.enforce();
        let client = cluster.pod("client");
        let wire = client.wire("eth0").unwrap();
        let ends = [client, cluster.pod("server")].map(|pod| (pod.addresses()[0], PORT).into());
        let frame =
            frame(client.gateway_mac(), client.mac(), &udp_packet(ends[0], ends[1], b"flood"));
        let began = Instant::now();
        (0..FLOOD).for_each(|_| wire.send(&frame).unwrap());
        least[round % 2] = least[round % 2].min(began.elapsed());
    }
    let [drop, reject] = least.map(|time| time / FLOOD);
    println!("a datagram that is dropped takes {drop:?}, one that is rejected {reject:?}");
    assert!(reject * 10 <= drop * 13, "{drop:?}, {reject:?}");
}
