//! Files of `deploy/`, run as they are shipped.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod container;

use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Parser;
use netpold::cli::{Cli, Command as Subcommand};
use netpold_testbed::cluster::eventually;
use netpold_testbed::{
    Agent, AgentOptions, Cni, KillOnDrop, Manifests, PodSpec, ProbeProtocol, ProbeResult, TestNode,
    TestPod, namespace, require_root, skip, without_twins,
};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(30);
const PROBE: Duration = Duration::from_millis(500);
const INTERVAL: Duration = Duration::from_millis(50);

/// Node with a client and a server.
struct Shop {
    node: TestNode,
    client: TestPod,
    server: TestPod,
    manifests: Manifests,
    directory: TempDir,
}

impl Shop {
    fn new(node: TestNode) -> Self {
        let [client, server] =
            ["client", "server"].map(|name| node.add_pod(&PodSpec::new("shop", name)).unwrap());
        server.serve(ProbeProtocol::Tcp, 80).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let manifests = Manifests::new(directory.path().join("manifests")).unwrap();
        manifests.write_cluster(&[namespace("shop", &[])], [&node], [&client, &server]).unwrap();
        Self { node, client, server, manifests, directory }
    }

    fn probe(&self) -> ProbeResult {
        self.client.probe(ProbeProtocol::Tcp, self.server.ip4().unwrap(), 80, PROBE)
    }
}

/// Policy that isolates all pods of the namespace.
const DENY: &str = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
                    metadata: {name: deny, namespace: shop}\nspec: {podSelector: {}}\n";

/// Returns whether both pods are isolated.
fn isolates(status: &Value) -> bool {
    status["endpoints"]
        .as_array()
        .is_some_and(|all| all.len() == 2 && all.iter().all(|e| e["isolated"][0] == "ingress"))
}

/// Returns the value of a key of the systemd unit.
fn unit(key: &str) -> String {
    value("netpold.service", key)
}

#[test]
fn the_standbys_unit_watches_the_same_pin_root() {
    let line = value("netpold-standby.service", "ExecStart");
    let Subcommand::Standby(standby) =
        Cli::try_parse_from(line.split_whitespace()).unwrap().command
    else {
        panic!("not `netpold standby`: {line}");
    };
    assert!(unit("ExecStart").contains(&format!("--bpffs {}", standby.bpffs.display())));
}

/// At a shutdown, no agent follows for which the standby could wait; at a restart of the unit, an agent follows.
#[test]
fn the_standbys_unit_ends_it_at_a_shutdown() {
    let line = value("netpold-standby.service", "ExecStop").replace("$$", "$");
    let script = line.strip_prefix("-/bin/sh -c '").and_then(|it| it.strip_suffix('\'')).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let systemctl = directory.path().join("systemctl");
    let ends = |state: &str| {
        std::fs::write(&systemctl, format!("#!/bin/sh\necho {state}\n")).unwrap();
        std::fs::set_permissions(&systemctl, Permissions::from_mode(0o755)).unwrap();
        let mut child = KillOnDrop(Command::new("sleep").arg("60").spawn().unwrap());
        let path = format!("{}:/usr/bin:/bin", directory.path().display());
        let mut stop = Command::new("/bin/sh");
        stop.args(["-c", script]).env("PATH", path).env("MAINPID", child.0.id().to_string());
        assert!(stop.status().unwrap().success());
        std::thread::sleep(Duration::from_millis(200));
        child.0.try_wait().unwrap().and_then(|status| status.signal())
    };
    assert_eq!(ends("stopping"), Some(2), "SIGINT");
    assert_eq!(ends("running"), None);
    assert_eq!(ends("degraded"), None);
}

/// Unit that keeps policy enforced on the node from the boot on.
const BOOT: &str = "netpold-boot.service";

/// Returns the value of a key of a systemd unit.
fn value(unit: &str, key: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/standalone").join(unit);
    let text = std::fs::read_to_string(path).unwrap();
    let prefix = format!("{key}=");
    text.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap().to_owned()
}

#[test]
fn the_unit_starts_netpold_with_flags_it_has() {
    let line = unit("ExecStart");
    let arguments = line.split_whitespace().chain(["--node-name", "n1"]);
    let Subcommand::Run(run) = Cli::try_parse_from(arguments).unwrap().command else {
        panic!("not `netpold run`: {line}");
    };
    assert_eq!(run.bpffs, Path::new("/sys/fs/bpf/netpold"));
    assert_eq!(
        run.socket.parent(),
        Some(Path::new("/run").join(unit("RuntimeDirectory")).as_path())
    );
}

/// Starts the boot unit's command with the pins and the state of this agent.
fn boot(shop: &Shop, agent: &Agent, notify: &Path) -> KillOnDrop {
    let directory = shop.directory.path();
    let place = |flag: &str| match flag {
        "--bpffs" => Some(agent.bpffs()),
        "--state" => Some(agent.state().join("last")),
        "--socket" => Some(directory.join("boot.sock")),
        "--manifests" => Some(directory.join("empty")),
        _ => None,
    };
    std::fs::create_dir(directory.join("empty")).unwrap();
    let line = value(BOOT, "ExecStart");
    let mut words = line.split_whitespace().skip(1);
    let mut command = shop.node.command(env!("CARGO_BIN_EXE_netpold")).unwrap();
    without_twins(&mut command);
    while let Some(word) = words.next() {
        command.arg(word);
        if let Some(path) = place(word) {
            words.next();
            command.arg(path);
        }
    }
    command.args(["--node-name", shop.node.name()]).env("NOTIFY_SOCKET", notify);
    KillOnDrop(command.spawn().unwrap())
}

#[test]
fn the_boot_unit_keeps_the_node_until_the_agent_is_there() {
    require_root!();
    let shop =
        Shop::new(TestNode::new("boot", Cni::Ptp, "10.111.9.0/24", "fd00:111:9::/64").unwrap());
    shop.manifests.write("deny.yaml", DENY).unwrap();
    let manifests = shop.manifests.directory().to_owned();
    let binary = env!("CARGO_BIN_EXE_netpold").into();
    let mut agent =
        Agent::start(&shop.node, AgentOptions { binary, manifests, arguments: Vec::new() })
            .unwrap();
    agent.wait_for("isolating the pods", TIMEOUT, isolates).unwrap();
    let kept = || agent.state().join("last").exists();
    eventually(TIMEOUT, kept, || "no state is kept".to_owned());
    // A reboot leaves the state file and no pin.
    agent.end(Signal::SIGKILL);
    let mut uninstall = Command::new(env!("CARGO_BIN_EXE_netpold"));
    let uninstall = without_twins(&mut uninstall).arg("uninstall").arg("--bpffs");
    assert!(uninstall.arg(agent.bpffs()).output().unwrap().status.success());
    assert!(shop.probe().connected(), "nothing is enforced");

    let path = shop.directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut boot = boot(&shop, &agent, &path);
    let mut word = [0; 64];
    let length = socket.recv(&mut word).unwrap();
    assert_eq!(&word[..length], b"READY=1");
    assert!(shop.probe().dropped(), "in force when the unit is ready");

    // The DaemonSet's agent starts and cannot read all objects yet: the boot unit continues.
    shop.manifests.write("broken.yaml", "kind: [").unwrap();
    agent.restart(&shop.node).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert!(boot.0.try_wait().unwrap().is_none(), "{}", agent.log());
    shop.manifests.remove("broken.yaml").unwrap();
    agent.wait_for("isolating the pods", TIMEOUT, isolates).unwrap();
    assert!(boot.0.wait().unwrap().success());
    assert!(shop.probe().dropped(), "denied by policy");
    shop.manifests.remove("deny.yaml").unwrap();
    agent.wait_for("letting go", TIMEOUT, |status| !isolates(status)).unwrap();
    assert!(shop.probe().connected(), "no policy any more");
}

#[test]
fn the_boot_unit_is_as_careful_as_the_other() {
    let line = value(BOOT, "ExecStart");
    let arguments = line.split_whitespace().chain(["--node-name", "n1"]);
    let Subcommand::Run(run) = Cli::try_parse_from(arguments).unwrap().command else {
        panic!("not `netpold run`: {line}");
    };
    assert!(run.give_way);
    let path = PathBuf::from("/run").join(value(BOOT, "RuntimeDirectory"));
    assert_eq!((run.socket.parent(), run.manifests.as_deref()), (Some(&*path), Some(&*path)));
    for key in [
        "Type",
        "Before",
        "CapabilityBoundingSet",
        "NoNewPrivileges",
        "ProtectSystem",
        "ReadWritePaths",
        "RestrictAddressFamilies",
        "MemoryDenyWriteExecute",
    ] {
        assert!(unit(key).contains(&value(BOOT, key)), "{key}");
    }
}

/// Writes a wrapper that runs `netpold` with the unit's capabilities only, on a bpffs that is already mounted.
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
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn the_units_capabilities_are_enough() {
    require_root!();
    let shop =
        Shop::new(TestNode::new("caps", Cni::Ptp, "10.111.7.0/24", "fd00:111:7::/64").unwrap());
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

/// Returns whether runc is installed; otherwise skips the test.
fn require_runc(test: &str) -> bool {
    let there = Command::new("runc").arg("--version").output().is_ok();
    if !there {
        skip(test, "needs runc (`cargo xtask setup`)");
    }
    there
}

/// Waits until the kubelet's readiness probe would succeed.
#[track_caller]
fn wait_ready(node: &TestNode) {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, 9417))?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: netpold\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    let answer = || node.run(ask).unwrap().unwrap();
    eventually(TIMEOUT, || answer().starts_with("HTTP/1.1 200 "), answer);
}

/// Runs with the DaemonSet's capabilities, read-only root, mounts and masked /proc only: the agent enforces, and
/// enforcement outlives the container.
#[test]
fn the_daemon_sets_container_enforces() {
    const TEST: &str = "the_daemon_sets_container_enforces";
    if !require_root(TEST) || !require_runc(TEST) {
        return;
    }
    let shop =
        Shop::new(TestNode::new("runc", Cni::Bridge, "10.111.8.0/24", "fd00:111:8::/64").unwrap());
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
