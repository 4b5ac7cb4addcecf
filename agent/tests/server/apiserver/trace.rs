//! `kubectl netpold trace`: the agent of the pod's node is queried, and a lost connection ends the trace.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use netpold_testbed::Kubelet;
use netpold_testbed::cluster::eventually;
use serde_json::Value;

use crate::apiserver::live::no_command_runs;
use crate::apiserver::world::{PATIENCE, World, binary};

fn start(world: &World, arguments: &[&str]) -> Child {
    let mut command = Command::new(binary());
    command.args(["trace", "-o", "json"]).args(arguments).env_clear();
    command.env("NETPOLD_KUBECONFIG", world.server.admin());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    world.server.inside(|| command.spawn()).unwrap().unwrap()
}

/// Returns the next line of the given type.
fn next(lines: &mut impl Iterator<Item = String>, kind: &str) -> Option<Value> {
    lines.map(|line| serde_json::from_str::<Value>(&line).unwrap()).find(|it| it["type"] == kind)
}

pub(crate) fn a_pod_is_traced_on_its_node(world: &World, kubelet: &Kubelet) {
    let mut trace = start(world, &["--pod=server", "--for=5m", "--from=client", "-n=shop"]);
    let mut lines = BufReader::new(trace.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert_eq!(next(&mut lines, "started").unwrap()["node"], "n1");
    assert!(world.reaches("client", "server"));
    let packet = next(&mut lines, "packet").unwrap();
    assert_eq!((&packet["node"], &packet["peer"]["name"]), (&"n1".into(), &"client".into()));
    assert!(packet["steps"].as_array().unwrap().len() > 1, "{packet}");
    // The process in the agent's pod gets no signal.
    trace.kill().unwrap();
    trace.wait().unwrap();
    no_command_runs(kubelet);
    let ended = || {
        let output = start(world, &["--pod=shop/server", "--for=1s"]).wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() || said.contains("another trace"), "{said}");
        output.status.success()
    };
    eventually(PATIENCE, ended, || "the trace of a killed client goes on".to_owned());
    let output = start(world, &["--pod=shop/nobody"]).wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        (output.status.code(), said.as_str()),
        (Some(1), "netpold: pod shop/nobody not found\n")
    );
}
