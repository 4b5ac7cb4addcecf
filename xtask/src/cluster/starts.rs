//! Pods that start under a policy that denies all of their traffic, in batches, during an action on netpold. Measured
//! are their outgoing and incoming packets from the first instant on.
//!
//! Pods `out` continuously send echo requests to the other node. Pods `in` are isolated for ingress only: the other
//! node sends datagrams to every possible pod address, and the kernel of a reached pod answers with an error. Pods
//! `open`, which no policy selects, prove that both directions are detected.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use netpold_testbed::interrupted;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::common::wait;
use super::images::BUSYBOX;
use super::kubectl::Kubectl;
use super::layout::ClusterLayout;
use super::network::NodeNetworks;
use super::state::{ClusterFolder, NODES};
use crate::step;

const NAMESPACE: &str = "netpold-starts";
/// Port that is closed in every pod.
const CLOSED: u16 = 9;
/// Number of possible pod addresses per node.
const ADDRESSES: u8 = 252;
/// Pods per kind and node in a batch, and their lifetime once they run.
const BATCH: usize = 2;
const STAY: Duration = Duration::from_secs(1);
/// Interval between two datagrams to an address.
const INTERVAL: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_mins(3);

/// Measured traffic of isolated pods.
#[derive(Default)]
pub(super) struct StartTraffic {
    /// Number of started pods.
    pub(super) pods: usize,
    /// Number of packets by sender, for isolated pods.
    pub(super) sent: BTreeMap<IpAddr, u64>,
    /// Isolated pods that received a datagram.
    pub(super) reached: BTreeSet<IpAddr>,
}

impl StartTraffic {
    /// Returns a summary in one line.
    pub(super) fn line(&self) -> String {
        format!(
            "{} isolated pods started: {} packets of {} of them got out, {} were reached",
            self.pods,
            self.sent.values().sum::<u64>(),
            self.sent.len(),
            self.reached.len()
        )
    }

    /// Checks that no isolated pod sent or received a packet.
    ///
    /// # Errors
    /// An isolated pod sent or received a packet.
    pub(super) fn require_nothing(&self) -> Result<()> {
        step::note(&self.line());
        ensure!(
            self.sent.is_empty() && self.reached.is_empty(),
            "policy was not in force: sent {:?}, reached {:?}",
            self.sent,
            self.reached
        );
        Ok(())
    }
}

/// Starts pods on both nodes while `action` runs. `action` begins once the first batch runs. At least two batches are
/// started.
///
/// # Errors
/// `action` fails, a pod does not start, or the traffic of a pod `open` is not detected.
pub(super) fn during(
    state: &ClusterFolder,
    kubectl: &Kubectl,
    action: impl FnOnce() -> Result<()> + Send,
) -> Result<StartTraffic> {
    begin(state, kubectl, &[0, 1], false, action)
}

/// Starts pods on the second node alone while `action` runs. The pods stay until the end.
///
/// # Errors
/// As [`during`].
pub(super) fn while_second_reboots(
    state: &ClusterFolder,
    kubectl: &Kubectl,
    action: impl FnOnce() -> Result<()> + Send,
) -> Result<StartTraffic> {
    begin(state, kubectl, &[1], true, action)
}

fn begin(
    state: &ClusterFolder,
    kubectl: &Kubectl,
    nodes: &[usize],
    stay: bool,
    action: impl FnOnce() -> Result<()> + Send,
) -> Result<StartTraffic> {
    let layout = ClusterLayout::of(state)?;
    let mut outcome = StartTraffic::default();
    kubectl.check_in(NAMESPACE, "starting pods", |kubectl| {
        let starts = StartMeasurement {
            state,
            kubectl,
            layout: &layout,
            nodes,
            stay,
            begun: AtomicBool::new(false),
            end: AtomicBool::new(false),
        };
        outcome = starts.run(action)?;
        Ok(())
    })?;
    Ok(outcome)
}

struct StartMeasurement<'a> {
    state: &'a ClusterFolder,
    kubectl: &'a Kubectl,
    layout: &'a ClusterLayout,
    /// Indexes in [`NODES`].
    nodes: &'a [usize],
    /// Whether pods stay until the end.
    stay: bool,
    /// Whether the first batch runs.
    begun: AtomicBool,
    end: AtomicBool,
}

/// Packets by sender, and reached pods, as seen by the opposite node.
type CountedPackets = (BTreeMap<IpAddr, u64>, BTreeSet<IpAddr>);

impl StartMeasurement<'_> {
    fn run(&self, action: impl FnOnce() -> Result<()> + Send) -> Result<StartTraffic> {
        self.kubectl.apply(&setting().to_string())?;
        let open: Vec<String> = self.nodes.iter().map(|node| format!("open-{node}")).collect();
        self.apply(self.nodes.iter().map(|node| self.pod(*node, "open", &format!("open-{node}"))))?;
        self.running(&open)?;
        let open = self.addresses("open")?;
        thread::scope(|scope| {
            let watchers: Vec<_> =
                self.nodes.iter().map(|node| scope.spawn(move || self.watch(*node))).collect();
            let happening = scope.spawn(|| {
                while ![&self.begun, &self.end].iter().any(|flag| flag.load(Ordering::Relaxed)) {
                    thread::sleep(Duration::from_millis(10));
                }
                let result = action();
                self.end.store(true, Ordering::Relaxed);
                result
            });
            let started = self.start_pods();
            self.end.store(true, Ordering::Relaxed);
            let (pods, mut isolated) = started?;
            joined(happening)?;
            // Pods that restarted during a boot have other addresses.
            isolated.extend(self.addresses("in, out")?);
            let mut outcome = StartTraffic { pods, ..StartTraffic::default() };
            for watcher in watchers {
                let (sent, reached) = joined(watcher)?;
                outcome.sent.extend(sent);
                outcome.reached.extend(reached);
            }
            for address in &open {
                let seen = outcome.sent.contains_key(address) && outcome.reached.contains(address);
                ensure!(
                    seen,
                    "pod {address}, which no policy selects, was not seen: nothing is shown"
                );
            }
            outcome.sent.retain(|address, _| isolated.contains(address));
            outcome.reached.retain(|address| isolated.contains(address));
            Ok(outcome)
        })
    }

    /// Starts batches of pods. Returns the number of pods, and their addresses.
    fn start_pods(&self) -> Result<(usize, BTreeSet<IpAddr>)> {
        let (mut batches, mut isolated) = (0, BTreeSet::new());
        while batches < 2 || !self.end.load(Ordering::Relaxed) {
            ensure!(!interrupted(), "interrupted");
            let mut names = Vec::new();
            let mut pods = Vec::new();
            for node in self.nodes {
                for (kind, number) in
                    ["out", "in"].into_iter().flat_map(|k| (0..BATCH).map(move |n| (k, n)))
                {
                    names.push(format!("{kind}-{node}-{batches}-{number}"));
                    pods.push(self.pod(*node, kind, &format!("{kind}-{node}-{batches}-{number}")));
                }
            }
            self.apply(pods)?;
            self.running(&names)?;
            isolated.extend(self.addresses("in, out")?);
            self.begun.store(true, Ordering::Relaxed);
            thread::sleep(STAY);
            if !self.stay {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let delete = ["delete", "pod", "-n", NAMESPACE, "--grace-period=0", "--force"];
                self.kubectl.run(&[&delete[..], &["--wait=false"], &names].concat())?;
            }
            batches += 1;
        }
        Ok((batches * self.nodes.len() * 2 * BATCH, isolated))
    }

    fn apply(&self, pods: impl IntoIterator<Item = Value>) -> Result<()> {
        let items: Vec<Value> = pods.into_iter().collect();
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string();
        // The API server is unreachable while the link to its node is down.
        wait("the API server", PATIENCE, || self.kubectl.apply(&list))
    }

    fn running(&self, names: &[String]) -> Result<()> {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let running = ["--for=jsonpath={.status.phase}=Running", "--timeout=5s"];
        let arguments = [&["wait", "pod", "-n", NAMESPACE], &names[..], &running].concat();
        wait("pods that run", PATIENCE, || self.kubectl.run(&arguments)).map(drop)
    }

    /// Returns a pod with a fixed node: the scheduler would respect taints.
    fn pod(&self, node: usize, kind: &str, name: &str) -> Value {
        // A single ping process would pause for a second between requests.
        let send = format!(
            "while :; do /busybox ping -q -c 1 -W 1 {} & /busybox usleep 50000; done",
            self.opposite(node)
        );
        let script = if kind == "in" { "exec /busybox sleep 3600" } else { &send };
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "namespace": NAMESPACE, "name": name, "labels": { "kind": kind } },
            "spec": {
                "nodeName": NODES[node],
                "terminationGracePeriodSeconds": 0,
                "tolerations": [{ "operator": "Exists" }],
                "containers": [{
                    "name": "busybox",
                    "image": BUSYBOX,
                    "imagePullPolicy": "Never",
                    "command": ["/busybox", "sh", "-c", script],
                }],
            },
        })
    }

    /// Returns the first address of the other node.
    fn opposite(&self, node: usize) -> IpAddr {
        NodeNetworks::of(1 - node).first(self.layout.family)
    }

    /// Returns the first addresses of the pods of some kinds.
    fn addresses(&self, kinds: &str) -> Result<BTreeSet<IpAddr>> {
        let selector = format!("kind in ({kinds})");
        let addresses = "jsonpath={.items[*].status.podIP}";
        let get = ["get", "pods", "-n", NAMESPACE, "-l", &selector, "-o", addresses];
        let told = wait("the API server", PATIENCE, || self.kubectl.run(&get))?;
        told.split_whitespace().map(|address| address.parse().context("an address")).collect()
    }

    /// Runs on the other node: counts the packets from a node's pods, and sends datagrams to every possible pod
    /// address.
    fn watch(&self, node: usize) -> Result<CountedPackets> {
        enter(self.state.init(NODES[1 - node])?)?;
        let sink = icmp(self.layout)?;
        let mut probes = BTreeMap::new();
        for address in NodeNetworks::of(node).pods(self.layout.family, ADDRESSES) {
            let probe = UdpSocket::bind((self.opposite(node), 0))?;
            probe.connect(SocketAddr::new(address, CLOSED))?;
            probe.set_nonblocking(true)?;
            probes.insert(address, probe);
        }
        let (mut sent, mut reached) = CountedPackets::default();
        let mut buffer = [0; 64];
        while !self.end.load(Ordering::Relaxed) {
            let round = Instant::now();
            for (address, probe) in &probes {
                // The next send on a socket returns the error about the previous datagram.
                if probe.send(b"?").is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
                {
                    reached.insert(*address);
                }
            }
            while round.elapsed() < INTERVAL {
                match sink.recv_from(&mut buffer) {
                    Ok((_, from)) if probes.contains_key(&from.ip()) => {
                        *sent.entry(from.ip()).or_default() += 1;
                    }
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        thread::sleep(Duration::from_millis(2));
                    }
                    Err(error) => bail!("packets of pods cannot be received: {error}"),
                }
            }
        }
        Ok((sent, reached))
    }
}

/// Opens a raw socket that receives all ICMP packets of the first family.
fn icmp(layout: &ClusterLayout) -> Result<UdpSocket> {
    let (family, protocol) = layout.family.first(
        (AddressFamily::Inet, SockProtocol::Icmp),
        (AddressFamily::Inet6, SockProtocol::IcmpV6),
    );
    let socket = socket(family, SockType::Raw, SockFlag::SOCK_NONBLOCK, protocol);
    Ok(socket.context("no raw socket")?.into())
}

/// Moves this thread into the network namespace of a node.
fn enter(init: Pid) -> Result<()> {
    let namespace = File::open(format!("/proc/{init}/ns/net")).context("no such node")?;
    setns(namespace, CloneFlags::CLONE_NEWNET).context("cannot enter the node's network")
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Returns the namespace and its policies.
fn setting() -> Value {
    let policy = |kind: &str, types: &[&str]| {
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": { "namespace": NAMESPACE, "name": kind },
            "spec": { "podSelector": { "matchLabels": { "kind": kind } }, "policyTypes": types },
        })
    };
    json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } },
        policy("out", &["Ingress", "Egress"]),
        policy("in", &["Ingress"]),
    ] })
}
