//! The testbed's agents as processes, with a shell script in place of netpold, and a thread that answers for it.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests, which clippy cannot know")]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netpold_testbed::{
    Agent, AgentOptions, Cni, Manifests, PodSpec, TestNode, namespace, require_root,
};
use nix::sys::signal::Signal;
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(5);
const SCRIPT: &str = r"#!/bin/sh
case $1 in
  run) readlink /proc/self/ns/net; exec sleep 60;;
esac
";
const STATUS: &str = r#"{"in_sync":true,"revision":{"desired":3,"enforced":3},"endpoints":[]}"#;

fn script(directory: &Path) -> PathBuf {
    let path = directory.join("netpold");
    fs::write(&path, SCRIPT).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Answers requests at the agent's control socket with [`STATUS`].
fn answer_for(agent: &Agent) {
    let listener = UnixListener::bind(agent.socket()).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let read = stream.read(&mut [0; 4096]).unwrap();
            assert!(read > 0);
            write!(stream, "HTTP/1.0 200 OK\r\n\r\n{STATUS}").unwrap();
        }
    });
}

#[test]
fn an_agent_runs_in_its_nodes_namespace_and_leaves_nothing() {
    require_root!();
    let directory = tempfile::tempdir().unwrap();
    let options = AgentOptions {
        binary: script(directory.path()),
        manifests: directory.path().into(),
        arguments: Vec::new(),
    };
    let node = TestNode::new("node", Cni::Ptp, "10.1.1.0/24", "fd00:1:1::/64").unwrap();
    let inside = node.run(|| fs::read_link("/proc/thread-self/ns/net")).unwrap().unwrap();
    let mut agent = Agent::start(&node, options).unwrap();
    answer_for(&agent);
    let status = agent.wait_enforced(TIMEOUT).unwrap();
    assert_eq!(status["revision"]["enforced"], 3);
    agent.end(Signal::SIGKILL);
    let failed = agent.wait_enforced(TIMEOUT).unwrap_err();
    assert!(failed.to_string().contains("ended"), "{failed}");
    agent.restart(&node).unwrap();
    agent.wait_enforced(TIMEOUT).unwrap();
    wait_for_lines(&agent, 2);
    assert!(agent.log().lines().all(|line| Path::new(line) == inside), "{}", agent.log());
    let (process, bpffs) = (format!("/proc/{}", agent.pid()), agent.bpffs());
    assert!(Path::new(&process).exists() && bpffs.exists());
    drop(agent);
    assert!(!Path::new(&process).exists() && !bpffs.exists());
}

/// Waits until the log has `count` lines; the script may answer `status` before `run` has written a line.
fn wait_for_lines(agent: &Agent, count: usize) {
    for _ in 0..100 {
        if agent.log().lines().count() >= count {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn manifests_describe_the_cluster() {
    require_root!();
    let directory = tempfile::tempdir().unwrap();
    let manifests = Manifests::new(directory.path()).unwrap();
    let node = TestNode::new("node", Cni::Bridge, "10.1.1.0/24", "fd00:1:1::/64").unwrap();
    let spec = PodSpec::new("shop", "web").label("app", "web");
    let pod = node.add_pod(&spec.port("http", netpold_testbed::ProbeProtocol::Tcp, 8080)).unwrap();
    manifests.write_cluster(&[namespace("shop", &[("team", "a")])], [&node], [&pod]).unwrap();
    let files: Vec<_> = fs::read_dir(directory.path()).unwrap().flatten().collect();
    assert_eq!(files.len(), 1, "no temporary file is left");
    let text = fs::read_to_string(directory.path().join("cluster.json")).unwrap();
    let list: Value = serde_json::from_str(&text).unwrap();
    let [namespace, node_object, pod_object] = &list["items"].as_array().unwrap()[..] else {
        panic!("{list}");
    };
    assert_eq!(namespace["metadata"]["labels"]["team"], "a");
    assert_eq!(node_object["status"]["addresses"][0]["address"], node.addresses()[0].to_string());
    assert_eq!(pod_object["spec"]["nodeName"], "node");
    assert_eq!(pod_object["spec"]["containers"][0]["ports"][0]["containerPort"], 8080);
    assert_eq!(pod_object["status"]["podIPs"][1]["ip"], pod.ip6().unwrap().to_string());
}
