//! Replacement of flow tables by larger ones.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aya::maps::{Array, Map, MapData};
use netpold_ebpf::layout::{LAYOUT_VERSION, NAME_WAYS, NAME_WORDS};
use netpold_testbed::cluster::{
    MOMENT, PATIENCE as ARRIVAL, PORT, TestCluster, allow_from, allow_to, isolate,
};
use netpold_testbed::{Cni, require_root};
use nix::sys::signal::Signal;

use crate::traffic::load::{StopOnDrop, guarded, under_load};
use crate::traffic::udp;

/// Client ports that fill 26 % of a node's initial tables, where each flow has an entry of the server and one of the
/// friend; the ports are below the ports of the load's own flows. Above half of a table, new flows may displace
/// unanswered ones, so the load's flows must not fill much more until the tables grow.
const FLOWS: std::ops::Range<u16> = 12_000..20_600;
/// Deadline: two sweeps and a new generation.
const PATIENCE: Duration = Duration::from_mins(1);

/// Opens more flows of the friend than the tables have room for.
fn crowd(cluster: &TestCluster) {
    let friend = cluster.pod("friend");
    let [from, to] = [friend, cluster.pod("server")].map(|pod| pod.addresses()[0]);
    for port in FLOWS {
        let socket = udp::socket(friend, from, port);
        socket.connect((to, PORT)).unwrap();
        assert!(udp::exchange(&socket, b"new\n").is_some(), "no answer is lost");
    }
}

/// Returns the capacity of the IPv4 table; 0 before the first sweep.
fn room(cluster: &TestCluster) -> u64 {
    let status = cluster.agents[0].status().unwrap();
    status["conntrack"][0]["capacity"].as_u64().unwrap_or(0)
}

/// Waits until a condition holds, with frequent checks, since some conditions hold only briefly.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn folder_is_there(cluster: &TestCluster) -> bool {
    cluster.agents[0].bpffs().join("outgrown").exists()
}

fn grows(mut cluster: TestCluster) {
    cluster.enforce();
    wait_until("the tables are swept", || room(&cluster) > 0);
    let before = room(&cluster);
    let grow = |cluster: &mut TestCluster| {
        crowd(cluster);
        wait_until("the tables grow", || room(cluster) > before);
        assert_eq!(room(cluster), 4 * before);
    };
    under_load(&mut cluster, &[&grow]);
    let log = cluster.agents[0].log();
    assert!(log.contains("migrated flows of other tables"), "{log}");
    assert!(!folder_is_there(&cluster), "the former tables are gone");
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
}

#[test]
fn flow_tables_grow_under_load() {
    require_root!();
    grows(guarded(Cni::Ptp));
}

#[test]
fn flow_tables_grow_behind_xdp_under_load() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    cluster.arguments = ["--pod-egress-hook", "xdp"].map(str::to_owned).into();
    grows(cluster);
}

/// An address of a name, at a place where no lookup finds it.
const MISPLACED: [u64; 2] = [0, 7];
const NAME_BUCKET: usize = NAME_WAYS * NAME_WORDS;

/// The table of resolved addresses.
fn resolved(cluster: &TestCluster) -> Array<MapData, [u64; NAME_BUCKET]> {
    let folder = cluster.agents[0].bpffs().join(format!("v{LAYOUT_VERSION}"));
    let map = MapData::from_pin(folder.join("LEARNED")).unwrap();
    Array::try_from(Map::Array(map)).unwrap()
}

/// Number of entries with an address.
fn entries(cluster: &TestCluster, address: [u64; 2]) -> usize {
    let of_bucket = |bucket: [u64; NAME_BUCKET]| {
        bucket.chunks(NAME_WORDS).filter(|entry| entry[..2] == address).count()
    };
    resolved(cluster).iter().map(|bucket| of_bucket(bucket.unwrap())).sum()
}

/// Tables fill without any change of the cluster, so no other event wakes the engine. Both generations share one table
/// of resolved addresses, so its entries are not copied.
#[test]
fn flow_tables_grow_whatever_the_readback_is() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    cluster.arguments = ["--readback", "3600"].map(str::to_owned).into();
    cluster.enforce();
    let entry = [MISPLACED[0], MISPLACED[1], 3, 1 << 32, 0, 1 << 50];
    let mut bucket = [0; NAME_BUCKET];
    bucket[..NAME_WORDS].copy_from_slice(&entry);
    resolved(&cluster).set(0, bucket, 0).unwrap();
    crowd(&cluster);
    let began = Instant::now();
    wait_until("the tables grow", || {
        cluster.agents[0].log().contains("migrated flows of other tables")
    });
    println!("the tables have grown {:?} after they were crowded", began.elapsed());
    assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    wait_until("the former tables are gone", || !folder_is_there(&cluster));
    assert_eq!(entries(&cluster, MISPLACED), 1);
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
}

/// Kills the agent during growth: the next agent carries over the flows of both tables.
fn killed_while_it_grows(is_so: fn(&TestCluster) -> bool) {
    let mut cluster = guarded(Cni::Ptp);
    cluster.enforce();
    let kill = |cluster: &mut TestCluster| {
        crowd(cluster);
        wait_until("the tables grow", || is_so(cluster));
        cluster.agents[0].end(Signal::SIGKILL);
    };
    let start = |cluster: &mut TestCluster| cluster.restart(0);
    under_load(&mut cluster, &[&kill, &start]);
    assert!(!folder_is_there(&cluster), "the former tables are gone");
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
}

#[test]
fn an_agent_killed_before_the_new_programs_watch_under_load() {
    require_root!();
    killed_while_it_grows(folder_is_there);
}

#[test]
fn an_agent_killed_while_the_new_programs_watch_under_load() {
    require_root!();
    killed_while_it_grows(|cluster| {
        let links = std::fs::read_dir(cluster.agents[0].bpffs().join("links")).unwrap();
        links.flatten().any(|link| link.file_name().to_string_lossy().contains("-before-"))
    });
}

#[test]
fn an_agent_killed_when_the_new_programs_judge_under_load() {
    require_root!();
    killed_while_it_grows(|cluster| {
        cluster.agents[0].log().contains("migrated flows of other tables")
    });
}

/// Client ports of flows that policy denies after the growth.
const DENIED_LATER: std::ops::Range<u16> = 31_000..31_020;

/// Flows from one pod to another, at all of their addresses.
struct AnsweredFlows {
    /// Sockets of the initiator.
    asking: Vec<UdpSocket>,
    /// Sockets of the responder, each with the addresses of its flows.
    answering: Vec<(UdpSocket, Vec<SocketAddr>)>,
}

impl AnsweredFlows {
    fn open(cluster: &TestCluster, from: &str, to: &str) -> Self {
        const SERVER: u16 = 5300;
        let (from, to) = (cluster.pod(from), cluster.pod(to));
        let mut flows = Self { asking: Vec::new(), answering: Vec::new() };
        for (from_address, to_address) in from.addresses().iter().zip(to.addresses()) {
            let sockets = DENIED_LATER.map(|port| udp::socket(from, *from_address, port));
            for socket in sockets {
                socket.connect((*to_address, SERVER)).unwrap();
                flows.asking.push(socket);
            }
            let ends = DENIED_LATER.map(|port| SocketAddr::new(*from_address, port));
            flows.answering.push((udp::socket(to, *to_address, SERVER), ends.collect()));
        }
        flows
    }

    /// Sends a datagram of the initiator on each flow; returns the number that arrived.
    fn ask(&self, patience: Duration) -> usize {
        for socket in &self.asking {
            socket.send(b"question").unwrap();
        }
        let arrived = |(socket, flows): &(UdpSocket, Vec<SocketAddr>)| {
            socket.set_read_timeout(Some(patience)).unwrap();
            flows.iter().map_while(|_| udp::receive(socket)).count()
        };
        self.answering.iter().map(arrived).sum()
    }

    /// Sends a datagram of the responder on each flow.
    fn answer(&self) {
        for (socket, flows) in &self.answering {
            for to in flows {
                socket.send_to(b"answer", to).unwrap();
            }
        }
    }
}

/// New programs see answers before any packet of the initiator, in a direction that no policy isolates. If the tables
/// took these for beginnings, the flows would outlive the policy that denies their initiator.
#[test]
fn answers_begin_no_flow_while_tables_grow_under_load() {
    require_root!();
    let pods = ["client", "outside", "guest", "host"];
    let mut cluster = guarded(Cni::Ptp).with_pods(&pods);
    cluster.policy("c", isolate("client", &["Egress"]));
    cluster.policy("out", allow_to("client", "outside"));
    cluster.policy("h", isolate("host", &["Ingress"])).policy("in", allow_from("host", "guest"));
    cluster.enforce();
    wait_until("the tables are swept", || room(&cluster) > 0);
    let before = room(&cluster);
    let sent = AnsweredFlows::open(&cluster, "client", "outside");
    let received = AnsweredFlows::open(&cluster, "guest", "host");
    let arrived = |patience| [&sent, &received].map(|flows| flows.ask(patience));
    let all = [&sent, &received].map(|flows| flows.asking.len());
    assert_eq!(arrived(ARRIVAL), all);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                sent.answer();
                received.answer();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        crowd(&cluster);
        wait_until("the tables grow", || room(&cluster) > before);
        wait_until("the former tables are gone", || !folder_is_there(&cluster));
        assert_eq!(arrived(ARRIVAL), all, "allowed flows go on");
        cluster.without_policy("out").without_policy("in").enforce();
        assert_eq!(arrived(MOMENT), [0, 0], "denied flows end");
    });
}
