//! A hundred packets that can be told from all others, and how many of them arrive.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{Cluster, PATIENCE, isolate};
use netpold_testbed::packet::{frame, udp_packet};
use netpold_testbed::{Host, Pod, Wire};

/// How many packets an attack is made of.
pub(crate) const PACKETS: usize = 100;
/// What is denied has this long to prove the opposite, on a machine that others use too.
const LONG_ENOUGH: Duration = Duration::from_millis(800);
/// Of an attack without policy: some may be lost to the attack itself.
const NEARLY_ALL: usize = 80;
/// Both directions.
pub(crate) const BOTH: [&str; 2] = ["Ingress", "Egress"];

/// A number of its own in every payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Volley(u32);

impl Volley {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        Self(NUMBER.fetch_add(1, Ordering::Relaxed))
    }

    /// The payload of a packet: its name over and over, at least once.
    pub(crate) fn payload(self, number: usize, length: usize) -> Vec<u8> {
        let name = format!("{}{number:04};", self.name());
        name.bytes().cycle().take(length.max(name.len())).collect()
    }

    fn name(self) -> String {
        format!("<volley{:06}:", self.0)
    }

    /// Numbers of the packets that a frame has parts of.
    fn number_in(self, frame: &[u8]) -> Option<usize> {
        let name = self.name();
        let at = frame.windows(name.len()).position(|part| part == name.as_bytes())?;
        let digits = frame.get(at + name.len()..at + name.len() + 4)?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// How many packets arrive in time; waits no longer once all have.
    fn count(self, wire: &Wire, time: Duration) -> usize {
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

    /// How many packets of a denied attack arrive all the same.
    pub(crate) fn leaked(self, wire: &Wire) -> usize {
        self.count(wire, LONG_ENOUGH)
    }

    /// Without policy they arrive.
    #[track_caller]
    pub(crate) fn arrives(self, wire: &Wire, what: &str) {
        let mut seen = 0;
        let deadline = Instant::now() + PATIENCE;
        while seen < NEARLY_ALL && Instant::now() < deadline {
            seen += self.count(wire, LONG_ENOUGH);
        }
        assert!(seen >= NEARLY_ALL, "{what}: {seen} of {PACKETS} arrive where nothing forbids it");
    }
}

/// What came of the attacks of a test.
#[derive(Debug, Default)]
pub(crate) struct Tally(Vec<(String, usize)>);

impl Tally {
    pub(crate) fn note(&mut self, what: &str, leaked: usize) {
        println!("leaked {leaked} of {PACKETS}: {what}");
        self.0.push((what.to_owned(), leaked));
    }

    /// Nothing leaked.
    #[track_caller]
    pub(crate) fn holds(self) {
        assert!(!self.0.is_empty(), "no attack was tried");
        let leaks: Vec<_> = self.0.iter().filter(|(_, leaked)| *leaked > 0).collect();
        assert!(leaks.is_empty(), "leaked, of {PACKETS}: {leaks:?}");
    }
}

/// Runs an attack without policy, then with a pod of that app denied everything; `attack` sends
/// its volley.
pub(crate) fn try_both(
    cluster: &mut Cluster,
    (what, app): (&str, &str),
    wire: &Wire,
    tally: &mut Tally,
    attack: impl Fn(&Cluster, Volley),
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

/// A raw socket of somebody, and the hardware addresses of both sides.
pub(crate) struct Sender {
    wire: Wire,
    own: [u8; 6],
    next: [u8; 6],
}

impl Sender {
    /// From a pod, to its router.
    pub(crate) fn pod(pod: &Pod) -> Self {
        Self { wire: pod.wire("eth0").unwrap(), own: pod.mac(), next: pod.gateway_mac() }
    }

    /// From one node to the other.
    pub(crate) fn node(cluster: &Cluster, from: usize) -> Self {
        let (here, there) = (cluster.link(from), cluster.link(1 - from));
        let (from, to) = (&cluster.nodes[from], &cluster.nodes[1 - from]);
        Self {
            wire: from.wire(&here).unwrap(),
            own: from.hardware_address(&here).unwrap(),
            next: to.hardware_address(&there).unwrap(),
        }
    }

    /// As if the frame were for somebody else.
    pub(crate) fn to(mut self, next: [u8; 6]) -> Self {
        self.next = next;
        self
    }

    pub(crate) fn send(&self, packet: &[u8]) {
        self.wire.send(&frame(self.next, self.own, packet)).unwrap();
    }

    /// A volley of datagrams.
    pub(crate) fn datagrams(&self, volley: Volley, from: SocketAddr, to: SocketAddr) {
        for number in 0..PACKETS {
            self.send(&udp_packet(from, to, &volley.payload(number, 40)));
        }
    }
}

/// The same family's address of each of two pods.
pub(crate) fn pairs(from: &Pod, to: &Pod) -> Vec<(IpAddr, IpAddr)> {
    from.addresses().iter().copied().zip(to.addresses().iter().copied()).collect()
}

/// Rules of nftables, in a node.
pub(crate) fn nft(node: &Host, rules: &str) {
    let done = node.command("nft").unwrap().arg(rules).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
