//! Floods beside ten thousand established connections: none of these breaks, and the agent goes on
//! as if nothing were.

mod echo;
mod sender;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{Cluster, PATIENCE};
use netpold_testbed::{Cni, KillOnDrop, Pod, processor_time, require_root};
use serde_json::{Value, json};

use sender::{Kind, Sender};

const FLOWS: usize = 10_000;
/// Where the flows go; allowed from everywhere, as is the port that is flooded.
const SERVICE: u16 = 8000;
const ALLOWED: u16 = 80;
const DENIED: u16 = 9999;
/// A flood comes in so many parts, and a part of the flows talks after each.
const PARTS: usize = 10;

/// Established connections to a server that answers each byte with the same.
struct Flows {
    streams: Vec<TcpStream>,
    _server: KillOnDrop,
}

impl Flows {
    fn open(client: &Pod, server: &Pod) -> Self {
        let to = SocketAddr::new(server.ip4().unwrap(), SERVICE);
        // A process of its own: both ends are more descriptors than one may have.
        let child = server
            .command(std::env::current_exe().unwrap())
            .unwrap()
            .args(["--exact", "flood::echo::serve", "--ignored"])
            .env(echo::ADDRESS, to.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut flows = Self { streams: Vec::new(), _server: KillOnDrop(child) };
        flows.streams = client.run(|| (0..FLOWS).map(|_| connect(to)).collect()).unwrap();
        for part in 0..PARTS {
            flows.talk(part);
        }
        flows
    }

    /// A part of the flows say something and hear the answer.
    fn talk(&self, part: usize) {
        for (number, mut stream) in self.streams.iter().enumerate().skip(part).step_by(PARTS) {
            let mut heard = [0];
            let talked = stream.write_all(b"x").and_then(|()| stream.read_exact(&mut heard));
            assert!(talked.is_ok(), "flow {number} is broken: {talked:?}");
        }
    }
}

fn connect(to: SocketAddr) -> TcpStream {
    let deadline = Instant::now() + PATIENCE;
    let stream = loop {
        match TcpStream::connect_timeout(&to, PATIENCE) {
            Ok(stream) => break stream,
            // The server has only just been started.
            Err(error) => assert!(Instant::now() < deadline, "{to}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// What a flood did to the agent.
struct Cost {
    wall: Duration,
    cpu: Duration,
    log: usize,
}

/// Dropped in this order: the watcher ends before the agent.
struct Stage {
    _watcher: Watcher,
    cluster: Cluster,
    flows: Flows,
    sender: Sender,
}

/// Somebody follows all that happens.
struct Watcher(Child);

impl Watcher {
    fn new(cluster: &Cluster) -> Self {
        let mut command = cluster.agents[0].command(&["observe", "--follow", "--new-flows"]);
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let still = self.0.try_wait().unwrap();
        let _ = self.0.kill();
        let _ = self.0.wait();
        assert!(still.is_none() || std::thread::panicking(), "the watcher was ended: {still:?}");
    }
}

impl Stage {
    fn new() -> Self {
        let mut cluster = Cluster::one(Cni::Ptp).with_pods(&["server", "client", "flooder"]);
        // What comes from beyond the node is not checked: the flooder stands for that.
        cluster.arguments = ["--check-source", "isolated"].map(str::to_owned).to_vec();
        let from = json!([{ "ipBlock": { "cidr": "0.0.0.0/0" } }]);
        let tcp = |port: u16| json!({ "protocol": "TCP", "port": port });
        let udp = json!({ "protocol": "UDP", "port": ALLOWED });
        // What the server answers depends on conntrack alone.
        let policy = json!({
            "podSelector": { "matchLabels": { "app": "server" } },
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{ "from": from, "ports": [tcp(SERVICE), tcp(ALLOWED), udp] }],
        });
        cluster.policy("server", policy).enforce();
        // Answers to forged sources end here.
        cluster.nodes[0].netns().ip("route add blackhole default\n").unwrap();
        let server = cluster.pod("server");
        let IpAddr::V4(to) = server.ip4().unwrap() else { panic!("no IPv4 address") };
        let watcher = Watcher::new(&cluster);
        let flows = Flows::open(cluster.pod("client"), server);
        let sender = Sender::new(cluster.pod("flooder"), to);
        Self { _watcher: watcher, cluster, flows, sender }
    }

    /// So many packets of a kind, and the flows talk meanwhile.
    fn flood(&mut self, kind: Kind, count: usize) -> Cost {
        let (start, cpu, log) = (Instant::now(), self.agent_cpu(), self.agent_log());
        for part in 0..PARTS {
            self.sender.send(kind, count / PARTS);
            self.flows.talk(part);
        }
        let (cpu, log) = (self.agent_cpu().saturating_sub(cpu), self.agent_log() - log);
        let cost = Cost { wall: start.elapsed(), cpu, log };
        println!(
            "{kind:?}: {count} packets in {:.1?}, {:.0} a second; agent {:.2?} of CPU, {} bytes of log; \
             conntrack {}",
            cost.wall,
            count as f64 / cost.wall.as_secs_f64(),
            cost.cpu,
            cost.log,
            self.status()["conntrack"][0],
        );
        // An agent that looked at each packet would take longer than the flood, and log each.
        assert!(cost.cpu < cost.wall / 2, "the agent took {:?} of {:?}", cost.cpu, cost.wall);
        // Of drops that all differ 128 are named in ten seconds.
        let lines = 13 * cost.wall.as_secs() as usize;
        assert!(cost.log < 100_000 + 300 * lines, "{} bytes of log", cost.log);
        cost
    }

    fn agent_cpu(&self) -> Duration {
        processor_time(self.cluster.agents[0].pid()).unwrap()
    }

    fn agent_log(&self) -> usize {
        self.cluster.agents[0].log().len()
    }

    fn status(&self) -> Value {
        self.cluster.agents[0].status().unwrap()
    }

    fn dropped(&self, reason: &str) -> u64 {
        let status = self.status();
        let drops = status["drops"].as_array().unwrap().iter();
        drops.filter(|d| d["reason"] == reason).filter_map(|d| d["packets"].as_u64()).sum()
    }

    /// A new connection gets through, whatever lies in the table.
    fn new_connections(&self) {
        let to = SocketAddr::new(self.cluster.pod("server").ip4().unwrap(), ALLOWED);
        for _ in 0..20 {
            let flow =
                self.cluster.pod("client").open_flow(netpold_testbed::Protocol::Tcp, to, PATIENCE);
            let talks = flow.is_ok_and(|mut flow| flow.ping(PATIENCE));
            assert!(talks, "a new connection beside the flood; drops: {}", self.status()["drops"]);
        }
    }
}

fn floods(packets: usize) {
    let mut stage = Stage::new();
    stage.flood(Kind::Syn(ALLOWED), packets);
    stage.new_connections();
    let before = stage.dropped("policy");
    let denied = packets / 4;
    stage.flood(Kind::Syn(DENIED), denied);
    let dropped = stage.dropped("policy") - before;
    // The node itself may have lost some in its queues.
    assert!(dropped > denied as u64 / 2, "{dropped} of {denied} counted as dropped");
    stage.flood(Kind::Udp(ALLOWED), packets / 4);
    stage.flood(Kind::FirstFragment(ALLOWED), packets / 8);
    let before = stage.dropped("fragment_without_first");
    stage.flood(Kind::LaterFragment, packets / 8);
    assert!(stage.dropped("fragment_without_first") - before > packets as u64 / 16);
    let before = stage.dropped("policy");
    stage.flood(Kind::Unknown, packets / 8);
    assert!(stage.dropped("policy") - before > packets as u64 / 16);
    stage.new_connections();
    for part in 0..PARTS {
        stage.flows.talk(part);
    }
}

/// More half-open flows than conntrack holds.
#[test]
fn established_flows_outlive_floods() {
    require_root!();
    floods(600_000);
}

fn twenty_million(port: u16) {
    let mut stage = Stage::new();
    stage.flood(Kind::Syn(port), 20_000_000);
    stage.new_connections();
    for part in 0..PARTS {
        stage.flows.talk(part);
    }
}

#[test]
#[ignore = "takes minutes; the figures in agent/THREATS.md are from here"]
fn established_flows_outlive_twenty_million_denied_syns() {
    require_root!();
    twenty_million(DENIED);
}

/// `cargo test -p netpold --test traffic twenty_million -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes; the figures in agent/THREATS.md are from here"]
fn established_flows_outlive_twenty_million_syns() {
    require_root!();
    twenty_million(ALLOWED);
}
