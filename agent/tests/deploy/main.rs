//! What is in `deploy/` works as it is written there.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod container;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use netpold::cli::{Cli, Command};
use netpold_testbed::{
    Agent, AgentOptions, Cni, Manifests, Node, Pod, PodSpec, ProbeResult, Protocol, namespace,
    require_root, skip,
};
use serde_json::Value;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(30);
const PROBE: Duration = Duration::from_millis(500);
const INTERVAL: Duration = Duration::from_millis(50);

/// A node with a client and a server.
struct Shop {
    node: Node,
    client: Pod,
    server: Pod,
    manifests: Manifests,
    directory: TempDir,
}

impl Shop {
    fn new(node: Node) -> Self {
        let [client, server] =
            ["client", "server"].map(|name| node.add_pod(&PodSpec::new("shop", name)).unwrap());
        server.serve(Protocol::Tcp, 80).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let manifests = Manifests::new(directory.path().join("manifests")).unwrap();
        manifests.write_cluster(&[namespace("shop", &[])], [&node], [&client, &server]).unwrap();
        Self { node, client, server, manifests, directory }
    }

    fn probe(&self) -> ProbeResult {
        self.client.probe(Protocol::Tcp, self.server.ip4().unwrap(), 80, PROBE)
    }
}

/// Isolates all pods of the namespace.
const DENY: &str = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
                    metadata: {name: deny, namespace: shop}\nspec: {podSelector: {}}\n";

/// Whether both pods are isolated.
fn isolates(status: &Value) -> bool {
    status["endpoints"]
        .as_array()
        .is_some_and(|all| all.len() == 2 && all.iter().all(|e| e["isolated"][0] == "ingress"))
}

/// The values of a key of the systemd unit.
fn unit(key: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/standalone/netpold.service");
    let text = std::fs::read_to_string(path).unwrap();
    let prefix = format!("{key}=");
    text.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap().to_owned()
}

#[test]
fn the_unit_starts_netpold_with_flags_it_has() {
    let line = unit("ExecStart");
    let arguments = line.split_whitespace().chain(["--node-name", "n1"]);
    let Command::Run(run) = Cli::try_parse_from(arguments).unwrap().command else {
        panic!("not `netpold run`: {line}");
    };
    assert_eq!(run.bpffs, Path::new("/sys/fs/bpf/netpold"));
    assert_eq!(
        run.socket.parent(),
        Some(Path::new("/run").join(unit("RuntimeDirectory")).as_path())
    );
}

/// A `netpold` that has the unit's capabilities and no others, on a bpffs that is mounted already.
fn with_the_units_capabilities(directory: &Path) -> PathBuf {
    let set: Vec<String> = unit("CapabilityBoundingSet")
        .split_whitespace()
        .map(|name| format!("+{}", name.trim_start_matches("CAP_").to_lowercase()))
        .collect();
    let script = format!(
        "#!/bin/sh\n\
         [ \"$1\" = run ] || exec {netpold} \"$@\"\n\
         previous=\n\
         for argument; do [ \"$previous\" = --bpffs ] && mount -t bpf bpf \"$argument\"; previous=$argument; done\n\
         exec setpriv --bounding-set=-all,{set} --inh-caps=-all --no-new-privs {netpold} \"$@\"\n",
        netpold = env!("CARGO_BIN_EXE_netpold"),
        set = set.join(","),
    );
    let path = directory.join("netpold");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn the_units_capabilities_are_enough() {
    if !require_root("the_units_capabilities_are_enough") {
        return;
    }
    let shop = Shop::new(Node::new("caps", Cni::Ptp, "10.111.7.0/24", "fd00:111:7::/64").unwrap());
    let binary = with_the_units_capabilities(shop.directory.path());
    let manifests = shop.manifests.directory().to_owned();
    let options = AgentOptions { binary, manifests, arguments: Vec::new() };
    let mut agent = Agent::start(&shop.node, options).unwrap();
    agent.wait_enforced(TIMEOUT).unwrap();
    assert!(shop.probe().connected(), "no policy yet");
    shop.manifests.write("deny.yaml", DENY).unwrap();
    agent.wait_for("isolating the pods", TIMEOUT, isolates).unwrap();
    assert!(shop.probe().dropped(), "denied by policy");
}

/// Whether there is runc; else the test is skipped.
fn require_runc(test: &str) -> bool {
    let there = std::process::Command::new("runc").arg("--version").output().is_ok();
    if !there {
        skip(test, "needs runc (`cargo xtask setup`)");
    }
    there
}

/// Waits until the kubelet's readiness probe would succeed.
#[track_caller]
fn wait_ready(node: &Node) {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, 9417))?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: netpold\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let answer = node.run(ask).unwrap().unwrap();
        if answer.starts_with("HTTP/1.1 200 ") {
            return;
        }
        assert!(Instant::now() < deadline, "{answer}");
        std::thread::sleep(INTERVAL);
    }
}

/// Its capabilities, its read-only root, its mounts, a masked /proc and nothing else: the agent
/// enforces, and what it enforced outlives the container.
#[test]
fn the_daemon_sets_container_enforces() {
    const TEST: &str = "the_daemon_sets_container_enforces";
    if !require_root(TEST) || !require_runc(TEST) {
        return;
    }
    let shop =
        Shop::new(Node::new("runc", Cni::Bridge, "10.111.8.0/24", "fd00:111:8::/64").unwrap());
    let host = container::Host::new(&shop.node);
    let mut agent = host.start(&shop.manifests);
    agent.wait_for("enforcing", |_| true);
    wait_ready(&shop.node);
    assert!(shop.probe().connected(), "no policy yet");
    shop.manifests.write("deny.yaml", DENY).unwrap();
    agent.wait_for("isolating the pods", isolates);
    assert!(shop.probe().dropped(), "denied by policy");
    agent.kill();
    assert!(shop.probe().dropped(), "denied by what is pinned");

    let mut agent = host.start(&shop.manifests);
    agent.wait_for("isolating the pods", isolates);
    assert!(shop.probe().dropped(), "denied by policy");
    shop.manifests.remove("deny.yaml").unwrap();
    agent.wait_for("letting go", |status| !isolates(status));
    assert!(shop.probe().connected(), "no policy any more");
}
