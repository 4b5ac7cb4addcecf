//! `netpold doctor` of a live cluster: its objects, and a node as reported by its agent.

use std::collections::BTreeMap;
use std::process::Command;

use netpold_doctor::DoctorReport;
use netpold_testbed::{Container, Kubelet};
use serde_json::{Value, json};

use crate::apiserver::world::{World, allow_from, binary};

/// Returns a pod or DaemonSet of the agents' namespace, with one container.
fn agents(kind: &str, name: &str) -> Value {
    let labels = json!({ "app.kubernetes.io/name": name });
    let spec = json!({
        "nodeName": "n1", "hostNetwork": true, "containers": [{ "name": name, "image": "kindnetd:v1" }],
    });
    let metadata = json!({ "namespace": "netpold-system", "name": name, "labels": labels });
    if kind == "Pod" {
        let running = json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } });
        let container = json!({
            "name": name, "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": running,
        });
        let status = json!({ "phase": "Running", "containerStatuses": [container] });
        return json!({
            "apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec, "status": status,
        });
    }
    let mut spec = spec;
    spec.as_object_mut().unwrap().remove("nodeName");
    json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": metadata,
        "spec": {
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": spec },
        },
    })
}

#[test]
fn a_live_cluster_is_examined() {
    let Some(mut world) = World::new("a_live_cluster_is_examined") else { return };
    ["server", "client"].into_iter().for_each(|name| world.add(name));
    world.policy("server", allow_from("server", "somebody"));
    world.start_agent();
    world
        .wait("isolating the server", |status| crate::apiserver::world::isolated(status, "server"));
    world.create(agents("Pod", "netpold"));
    world.server.apply(&agents("DaemonSet", "kindnet").to_string()).unwrap();
    let mut second = world.control.manifest();
    second["metadata"]["name"] = json!("n2");
    world.create(second);
    // Leaves a chain of another enforcer (kube-router) on the node.
    let chain = ["-N", "KUBE-POD-FW-ABCDEF"];
    assert!(world.node.command("iptables-nft").unwrap().args(chain).status().unwrap().success());
    let kubelet = Kubelet::start(&world.node).unwrap();
    let twin = |path: std::path::PathBuf| path.display().to_string();
    let (socket, bpffs) = (twin(world.agent().socket()), twin(world.agent().bpffs()));
    let container = Container {
        programs: BTreeMap::from([("/netpold".to_owned(), binary().into())]),
        environment: BTreeMap::from([
            ("NETPOLD_SOCKET".to_owned(), socket),
            ("NETPOLD_BPFFS".to_owned(), bpffs),
        ]),
        ..Container::default()
    };
    kubelet.runs("netpold-system/netpold/netpold", container);

    let mut command = Command::new(binary());
    command.args(["doctor", "-o", "json"]).env_clear();
    command.env("NETPOLD_KUBECONFIG", world.server.admin());
    let output = world.server.inside(|| command.output()).unwrap().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    let report: DoctorReport = serde_json::from_slice(&output.stdout).unwrap();
    let places = |check: &str| -> Vec<&str> {
        let found = report.findings.iter().filter(|finding| finding.check == check);
        found.flat_map(|finding| finding.places.iter().map(String::as_str)).collect()
    };
    let peer =
        "NetworkPolicy shop/server: spec.ingress[0].from[0]: pods app=somebody of this namespace";
    assert_eq!(places("peer-without-pods"), [peer], "{report:?}");
    let set = "DaemonSet netpold-system/kindnet (image kindnetd:v1)";
    assert_eq!(places("other-enforcer-deployed"), [set], "{report:?}");
    assert_eq!(places("no-agent"), ["Node n2"], "{report:?}");
    let chain = "n1: chain KUBE-POD-FW-ABCDEF of nftables table ip filter";
    assert_eq!(places("other-enforcer"), [chain], "{report:?}");
    // The agent answers, and its pins exist at the reported path.
    for check in ["agent", "bpffs", "kernel", "pod-without-program"] {
        assert_eq!(places(check), Vec::<&str>::new(), "{report:?}");
    }
    // An API server before 1.21 serves CronJobs only in batch/v1beta1.
    let old = "cannot list /apis/batch/v1/cronjobs: ";
    let unknown = report.unknown.iter().filter(|line| !line.contains(old));
    let [unknown] = &unknown.collect::<Vec<_>>()[..] else { panic!("{report:?}") };
    assert!(unknown.starts_with("node n2: no agent:"), "{unknown}");
}
