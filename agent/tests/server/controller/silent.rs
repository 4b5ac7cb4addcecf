//! Conditions of Nodes whose agent is silent.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use netpold_testbed::cluster::eventually_at;
use serde_json::{Value, json};

use crate::controller::world::{USER, World, condition};

const CONDITION: &str = "netpold.io/NetworkPolicyReady";
/// Longer than the time for which the controller must have led, on a slow machine.
const PATIENCE: Duration = Duration::from_mins(3);

impl World {
    /// Writes the condition of a Node as its agent did `minutes` ago.
    pub(crate) fn say_ready(&self, node: &str, minutes: i64) {
        let at = Timestamp::now() - SignedDuration::from_mins(minutes);
        let at = Timestamp::from_second(at.as_second()).unwrap().to_string();
        let ready = json!({
            "type": CONDITION, "status": "True", "reason": "Enforcing", "message": "by the agent",
            "lastHeartbeatTime": at, "lastTransitionTime": at,
        });
        let patch = json!({ "status": { "conditions": [ready] } }).to_string();
        let arguments = ["patch", "node", node, "--subresource=status", "--type=strategic", "-p"];
        self.server.kubectl(&[&arguments[..], &[&patch]].concat()).unwrap();
    }

    pub(crate) fn said_ready(&self, node: &str) -> Value {
        condition(&self.get("node", "", node)["status"], CONDITION).clone()
    }

    #[track_caller]
    pub(crate) fn becomes_unknown(&self, node: &str) {
        let is_unknown = || self.said_ready(node)["status"] == "Unknown";
        eventually_at(Duration::from_millis(500), PATIENCE, is_unknown, || {
            format!("not Unknown: {}", self.said_ready(node))
        });
    }
}

#[test]
fn only_the_conditions_of_silent_agents_become_unknown() {
    const TEST: &str = "only_the_conditions_of_silent_agents_become_unknown";
    let Some(world) = World::new(TEST) else { return };
    let nodes = ["silent", "without", "alive", "mute", "late"];
    nodes.into_iter().for_each(|node| world.node(node));
    ["silent", "alive", "late"].into_iter().for_each(|node| world.say_ready(node, 20));
    // The last agent may write its Node but no report any more.
    world.say_ready("mute", 1);
    nodes.into_iter().for_each(|node| world.report(node, 10, &[]));
    world.report("alive", 0, &[]);
    let versions =
        || nodes.map(|node| world.get("node", "", node)["metadata"]["resourceVersion"].clone());
    let before = versions();
    let controller = world.start("one", &[]);
    world.becomes_unknown("silent");
    world.becomes_unknown("late");
    let found = world.said_ready("silent");
    assert_eq!(found["reason"], "AgentSilent", "{found}");
    // Both agents return.
    world.say_ready("late", 0);
    world.report("late", 0, &[]);
    // Renewed reports keep the agent of this node alive.
    world.report("alive", 0, &[]);
    std::thread::sleep(Duration::from_secs(25));
    let after = versions();
    for (node, [before, after]) in
        nodes.iter().zip(before.into_iter().zip(after).map(<[_; 2]>::from))
    {
        let expected = ["silent", "late"].contains(node);
        assert_eq!(before != after, expected, "{node}");
    }
    assert_eq!(world.said_ready("late")["status"], "True");
    assert_eq!(world.said_ready("without"), Value::Null);
    let requests = world.server.requests(USER).unwrap();
    let patches = requests.iter().filter(|it| it.resource == "nodes/status");
    assert_eq!(patches.count(), 2, "one for each");
    let log = controller.log();
    assert!(!log.contains("WARN"), "{log}");
}
