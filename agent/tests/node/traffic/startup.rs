//! Pods that start while the agent is killed, replaced or upgraded, or starts after a boot: no denied packet passes
//! from the first instant of their containers.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{
    ENFORCED, NAMESPACE, PATIENCE, PORT, TestCluster, eventually, isolate,
};
use netpold_testbed::{Cni, KillOnDrop, PodSpec, TestPod, require_root};
use netpold_testkit::random::Random;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::traffic::kernel;
use crate::traffic::load::{guarded, under_load};
use crate::traffic::udp;

const BOTH: [&str; 2] = ["Ingress", "Egress"];
/// Destination port of all datagrams.
const SECRET: u16 = 4000;
/// Time from the CNI plugin's result to the container's first instruction; a runtime takes longer.
const CONTAINER: Duration = Duration::from_millis(30);
/// Interval between packets in each direction.
const PACE: Duration = Duration::from_millis(2);
/// Time for which a pod sends: longer than the agent is away in these tests.
const LIFE: Duration = Duration::from_secs(6);

/// Returns the number of pods that start in a test: ten, or the value of the variable.
fn starts() -> usize {
    std::env::var("NETPOLD_POD_STARTS").ok().and_then(|number| number.parse().ok()).unwrap_or(10)
}

/// Traffic between a pod and the witness in both directions, from the pod's first instant.
struct Traffic {
    sender: JoinHandle<()>,
    stop: Arc<AtomicBool>,
}

/// Numbers of packets that left and entered guests, and of packets sent.
#[derive(Clone, Debug, Default)]
struct Tally {
    left: Arc<AtomicU64>,
    entered: Arc<AtomicU64>,
    sent: Arc<AtomicU64>,
}

impl Tally {
    fn get(&self) -> [u64; 2] {
        [&self.left, &self.entered].map(|count| count.load(Ordering::Relaxed))
    }
}

/// Node with a witness that no policy selects; `guest` pods may neither send nor receive.
struct Start {
    cluster: TestCluster,
    results: PathBuf,
    tally: Tally,
    /// Sockets of the witness that send to guests, one per family.
    senders: Vec<(IpAddr, Arc<UdpSocket>)>,
    traffic: Vec<Traffic>,
    number: usize,
}

impl Start {
    fn new(cni: Cni, arguments: &[&str]) -> Self {
        let mut cluster = TestCluster::one(cni).with_pods(&["witness", "free"]);
        let results = cluster.directory.path().join("results");
        std::fs::create_dir(&results).unwrap();
        // The runtime keeps CNI results.
        answer(cluster.pod("witness"), &results);
        cluster.arguments = vec!["--cni-results".to_owned(), results.to_str().unwrap().to_owned()];
        cluster.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        cluster.policy("guests", isolate("guest", &BOTH));
        let tally = Tally::default();
        let witness = cluster.pod("witness");
        let addresses = witness.addresses().to_vec();
        for address in &addresses {
            listen(udp::socket(witness, *address, SECRET), Arc::clone(&tally.left));
        }
        let senders = addresses.iter().map(|address| {
            let socket = udp::socket(witness, *address, 0);
            socket.set_nonblocking(true).unwrap();
            (*address, Arc::new(socket))
        });
        let senders = senders.collect();
        Self { cluster, results, tally, senders, traffic: Vec::new(), number: 0 }
    }

    /// Enforces, and checks that packets that no policy denies arrive and are counted.
    fn enforce(&mut self) {
        self.cluster.enforce();
        let free = self.cluster.pod("free");
        let arrived = self.tally.clone();
        let traffic = begin(free, &self.senders, &self.tally);
        eventually(
            PATIENCE,
            || arrived.get().iter().all(|count| *count > 0),
            || format!("{arrived:?}"),
        );
        traffic.end();
        std::thread::sleep(Duration::from_millis(50));
        for count in [&self.tally.left, &self.tally.entered] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Starts a pod as a kubelet does: the sandbox, the CNI plugin's result, the container.
    fn pod(&mut self) {
        self.number += 1;
        let name = format!("guest{}", self.number);
        self.cluster.add_as(0, PodSpec::new(NAMESPACE, &name).label("app", "guest"));
        self.cluster.pending.insert(name.clone());
        self.cluster.write();
        let pod = self.cluster.pod(&name);
        answer(pod, &self.results);
        std::thread::sleep(CONTAINER);
        self.traffic.push(begin(pod, &self.senders, &self.tally));
    }

    /// Waits until all pods have sent for a while and the agent enforces. Asserts that no packet passed.
    #[track_caller]
    fn end(&mut self, when: &str) {
        self.cluster.pending.clear();
        self.cluster.write();
        self.cluster.wait();
        let log = |start: &Self| start.cluster.agents[0].log();
        std::thread::sleep(Duration::from_millis(100));
        self.traffic.drain(..).for_each(Traffic::end);
        println!(
            "{} pods, {} packets: {when}",
            self.number,
            self.tally.sent.load(Ordering::Relaxed)
        );
        assert_eq!(self.tally.get(), [0, 0], "out of pods and into them {when}: {}", log(self));
        // Guests are deleted, so that a test with many does not run out of addresses.
        for number in 1..=self.number {
            let name = format!("guest{number}");
            if self.cluster.has(&name) {
                let guest = self.cluster.take(&name);
                std::fs::remove_file(self.results.join(file(&guest))).unwrap();
            }
        }
    }
}

/// Returns the file name of a result, as libcni forms it.
fn file(pod: &TestPod) -> String {
    format!("testbed-{}-eth0", pod.uid())
}

fn answer(pod: &TestPod, results: &Path) {
    std::fs::write(results.join(file(pod)), pod.cni_result(pod.uid()).to_string()).unwrap();
}

/// Counts arriving packets until the process ends.
fn listen(socket: UdpSocket, count: Arc<AtomicU64>) {
    socket.set_read_timeout(None).unwrap();
    std::thread::spawn(move || {
        while socket.recv(&mut [0; 16]).is_ok() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
}

fn begin(pod: &TestPod, witness: &[(IpAddr, Arc<UdpSocket>)], tally: &Tally) -> Traffic {
    let mut pairs = Vec::new();
    for own in pod.addresses() {
        listen(udp::socket(pod, *own, SECRET), Arc::clone(&tally.entered));
        let socket = udp::socket(pod, *own, 0);
        socket.set_nonblocking(true).unwrap();
        let (to, from_witness) =
            witness.iter().find(|(it, _)| it.is_ipv4() == own.is_ipv4()).unwrap();
        pairs.push((
            socket,
            SocketAddr::new(*to, SECRET),
            Arc::clone(from_witness),
            SocketAddr::new(*own, SECRET),
        ));
    }
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::clone(&tally.sent));
    let stopped = Arc::clone(&stop);
    let sender = std::thread::spawn(move || {
        let end = Instant::now() + LIFE;
        while !stopped.load(Ordering::Relaxed) && Instant::now() < end {
            for (own, to, witness, back) in &pairs {
                // A packet that netpold drops at once counts as sent or fails; a neighbour may be unresolved.
                let _ = (own.send_to(b"out", to), witness.send_to(b"in", back));
                sent.fetch_add(2, Ordering::Relaxed);
            }
            std::thread::sleep(PACE);
        }
    });
    Traffic { sender, stop }
}

impl Traffic {
    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.sender.join().unwrap();
    }
}

/// Starts pods at random times while the agent is killed and started again, also at random times.
fn killed_again_and_again(mut start: Start) {
    start.enforce();
    let _standby = start.cluster.agents[0].standby(&start.cluster.nodes[0]).unwrap();
    let mut random = Random(7);
    let mut pods = 0;
    while pods < starts() {
        start.cluster.agents[0].end(Signal::SIGKILL);
        for _ in 0..random.below(3) {
            std::thread::sleep(Duration::from_millis(random.below(200) as u64));
            start.pod();
            pods += 1;
        }
        start.cluster.agents[0].restart(&start.cluster.nodes[0]).unwrap();
        // The agent loads its programs meanwhile.
        for _ in 0..=random.below(3) {
            std::thread::sleep(Duration::from_millis(random.below(700) as u64));
            start.pod();
            pods += 1;
        }
        start.end("while the agent was killed");
    }
}

#[test]
fn pods_that_start_while_the_agent_is_killed_on_a_ptp_node() {
    require_root!();
    killed_again_and_again(Start::new(Cni::Ptp, &[]));
}

#[test]
fn pods_that_start_while_the_agent_is_killed_on_a_bridge_node() {
    require_root!();
    killed_again_and_again(Start::new(Cni::Bridge, &[]));
}

#[test]
fn pods_that_start_while_the_agent_is_killed_below_clsact() {
    require_root!();
    let mut start = Start::new(Cni::Ptp, &[]);
    start.cluster.prepare = kernel::without_tcx;
    killed_again_and_again(start);
}

/// Starts a successor alongside the running agent, which takes over (a DaemonSet's `maxSurge`).
#[test]
fn pods_that_start_while_a_successor_takes_over() {
    require_root!();
    let mut start = Start::new(Cni::Ptp, &["--take-over"]);
    start.enforce();
    let mut random = Random(11);
    let mut former: Option<KillOnDrop> = None;
    let mut pods = 0;
    while pods < starts() {
        let node = &start.cluster.nodes[0];
        let before = takeovers(&start.cluster);
        let replaced = start.cluster.agents[0].succeed(node).unwrap();
        // The former agent waits for the end of its successor; now its pod ends.
        if let Some(mut process) = former.replace(replaced) {
            kill(Pid::from_raw(process.0.id() as i32), Signal::SIGTERM).unwrap();
            assert!(process.0.wait().unwrap().success());
        }
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(random.below(800) as u64));
            start.pod();
            pods += 1;
        }
        let cluster = &start.cluster;
        eventually(ENFORCED, || takeovers(cluster) > before, || cluster.agents[0].log());
        start.end("while a successor took over");
    }
}

/// Checks that allowed flows, old and new, lose no packet when a successor takes over, and that denied flows stay
/// denied.
#[test]
fn a_successor_takes_over_under_load() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    cluster.arguments = vec!["--take-over".to_owned()];
    cluster.enforce();
    let former = std::cell::RefCell::new(Vec::new());
    let succeed = |cluster: &mut TestCluster| former.borrow_mut().push(succeed(cluster));
    under_load(&mut cluster, &[&succeed, &succeed]);
}

/// Returns the number of hand-overs by agents of the first node.
fn takeovers(cluster: &TestCluster) -> usize {
    cluster.agents[0].log().matches("another agent takes over").count()
}

/// Starts a successor that takes over and enforces. Returns the former agent's process.
fn succeed(cluster: &mut TestCluster) -> KillOnDrop {
    let before = takeovers(cluster);
    let former = cluster.agents[0].succeed(&cluster.nodes[0]).unwrap();
    eventually(ENFORCED, || takeovers(cluster) > before, || cluster.agents[0].log());
    cluster.wait();
    former
}

/// Checks that an agent takes its node back if its successor ends and no other follows.
#[test]
fn a_successor_that_ends_gives_the_node_back() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    cluster.arguments = vec!["--take-over".to_owned()];
    cluster.enforce();
    let first = cluster.agents[0].pid();
    let former = succeed(&mut cluster);
    let successor = cluster.agents[0].reinstate(former);
    assert_eq!(cluster.agents[0].pid(), first, "the process is the same");
    drop(successor);
    cluster.without_policy("s").without_policy("from").write();
    cluster.wait();
    cluster.reaches("friend", "server");
    let log = cluster.agents[0].log();
    assert!(log.contains("taking over again"), "{log}");
}

/// Upgrades to another table layout, and back.
#[test]
fn pods_that_start_during_an_upgrade_of_layouts() {
    require_root!();
    let mut start = Start::new(Cni::Ptp, &[]);
    let other = netpold_testbed::other_layout::build();
    start.enforce();
    let _standby = start.cluster.agents[0].standby(&start.cluster.nodes[0]).unwrap();
    for binary in [other, netpold_testbed::cluster::binary()] {
        start.cluster.agents[0].end(Signal::SIGTERM);
        start.pod();
        start.cluster.agents[0].set_binary(binary);
        start.cluster.agents[0].restart(&start.cluster.nodes[0]).unwrap();
        for wait in [50, 400, 400] {
            std::thread::sleep(Duration::from_millis(wait));
            start.pod();
        }
        start.end("during an upgrade");
    }
}

/// Simulates a boot, which leaves the state file and no pins, with pods that start from the agent's first instant.
#[test]
fn pods_that_start_at_a_boot() {
    require_root!();
    let mut start = Start::new(Cni::Ptp, &[]);
    start.enforce();
    let state = start.cluster.agents[0].state().join("last");
    eventually(ENFORCED, || state.exists(), || "no state is kept".to_owned());
    for boot in 0..(starts() / 5).max(2) {
        start.cluster.agents[0].end(Signal::SIGKILL);
        let mut uninstall = std::process::Command::new(netpold_testbed::cluster::binary());
        netpold_testbed::without_twins(&mut uninstall).args(["uninstall", "--bpffs"]);
        let root = start.cluster.agents[0].bpffs();
        let node = start.cluster.nodes[0].netns();
        let done = node.run(|| uninstall.arg(root).output().unwrap()).unwrap();
        assert!(done.status.success(), "{done:?}");
        start.cluster.agents[0].restart(&start.cluster.nodes[0]).unwrap();
        let links = start.cluster.agents[0].bpffs().join("links");
        eventually(ENFORCED, || links.join("closed").exists(), || "no guard".to_owned());
        for wait in [0, 100 * boot as u64 % 700, 300] {
            std::thread::sleep(Duration::from_millis(wait));
            start.pod();
        }
        start.end("at a boot");
    }
}

/// The unit's `ExecStop=` sends SIGINT when the machine shuts down. After SIGTERM a standby runs until an agent
/// starts.
#[test]
fn a_standby_ends_at_once_where_no_agent_will_come() {
    require_root!();
    let mut start = Start::new(Cni::Ptp, &[]);
    start.enforce();
    let mut standby = start.cluster.agents[0].standby(&start.cluster.nodes[0]).unwrap();
    let send = |standby: &KillOnDrop, signal| {
        kill(Pid::from_raw(standby.0.id().cast_signed()), signal).unwrap();
    };
    std::thread::sleep(Duration::from_millis(500));
    start.cluster.agents[0].end(Signal::SIGKILL);
    send(&standby, Signal::SIGTERM);
    start.pod();
    std::thread::sleep(Duration::from_secs(1));
    assert!(standby.0.try_wait().unwrap().is_none(), "the next agent may be on its way");
    let began = Instant::now();
    send(&standby, Signal::SIGINT);
    eventually(PATIENCE, || standby.0.try_wait().unwrap().is_some(), || "still there".to_owned());
    println!("ended after {:?}", began.elapsed());
    start.cluster.agents[0].restart(&start.cluster.nodes[0]).unwrap();
    start.end("while the standby waited");
}

/// After `netpold uninstall` no process closes new pods, not even a standby that still runs.
#[test]
fn a_standby_leaves_a_node_alone_where_nothing_is_enforced() {
    require_root!();
    let mut start = Start::new(Cni::Ptp, &[]);
    start.enforce();
    let _standby = start.cluster.agents[0].standby(&start.cluster.nodes[0]).unwrap();
    start.cluster.agents[0].end(Signal::SIGKILL);
    let mut uninstall = std::process::Command::new(netpold_testbed::cluster::binary());
    netpold_testbed::without_twins(&mut uninstall).args(["uninstall", "--bpffs"]);
    let root = start.cluster.agents[0].bpffs();
    let node = start.cluster.nodes[0].netns();
    assert!(node.run(|| uninstall.arg(root).output().unwrap()).unwrap().status.success());
    start.cluster.add(0, "late");
    let (late, tally) = (start.cluster.pod("late"), start.tally.clone());
    let traffic = begin(late, &start.senders, &start.tally);
    eventually(PATIENCE, || tally.get().iter().all(|count| *count > 0), || format!("{tally:?}"));
    traffic.end();
    assert!(
        start
            .cluster
            .pod("late")
            .probe(
                netpold_testbed::ProbeProtocol::Tcp,
                start.cluster.pod("witness").ip4().unwrap(),
                PORT,
                PATIENCE
            )
            .connected()
    );
}
