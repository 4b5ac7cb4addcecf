//! Latency from the change of a file to the change of a verdict.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{PATIENCE, TestCluster, allow_from};
use netpold_testbed::{Cni, require_root};

use crate::traffic::udp;

const ROUNDS: u32 = 20;
/// Interval between packets: the resolution of the figures.
const PACE: Duration = Duration::from_micros(200);

/// Returns whether a packet arrives within a time.
fn arrives(server: &UdpSocket, within: Duration) -> bool {
    server.set_read_timeout(Some(within)).unwrap();
    udp::receive(server).is_some()
}

/// Measures the time from the file's creation to the first packet that the new policy passes.
#[test]
fn from_file_to_packet() {
    require_root!();
    let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "client"]);
    cluster.policy("p", allow_from("server", "nobody")).enforce();
    let (from, to) = (cluster.pod("client").addresses()[0], cluster.pod("server").addresses()[0]);
    let client = udp::socket(cluster.pod("client"), from, 0);
    let server = udp::socket(cluster.pod("server"), to, 4000);
    client.connect((to, 4000)).unwrap();
    let stop = AtomicBool::new(false);
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = client.send(b"?");
                std::thread::sleep(PACE);
            }
        });
        for _ in 0..ROUNDS {
            cluster.policy("p", allow_from("server", "client"));
            let began = Instant::now();
            cluster.write();
            if !arrives(&server, PATIENCE) {
                break;
            }
            times.push(began.elapsed());
            cluster.policy("p", allow_from("server", "nobody")).enforce();
            while arrives(&server, Duration::from_millis(5)) {}
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(times.len(), ROUNDS as usize, "each change takes effect");
    times.sort();
    println!(
        "from file to packet: min {:?}, median {:?}, max {:?} of {ROUNDS}",
        times[0],
        times[times.len() / 2],
        times[times.len() - 1]
    );
}
