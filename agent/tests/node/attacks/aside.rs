//! Packets to denied backends of a Service while the programs of the pods are replaced: flow tables grow, or an agent with
//! another layout takes over. An exit judges such a packet by the marks that the sender's program has left. The former
//! programs run behind the new ones for a while, and must not erase these marks.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use netpold_testbed::cluster::{
    ENFORCED, PORT, TestCluster, allow_from, allow_to, binary, eventually_at, isolate,
};
use netpold_testbed::packet::udp_packet;
use netpold_testbed::services::{SERVICE_PORT, TestService, may_reach, provide};
use netpold_testbed::{Proxy, RawSocket, other_layout, require_root};
use nix::sys::signal::Signal;

use crate::attacks::bounce::{bounced, can_bounce};
use crate::attacks::handover::{begin_stream, end_stream};
use crate::attacks::volley::{BOTH, Sender, Tally, Volley, pairs};

/// Source ports of the packets to the Service: the node chooses a backend for each.
const PORTS: std::ops::Range<u16> = 6_000..6_100;
/// Pods without policy. The former programs of all pods stand aside at once and are removed one by one.
const BYSTANDERS: usize = 10;
/// Source ports of flows that fill 27 % of a node's initial tables: each has an entry of the server and one of the friend.
const FLOWS: std::ops::Range<u16> = 12_000..21_000;
/// A closed port of the server.
const CLOSED: u16 = 4_000;
/// Pause between two packets to the Service.
const PACE: Duration = Duration::from_micros(500);
/// Line of the log about flows that were copied: at the beginning of a replacement, and at its end.
pub(crate) const MIGRATED: &str = "migrated flows of other tables";

/// A cluster whose pod `hostile` may reach one of the backends of a Service. All pods but `far` are on one node.
pub(crate) struct Attack {
    cluster: TestCluster,
    node: usize,
    stream: Stream,
    /// Pause between two packets to the Service.
    pace: Duration,
    /// Receivers of the denied packets, each with two sockets: one for each way of sending.
    wires: Vec<(&'static str, [RawSocket; 2])>,
}

/// Packets to the Service.
struct Stream {
    sender: Sender,
    /// Both ends, of each family and source port.
    ends: Vec<(SocketAddr, SocketAddr)>,
}

impl Stream {
    fn send(&self, volley: Volley, number: usize) {
        let (from, to) = self.ends[number % self.ends.len()];
        self.sender.send(&udp_packet(from, to, &volley.payload(number % 10_000, 40)));
    }
}

impl Attack {
    /// Tries the attacks without policy, then isolates the pod. `None` where the kernel lacks `ifb`.
    fn new(test: &str, node: usize) -> Option<Self> {
        // The newest interface is the last one with the former programs.
        Self::with(test, node, PACE, |cluster| cluster.add(node, "hostile"))
    }

    /// Does the same with a pod that `add` adds last.
    pub(crate) fn with(
        test: &str,
        node: usize,
        pace: Duration,
        add: impl FnOnce(&mut TestCluster),
    ) -> Option<Self> {
        let mut cluster = TestCluster::two();
        for number in 0..BYSTANDERS {
            cluster.add(node, &format!("bystander{number}"));
        }
        ["good", "bad", "friend", "server"].into_iter().for_each(|name| cluster.add(node, name));
        cluster.add(1 - node, "far");
        add(&mut cluster);
        if !can_bounce(cluster.pod("hostile"), test) {
            return None;
        }
        let service = TestService::new(1, "mixed").pods(&cluster, &["good", "bad", "far"]);
        let hostile = cluster.pod("hostile");
        let families = hostile.addresses().iter().zip(service.cluster_ips());
        let ends = families.flat_map(|(from, to)| {
            PORTS.map(move |port| ((*from, port).into(), (to, SERVICE_PORT).into()))
        });
        let stream = Stream { sender: Sender::pod(hostile), ends: ends.collect() };
        let wires = ["bad", "far"].map(|name| {
            let wire = || cluster.pod(name).wire("eth0").unwrap();
            (name, [wire(), wire()])
        });
        provide(&mut cluster, Proxy::Nftables, &[service]);
        let mut attack = Self { cluster, node, stream, pace, wires: wires.into() };
        attack.arrives();
        // On a bridge, an isolated pod is enough for packets around a program to drop.
        let cluster = &mut attack.cluster;
        cluster
            .policy("s", isolate("server", &BOTH))
            .policy("from", allow_from("server", "friend"));
        cluster.policy("f", isolate("friend", &BOTH)).policy("to", allow_to("friend", "server"));
        cluster.policy("hostile", may_reach("hostile", &["good"])).enforce();
        Some(attack)
    }

    /// Asserts that packets reach each backend by the Service, and by `ifb`, while no policy denies it.
    fn arrives(&mut self) {
        self.cluster.enforce();
        let volley = Volley::new();
        (0..self.stream.ends.len()).for_each(|number| self.stream.send(volley, number));
        for (name, [wire, _]) in &self.wires {
            assert!(volley.leaked(wire) > 0, "the Service leads to {name}");
        }
        let hostile = self.cluster.pod("hostile");
        for (name, [_, wire]) in &self.wires {
            let (from, to) = pairs(hostile, self.cluster.pod(name))[0];
            let volley = Volley::new();
            bounced(hostile, volley, ((from, PORTS.end).into(), (to, PORT).into()), None);
            volley.arrives(wire, "without policy");
        }
    }

    /// Sends to the Service, and to its backends around the pod's program, while `act` runs; returns the leaks.
    pub(crate) fn goes_on(self, act: impl FnOnce(&mut TestCluster, usize)) -> Tally {
        let Self { mut cluster, node, stream, pace, wires } = self;
        let (marked, around) = (Volley::new(), Volley::new());
        let hostile = cluster.pod("hostile");
        let sockets = |(from, to): (IpAddr, IpAddr)| ((from, PORTS.end).into(), (to, PORT).into());
        let backends = wires.iter().flat_map(|(name, _)| pairs(hostile, cluster.pod(name)));
        let mut ends: Vec<_> = backends.map(sockets).collect();
        ends.extend(stream.ends.iter().step_by(PORTS.len()));
        begin_stream(hostile, around, &ends);
        let (goes_on, ended) = mpsc::channel::<()>();
        let sender = std::thread::spawn(move || {
            let going = |_: &usize| ended.try_recv() == Err(mpsc::TryRecvError::Empty);
            let sent = (0..).take_while(going).map(|number| {
                stream.send(marked, number);
                std::thread::sleep(pace);
            });
            sent.count()
        });
        act(&mut cluster, node);
        // The former programs are gone now.
        let good = cluster.pod("good").wire("eth0").unwrap();
        assert!(marked.leaked(&good) > 0, "packets to the allowed backend pass");
        drop(goes_on);
        println!("{} packets to the Service", sender.join().unwrap());
        end_stream(cluster.pod("hostile"));
        let mut tally = Tally::default();
        for (name, [wire, bypass]) in &wires {
            tally.note(&format!("by the Service to {name}"), marked.leaked(wire));
            tally.note(&format!("around the program to {name}"), around.leaked(bypass));
        }
        tally
    }
}

/// Waits until programs were replaced `times` more.
pub(crate) fn replaced(cluster: &TestCluster, node: usize, times: usize) {
    let lines = || cluster.agents[node].log().matches(MIGRATED).count();
    eventually_at(
        Duration::from_millis(5),
        ENFORCED,
        || lines() >= 2 * times,
        || format!("the programs are replaced: {}", cluster.agents[node].log()),
    );
}

/// Begins more flows than the flow tables have room for, between isolated pods that may send to each other.
pub(crate) fn crowd(cluster: &TestCluster) {
    let (friend, server) = (cluster.pod("friend"), cluster.pod("server"));
    let (from, to) = pairs(friend, server)[0];
    let sender = Sender::pod(friend);
    for port in FLOWS {
        sender.send(&udp_packet((from, port).into(), (to, CLOSED).into(), b"new"));
    }
}

/// Has an agent with another layout take over, and this one again.
pub(crate) fn change_layouts(cluster: &mut TestCluster, node: usize, other: &Path) {
    for agent in [other, &binary()] {
        cluster.agents[node].end(Signal::SIGKILL);
        cluster.agents[node].set_binary(agent);
        cluster.restart(node);
    }
    replaced(cluster, node, 2);
}

fn while_tables_grow(test: &str, node: usize) {
    let Some(attack) = Attack::new(test, node) else { return };
    let tally = attack.goes_on(|cluster, node| {
        crowd(cluster);
        replaced(cluster, node, 1);
    });
    tally.holds();
}

#[test]
fn denied_backends_while_flow_tables_grow_on_a_ptp_node() {
    require_root!();
    while_tables_grow("denied_backends_while_flow_tables_grow_on_a_ptp_node", 0);
}

#[test]
fn denied_backends_while_flow_tables_grow_on_a_bridge_node() {
    require_root!();
    while_tables_grow("denied_backends_while_flow_tables_grow_on_a_bridge_node", 1);
}

#[test]
fn denied_backends_while_layouts_change() {
    const TEST: &str = "denied_backends_while_layouts_change";
    require_root!();
    let other = other_layout::build();
    let Some(attack) = Attack::new(TEST, 0) else { return };
    attack.goes_on(|cluster, node| change_layouts(cluster, node, &other)).holds();
}
