//! Floods alongside ten thousand established connections: no connection breaks, and the agent's work is unaffected.

mod echo;
mod sender;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use netpold_testbed::cluster::{PATIENCE, TestCluster};
use netpold_testbed::{Cni, KillOnDrop, TestPod, processor_time, require_root};
use serde_json::{Value, json};

use sender::{Kind, Sender};

const FLOWS: usize = 10_000;
/// Destination port of the flows; allowed from everywhere, as is the flooded port.
const SERVICE: u16 = 8000;
const ALLOWED: u16 = 80;
const DENIED: u16 = 9999;
/// Number of parts of a flood; a part of the flows exchanges data after each.
const PARTS: usize = 10;

/// Established connections to a server that echoes each byte.
struct Flows {
    streams: Vec<TcpStream>,
    _server: KillOnDrop,
}

impl Flows {
    fn open(client: &TestPod, server: &TestPod) -> Self {
        let to = SocketAddr::new(server.ip4().unwrap(), SERVICE);
        // A separate process: the descriptors of both ends exceed the limit of one process.
        let child = server
            .command(std::env::current_exe().unwrap())
            .unwrap()
            .args(["--exact", "traffic::flood::echo::serve", "--ignored"])
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

    /// Exchanges a byte over a part of the flows.
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
            // The server may not listen yet.
            Err(error) => assert!(Instant::now() < deadline, "{to}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Cost of a flood for the agent.
struct Cost {
    wall: Duration,
    cpu: Duration,
    log: usize,
}

/// Cluster under a flood. The order of the fields is the order of their drop: the watcher ends before the agent.
struct Stage {
    _watcher: Watcher,
    cluster: TestCluster,
    flows: Flows,
    sender: Sender,
}

/// Process that follows all events.
struct Watcher(Child);

impl Watcher {
    fn new(cluster: &TestCluster) -> Self {
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
        let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&["server", "client", "flooder"]);
        // The source check does not apply to packets from outside the node, which the flooder imitates.
        cluster.arguments = ["--check-source", "isolated"].map(str::to_owned).to_vec();
        let from = json!([{ "ipBlock": { "cidr": "0.0.0.0/0" } }]);
        let tcp = |port: u16| json!({ "protocol": "TCP", "port": port });
        let udp = json!({ "protocol": "UDP", "port": ALLOWED });
        // Egress isolation makes the server's answers depend on conntrack only.
        let policy = json!({
            "podSelector": { "matchLabels": { "app": "server" } },
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{ "from": from, "ports": [tcp(SERVICE), tcp(ALLOWED), udp] }],
        });
        cluster.policy("server", policy).enforce();
        // Drops answers to forged sources.
        cluster.nodes[0].netns().ip("route add blackhole default\n").unwrap();
        let server = cluster.pod("server");
        let IpAddr::V4(to) = server.ip4().unwrap() else { panic!("no IPv4 address") };
        let watcher = Watcher::new(&cluster);
        let flows = Flows::open(cluster.pod("client"), server);
        let sender = Sender::new(cluster.pod("flooder"), to);
        Self { _watcher: watcher, cluster, flows, sender }
    }

    /// Sends `count` packets of a kind while the flows exchange data.
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
        // An agent that handled each packet would take longer than the flood, and log each packet.
        assert!(cost.cpu < cost.wall / 2, "the agent took {:?} of {:?}", cost.cpu, cost.wall);
        // The agent logs at most 128 different drops in ten seconds.
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

    /// Checks that new connections open, with any content of the table.
    fn new_connections(&self) {
        let to = SocketAddr::new(self.cluster.pod("server").ip4().unwrap(), ALLOWED);
        for _ in 0..20 {
            let flow = self.cluster.pod("client").open_flow(
                netpold_testbed::ProbeProtocol::Tcp,
                to,
                PATIENCE,
            );
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
    // The queues of the node may have lost some packets.
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

/// Sends more half-open flows than conntrack holds.
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

/// Run with `cargo test -p netpold --test node twenty_million -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes; the figures in agent/THREATS.md are from here"]
fn established_flows_outlive_twenty_million_syns() {
    require_root!();
    twenty_million(ALLOWED);
}
