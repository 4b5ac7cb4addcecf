//! Condition of a Node whose agent is gone or stopped, with real agents and a real controller.

use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use netpold_api::crd::NODE_CONDITION;
use netpold_testbed::KillOnDrop;
use netpold_testbed::cluster::eventually_at;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::apiserver::in_force::{condition, eventually};
use crate::apiserver::world::{INTERVAL, World, binary};

/// Silence after which the controller acts.
const SILENT: Duration = Duration::from_mins(3);
/// Time after an agent's end before which the controller does not act: the last report is at most 60 s older.
const EARLIEST: Duration = Duration::from_secs(100);
/// Delay of the controller on a slow machine.
const DELAY: Duration = Duration::from_secs(20);

impl World {
    /// Returns a condition of a Node, or null.
    fn node_condition(&self, node: &str, kind: &str) -> Value {
        condition(&self.server.get("node", "", node).unwrap().unwrap_or_default(), kind)
    }

    #[track_caller]
    fn node_becomes(&self, node: &str, status: &str) -> Value {
        eventually(self, &format!("{node}: {status}"), || {
            self.node_condition(node, NODE_CONDITION)["status"] == status
        });
        self.node_condition(node, NODE_CONDITION)
    }

    fn renewed(&self, node: &str) -> Timestamp {
        let report = self.server.get("nodepolicystatus", "", node).unwrap().unwrap_or_default();
        report["status"]["renewTime"].as_str().unwrap().parse().unwrap()
    }
}

#[test]
fn a_nodes_condition_is_unknown_while_its_agent_is_silent() {
    const TEST: &str = "a_nodes_condition_is_unknown_while_its_agent_is_silent";
    let Some(mut world) = World::new(TEST) else { return };
    ["server", "stranger"].into_iter().for_each(|name| world.add(name));
    world.policy("server", crate::apiserver::world::allow_from("server", "friend"));
    world.start_agent();
    let other = world.add_node(2, "server");
    // Uses administrator rights; `agent/tests/server/controller` covers the controller's RBAC.
    let mut controller = world.node.command(binary()).unwrap();
    controller.args(["controller", "--identity", "one", "--webhook-listen", "127.0.0.1:8443"]);
    controller.arg("--kubeconfig").arg(world.server.admin());
    let _controller = KillOnDrop(controller.spawn().unwrap());
    for node in ["n1", "n2"] {
        world.node_becomes(node, "True");
        eventually(&world, "a report", || {
            world.server.get("nodepolicystatus", "", node).unwrap().is_some()
        });
    }

    // One agent is killed, the other one stops.
    let before = world.node_condition("n1", NODE_CONDITION);
    world.agent().end(Signal::SIGKILL);
    let second = Pid::from_raw(other.agent.pid().cast_signed());
    kill(second, Signal::SIGSTOP).unwrap();
    let ended = Instant::now();
    let is =
        |node: &str, status: &str| world.node_condition(node, NODE_CONDITION)["status"] == status;
    while ended.elapsed() < EARLIEST {
        assert!(is("n1", "True") && is("n2", "True"), "after {:?}", ended.elapsed());
        std::thread::sleep(Duration::from_secs(1));
    }
    let limit = (SILENT + DELAY).saturating_sub(ended.elapsed());
    let both = || is("n1", "Unknown") && is("n2", "Unknown");
    eventually_at(INTERVAL, limit, both, || "not Unknown".to_owned());
    println!("Unknown {:.1?} after the end of the agents", ended.elapsed());
    for node in ["n1", "n2"] {
        let silence = Timestamp::now().duration_since(world.renewed(node));
        assert!(silence.unsigned_abs() >= SILENT, "{node}: {silence:?}");
        let found = world.node_condition(node, NODE_CONDITION);
        assert_eq!(found["reason"], "AgentSilent", "{found}");
        let message = found["message"].as_str().unwrap();
        let since = format!("no renewed report from the agent since {}", world.renewed(node));
        assert!(message.starts_with(&since), "{message}");
        assert!(message.ends_with("the last enforced state stays in force"), "{message}");
    }
    let found = world.node_condition("n1", NODE_CONDITION);
    assert_eq!(found["lastHeartbeatTime"], before["lastHeartbeatTime"], "that of the agent");
    assert_ne!(found["lastTransitionTime"], before["lastTransitionTime"]);
    assert!(!world.reaches("stranger", "server"), "the last enforced state stays in force");

    // A running agent writes its condition again, and so does a new one.
    kill(second, Signal::SIGCONT).unwrap();
    let found = world.node_becomes("n2", "True");
    assert_eq!(found["reason"], "Enforcing", "{found}");
    assert!(is("n1", "Unknown"));
    let (agent, node) = (world.agent.as_mut().unwrap(), &world.node);
    agent.restart(node).unwrap();
    let found = world.node_becomes("n1", "True");
    assert_eq!(found["reason"], "Enforcing", "{found}");
}
