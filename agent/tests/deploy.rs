//! What is in `deploy/` works as it is written there.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use netpold::cli::{Cli, Command};
use netpold_testbed::{
    Agent, AgentOptions, Cni, Manifests, Node, PodSpec, Protocol, namespace, require_root,
};

const TIMEOUT: Duration = Duration::from_secs(30);
const PROBE: Duration = Duration::from_millis(500);

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
    let node = Node::new("caps", Cni::Ptp, "10.111.7.0/24", "fd00:111:7::/64").unwrap();
    let [client, server] =
        ["client", "server"].map(|name| node.add_pod(&PodSpec::new("shop", name)).unwrap());
    server.serve(Protocol::Tcp, 80).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let manifests = Manifests::new(directory.path().join("manifests")).unwrap();
    manifests.write_cluster(&[namespace("shop", &[])], [&node], [&client, &server]).unwrap();
    let binary = with_the_units_capabilities(directory.path());
    let options =
        AgentOptions { binary, manifests: manifests.directory().to_owned(), arguments: Vec::new() };
    let mut agent = Agent::start(&node, options).unwrap();
    agent.wait_enforced(TIMEOUT).unwrap();
    let probe = || client.probe(Protocol::Tcp, server.ip4().unwrap(), 80, PROBE);
    assert!(probe().connected(), "no policy yet");
    let deny = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
                metadata: {name: deny, namespace: shop}\nspec: {podSelector: {}}\n";
    manifests.write("deny.yaml", deny).unwrap();
    agent
        .wait_for("isolating the pods", TIMEOUT, |status| {
            status["endpoints"].as_array().is_some_and(|all| {
                all.len() == 2 && all.iter().all(|e| e["isolated"][0] == "ingress")
            })
        })
        .unwrap();
    assert!(probe().dropped(), "denied by policy");
}
