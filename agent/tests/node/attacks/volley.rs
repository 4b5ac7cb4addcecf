//! Volley of a hundred recognisable packets, and the count of its arrivals.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{PATIENCE, TestCluster, isolate};
use netpold_testbed::packet::{frame, udp_packet};
use netpold_testbed::{RawSocket, TestPod};
use serde_json::json;

/// Number of packets of an attack.
pub(crate) const PACKETS: usize = 100;
/// Time in which a leak would arrive on a busy machine.
const LONG_ENOUGH: Duration = Duration::from_millis(800);
/// Arrivals that an attack needs without policy; the attack itself may lose some packets.
const NEARLY_ALL: usize = 80;
/// The `policyTypes` of a policy for ingress and egress.
pub(crate) const BOTH: [&str; 2] = ["Ingress", "Egress"];

/// Packets that carry the volley's own number in every payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Volley(u32);

impl Volley {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        Self(NUMBER.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the payload of a packet: the packet's name repeated up to `length`, at least once.
    pub(crate) fn payload(self, number: usize, length: usize) -> Vec<u8> {
        let name = format!("{}{number:04};", self.name());
        name.bytes().cycle().take(length.max(name.len())).collect()
    }

    fn name(self) -> String {
        format!("<volley{:06}:", self.0)
    }

    /// Returns the number of this volley's packet in a frame, also in a fragment of the packet.
    pub(crate) fn number_in(self, frame: &[u8]) -> Option<usize> {
        let name = self.name();
        let at = frame.windows(name.len()).position(|part| part == name.as_bytes())?;
        let rest = frame.get(at + name.len()..)?;
        let digits = rest.get(..rest.iter().position(|byte| *byte == b';')?)?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// Counts the packets that arrive within `time`; returns early once all have.
    fn count(self, wire: &RawSocket, time: Duration) -> usize {
        let (mut seen, deadline) = (BTreeSet::new(), Instant::now() + time);
        loop {
            while let Some(frame) = wire.arrived() {
                seen.extend(self.number_in(&frame));
            }
            if seen.len() >= PACKETS || Instant::now() > deadline {
                return seen.len();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the number of packets that arrive although policy denies them.
    pub(crate) fn leaked(self, wire: &RawSocket) -> usize {
        self.count(wire, LONG_ENOUGH)
    }

    /// Asserts that the packets arrive, where no policy denies them.
    #[track_caller]
    pub(crate) fn arrives(self, wire: &RawSocket, what: &str) {
        let mut seen = 0;
        let deadline = Instant::now() + PATIENCE;
        while seen < NEARLY_ALL && Instant::now() < deadline {
            seen += self.count(wire, LONG_ENOUGH);
        }
        assert!(seen >= NEARLY_ALL, "{what}: {seen} of {PACKETS} arrive where nothing forbids it");
    }
}

/// Number of leaked packets per attack of a test.
#[derive(Debug, Default)]
pub(crate) struct Tally(Vec<(String, usize)>);

impl Tally {
    pub(crate) fn note(&mut self, what: &str, leaked: usize) {
        println!("leaked {leaked} of {PACKETS}: {what}");
        self.0.push((what.to_owned(), leaked));
    }

    /// Asserts that no packet leaked.
    #[track_caller]
    pub(crate) fn holds(self) {
        assert!(!self.0.is_empty(), "no attack was tried");
        let leaks: Vec<_> = self.0.iter().filter(|(_, leaked)| *leaked > 0).collect();
        assert!(leaks.is_empty(), "leaked, of {PACKETS}: {leaks:?}");
    }
}

/// Runs an attack without policy, then with the pods of `app` isolated and without rules. `attack` sends the volley.
pub(crate) fn try_both(
    cluster: &mut TestCluster,
    (what, app): (&str, &str),
    wire: &RawSocket,
    tally: &mut Tally,
    attack: impl Fn(&TestCluster, Volley),
) {
    cluster.enforce();
    let volley = Volley::new();
    attack(cluster, volley);
    volley.arrives(wire, what);
    cluster.policy(app, isolate(app, &BOTH)).enforce();
    let volley = Volley::new();
    attack(cluster, volley);
    tally.note(what, volley.leaked(wire));
    cluster.without_policy(app);
}

/// Raw socket of a host, with the MAC addresses of its frames.
pub(crate) struct Sender {
    wire: RawSocket,
    own: [u8; 6],
    next: [u8; 6],
}

impl Sender {
    /// Returns a sender in a pod; its frames go to the pod's router.
    pub(crate) fn pod(pod: &TestPod) -> Self {
        Self { wire: pod.wire("eth0").unwrap(), own: pod.mac(), next: pod.gateway_mac() }
    }

    /// Returns a sender on a node; its frames go to the other node.
    pub(crate) fn node(cluster: &TestCluster, from: usize) -> Self {
        let (here, there) = (cluster.link(from), cluster.link(1 - from));
        let (from, to) = (&cluster.nodes[from], &cluster.nodes[1 - from]);
        Self {
            wire: from.wire(&here).unwrap(),
            own: from.hardware_address(&here).unwrap(),
            next: to.hardware_address(&there).unwrap(),
        }
    }

    /// Replaces the destination MAC address.
    pub(crate) fn to(mut self, next: [u8; 6]) -> Self {
        self.next = next;
        self
    }

    pub(crate) fn send(&self, packet: &[u8]) {
        self.wire.send(&frame(self.next, self.own, packet)).unwrap();
    }

    /// Sends a volley of datagrams.
    pub(crate) fn datagrams(&self, volley: Volley, from: SocketAddr, to: SocketAddr) {
        for number in 0..PACKETS {
            self.send(&udp_packet(from, to, &volley.payload(number, 40)));
        }
    }
}

/// Returns the address pairs of two pods, one of each family.
pub(crate) fn pairs(from: &TestPod, to: &TestPod) -> Vec<(IpAddr, IpAddr)> {
    from.addresses().iter().copied().zip(to.addresses().iter().copied()).collect()
}

/// Lets `hostile` send to this port of `victim` by these protocols, and nothing else.
pub(crate) fn allow_one_port(cluster: &mut TestCluster, protocols: [&str; 2], port: u16) {
    let peer = json!({ "podSelector": { "matchLabels": { "app": "victim" } } });
    let ports = protocols.map(|protocol| json!({ "protocol": protocol, "port": port }));
    let spec = json!({
        "podSelector": { "matchLabels": { "app": "hostile" } },
        "policyTypes": ["Egress"],
        "egress": [{ "to": [peer], "ports": ports }],
    });
    cluster.policy("hostile", spec);
}
