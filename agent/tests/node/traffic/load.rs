//! Traffic during disturbances: no allowed packet may be lost, and no denied packet may leak.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{PATIENCE, PORT, TestCluster, allow_from, allow_to, isolate};
use netpold_testbed::{Cni, Netns, ProbeProtocol, TestFlow};

use crate::traffic::udp;

const BOTH: [&str; 2] = ["Ingress", "Egress"];
/// Port of the server that no pod may reach.
const SECRET: u16 = 4000;
/// Pause between rounds, which leaves CPU time to the agent.
const PACE: Duration = Duration::from_micros(100);
/// Rounds from one new flow to the next, so that an agent on a busy machine grows its tables before they fill.
const NEW_FLOWS: u64 = 2;
/// Rounds of traffic before, between and after the disturbances.
const SOME: u64 = 50;

/// Returns a cluster with a server for `friend` only; `friend` is isolated too, so its answers depend on conntrack.
pub(crate) fn guarded(cni: Cni) -> TestCluster {
    let mut cluster = TestCluster::one(cni).with_pods(&["server", "friend", "stranger"]);
    cluster.policy("s", isolate("server", &BOTH)).policy("from", allow_from("server", "friend"));
    cluster.policy("f", isolate("friend", &BOTH)).policy("to", allow_to("friend", "server"));
    cluster
}

/// Source and destination of each flow.
type Ways = Vec<(IpAddr, IpAddr)>;

/// Traffic during a disturbance, over sockets opened before.
struct Load {
    connections: Vec<TestFlow>,
    /// Sockets of the friend, on which no packet of its own and no answer may be lost.
    datagrams: Vec<UdpSocket>,
    /// Sockets from the stranger to the secret port.
    intruders: Vec<UdpSocket>,
    /// Namespace in which the friend opens new flows, and their addresses.
    beginnings: Option<(Arc<Netns>, Ways)>,
    secrets: Vec<UdpSocket>,
    stop: AtomicBool,
    rounds: [AtomicU64; 2],
}

impl Load {
    fn new(cluster: &TestCluster, beginnings: bool) -> Self {
        let server = cluster.pod("server");
        let connected = |from: &str, to: IpAddr, port| {
            let pod = cluster.pod(from);
            let own = pod.addresses().iter().find(|own| own.is_ipv4() == to.is_ipv4()).unwrap();
            let socket = udp::socket(pod, *own, 0);
            socket.connect((to, port)).unwrap();
            socket
        };
        let addresses = server.addresses();
        let secret = |to: &IpAddr| {
            let socket = udp::socket(server, *to, SECRET);
            socket.set_nonblocking(true).unwrap();
            socket
        };
        Self {
            connections: addresses
                .iter()
                .map(|to| cluster.flow("friend", ProbeProtocol::Tcp, *to))
                .collect(),
            datagrams: addresses.iter().map(|to| connected("friend", *to, PORT)).collect(),
            intruders: addresses.iter().map(|to| connected("stranger", *to, SECRET)).collect(),
            secrets: addresses.iter().map(secret).collect(),
            beginnings: beginnings.then(|| {
                let friend = cluster.pod("friend");
                let ways = friend.addresses().iter().copied().zip(addresses.iter().copied());
                (Arc::clone(friend.netns()), ways.collect())
            }),
            stop: AtomicBool::new(false),
            rounds: Default::default(),
        }
    }

    fn friend(&self, connections: &mut [TestFlow]) {
        let _stop = StopOnDrop(&self.stop);
        for round in 0_u64.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            assert!(connections.iter_mut().all(|flow| flow.ping(PATIENCE)), "a connection broke");
            for socket in &self.datagrams {
                let question = format!("{round}\n");
                let answer =
                    udp::exchange(socket, question.as_bytes()).expect("no datagram is lost");
                assert!(answer.ends_with(question.as_bytes()), "no datagram is lost");
            }
            if round % NEW_FLOWS == 0 {
                self.begin_anew();
            }
            self.rounds[0].fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(PACE);
        }
    }

    /// Exchanges a request and its answer from a new port.
    fn begin_anew(&self) {
        let Some((netns, ways)) = &self.beginnings else { return };
        for (from, to) in ways {
            let socket = netns.run(|| UdpSocket::bind((*from, 0)).unwrap()).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.connect((*to, PORT)).unwrap();
            let answer = udp::exchange(&socket, b"new\n");
            let answer = answer.expect("the answer to a new flow is not lost");
            assert!(answer.ends_with(b"new\n"), "the answer to a new flow is not lost");
        }
    }

    fn stranger(&self) {
        let _stop = StopOnDrop(&self.stop);
        while !self.stop.load(Ordering::Relaxed) {
            for (intruder, secret) in self.intruders.iter().zip(&self.secrets) {
                intruder.send(b"let me in").unwrap();
                assert_eq!(udp::receive(secret), None, "nothing leaks");
            }
            self.rounds[1].fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(PACE);
        }
    }

    /// Waits until both sides have continued for a while.
    fn goes_on(&self) {
        let now = || self.rounds.each_ref().map(|count| count.load(Ordering::Relaxed));
        let (before, deadline) = (now(), Instant::now() + 3 * PATIENCE);
        while now().iter().zip(before).any(|(now, before)| *now < before + SOME) {
            assert!(!self.stop.load(Ordering::Relaxed), "the traffic ended");
            assert!(Instant::now() < deadline, "the traffic hangs");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Stops all threads at the end of a test, and when one fails.
pub(crate) struct StopOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Disturbs a [`guarded`] cluster under traffic, which continues for a while after each disturbance.
pub(crate) fn under_load(cluster: &mut TestCluster, acts: &[&dyn Fn(&mut TestCluster)]) {
    under(Load::new(cluster, true), cluster, acts);
}

/// Does the same as [`under_load`], with flows that were all opened before.
pub(crate) fn under_old_load(cluster: &mut TestCluster, acts: &[&dyn Fn(&mut TestCluster)]) {
    under(Load::new(cluster, false), cluster, acts);
}

fn under(mut load: Load, cluster: &mut TestCluster, acts: &[&dyn Fn(&mut TestCluster)]) {
    let mut connections = std::mem::take(&mut load.connections);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&load.stop);
        scope.spawn(|| load.friend(&mut connections));
        scope.spawn(|| load.stranger());
        load.goes_on();
        for act in acts {
            act(cluster);
            load.goes_on();
        }
    });
    let [friend, stranger] = load.rounds.map(AtomicU64::into_inner);
    println!("{friend} and {stranger} rounds of traffic in {:?}", began.elapsed());
}
