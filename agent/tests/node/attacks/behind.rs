//! Packets that come to the program at a pod's veth with the proof that another program has left. They drop, except
//! while programs of two generations run at the hook, of which the first leaves the proof for the second: then no
//! packet of a pod may be lost, and the exception ends with the former programs.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{
    MOMENT, PATIENCE, TestCluster, allow_from, allow_to, binary, isolate,
};
use netpold_testbed::packet::udp_packet;
use netpold_testbed::{Cni, RawSocket, other_layout, require_root};
use nix::sys::signal::Signal;

use crate::attacks::aside::{MIGRATED, crowd};
use crate::attacks::bounce::tc;
use crate::attacks::volley::{BOTH, Sender, Tally, Volley, pairs};

const PORT: u16 = 4000;
/// Pause between two packets of the pod that loses none.
const PACE: Duration = Duration::from_millis(1);
/// Limit for tables to grow on a busy machine.
const GROWN: Duration = Duration::from_mins(1);

/// A node that hands the packets of `carrier`, behind the program at its veth, to the program at the veth of `other`.
/// Policy allows them, and the source check is off: nothing but the proof tells them from the packets of `other`.
struct World {
    cluster: TestCluster,
    tally: Tally,
}

impl World {
    fn new() -> Self {
        let pods = ["server", "friend", "carrier", "other"];
        let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&pods);
        cluster.arguments = ["--check-source", "off"].map(str::to_owned).into();
        let [from, to] = ["carrier", "other"].map(|pod| cluster.pod(pod).host_interface());
        let node = &cluster.nodes[0];
        tc(node, &format!("qdisc add dev {from} clsact"));
        let hands_over = format!("action mirred ingress redirect dev {to}");
        tc(
            node,
            &format!("filter add dev {from} ingress protocol all u32 match u32 0 0 {hands_over}"),
        );
        let mut world = Self { cluster, tally: Tally::default() };
        let wire = world.server();
        world.carry().arrives(&wire, "without an agent");
        let cluster = &mut world.cluster;
        cluster.policy("server", isolate("server", &BOTH));
        cluster.policy("from", allow_from("server", "friend"));
        cluster.policy("carried", allow_from("server", "carrier"));
        cluster.policy("f", isolate("friend", &BOTH)).policy("to", allow_to("friend", "server"));
        cluster.enforce();
        world.drops("before");
        world
    }

    fn server(&self) -> RawSocket {
        self.cluster.pod("server").wire("eth0").unwrap()
    }

    fn ends(&self, from: &str) -> (SocketAddr, SocketAddr) {
        let (from, to) = pairs(self.cluster.pod(from), self.cluster.pod("server"))[0];
        ((from, 5000).into(), (to, PORT).into())
    }

    /// Sends a volley of packets that come to another pod's program with the proof.
    fn carry(&self) -> Volley {
        let (volley, (from, to)) = (Volley::new(), self.ends("carrier"));
        Sender::pod(self.cluster.pod("carrier")).datagrams(volley, from, to);
        volley
    }

    /// Notes how many packets with the proof pass.
    fn drops(&mut self, what: &str) {
        let wire = self.server();
        let volley = self.carry();
        self.tally.note(what, volley.leaked(&wire));
    }

    /// Asserts that no packet of an allowed pod is lost while `act` runs, and that packets with the proof drop after it.
    fn keeps_all(mut self, act: impl FnOnce(&mut TestCluster)) {
        let (volley, (from, to)) = (Volley::new(), self.ends("friend"));
        let sender = Sender::pod(self.cluster.pod("friend"));
        let wire = self.server();
        let (goes_on, ended) = mpsc::channel::<()>();
        let stream = std::thread::spawn(move || {
            let going = |_: &usize| ended.try_recv() == Err(mpsc::TryRecvError::Empty);
            let sent = (0..).take_while(going).map(|number| {
                sender.send(&udp_packet(from, to, &volley.payload(number, 40)));
                std::thread::sleep(PACE);
            });
            sent.count()
        });
        let (all, sent) = mpsc::channel::<usize>();
        let arrivals = std::thread::spawn(move || {
            let (mut seen, mut expected, mut deadline) = (BTreeSet::new(), usize::MAX, None);
            while seen.len() < expected && deadline.is_none_or(|end| Instant::now() < end) {
                while let Some(frame) = wire.arrived() {
                    seen.extend(volley.number_in(&frame));
                }
                if let Ok(count) = sent.try_recv() {
                    (expected, deadline) = (count, Some(Instant::now() + PATIENCE));
                }
                std::thread::sleep(PACE);
            }
            seen
        });
        act(&mut self.cluster);
        self.cluster.wait();
        let former = self.cluster.agents[0].bpffs().join("outgrown");
        eventually("the former tables and programs are gone", || !former.exists());
        drop(goes_on);
        let sent = stream.join().unwrap();
        all.send(sent).unwrap();
        let arrived = arrivals.join().unwrap();
        println!("{} of {sent} packets arrived", arrived.len());
        let lost: Vec<usize> = (0..sent).filter(|number| !arrived.contains(number)).collect();
        let (first, last) = (lost.first(), lost.last());
        assert!(first.is_none(), "{} of {sent} are lost: {first:?} to {last:?}", lost.len());
        // The exception ends just after the former tables.
        std::thread::sleep(MOMENT);
        self.drops("after");
        self.tally.holds();
    }
}

/// Waits until a condition holds, with frequent checks, since programs run in front of others for milliseconds only.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + GROWN;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until programs of two generations run at a hook.
fn two_generations(cluster: &TestCluster) {
    eventually("programs are in front of others", || {
        let links = std::fs::read_dir(cluster.agents[0].bpffs().join("links")).unwrap();
        links.flatten().any(|link| link.file_name().to_string_lossy().contains("-before-"))
    });
}

#[test]
fn packets_with_the_proof_around_growing_flow_tables() {
    require_root!();
    World::new().keeps_all(|cluster| {
        crowd(cluster);
        two_generations(cluster);
    });
}

/// The next agent finds programs of two generations at the hooks, and puts its own in front of both: while the ones in
/// front only watch, and after they have begun to judge.
#[test]
fn packets_with_the_proof_around_a_killed_agent() {
    require_root!();
    let moments: [fn(&TestCluster); 2] = [two_generations, |cluster| {
        eventually("programs in front judge", || cluster.agents[0].log().contains(MIGRATED));
    }];
    for moment in moments {
        World::new().keeps_all(|cluster| {
            crowd(cluster);
            moment(cluster);
            cluster.agents[0].end(Signal::SIGKILL);
            std::thread::sleep(MOMENT);
            cluster.restart(0);
        });
    }
}

#[test]
fn packets_with_the_proof_around_a_change_of_layouts() {
    require_root!();
    let other = other_layout::build();
    World::new().keeps_all(|cluster| {
        for agent in [other, binary()] {
            cluster.agents[0].end(Signal::SIGKILL);
            cluster.agents[0].set_binary(agent);
            cluster.agents[0].restart(&cluster.nodes[0]).unwrap();
            two_generations(cluster);
            cluster.wait();
        }
    });
}
