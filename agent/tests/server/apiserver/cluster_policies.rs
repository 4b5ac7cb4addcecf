//! Creation, edits and removal of ClusterNetworkPolicies, and of their `CustomResourceDefinition`, while an agent runs.

use netpold_testbed::ProbeProtocol;
use netpold_testbed::cluster::{MOMENT, eventually};
use serde_json::{Value, json};

use crate::apiserver::rbac::wait_event;
use crate::apiserver::world::{PATIENCE, PORT, USER, World, complains, kind, rbac_file};

const KIND: &str = "clusternetworkpolicies.policy.networking.k8s.io";
const DEFINITION: &str = include_str!("cluster-network-policy.yaml");

/// Installs the `CustomResourceDefinition` and waits until the API server serves the kind.
pub(crate) fn install(world: &World) {
    world.server.define(DEFINITION).unwrap();
}

/// Returns an ingress rule for all pods with the label `app`, in any namespace.
fn from(action: &str, app: &str) -> Value {
    let pods = json!({
        "namespaceSelector": {}, "podSelector": { "matchLabels": { "app": app } },
    });
    json!({ "action": action, "from": [{ "pods": pods }] })
}

/// Writes a policy in the Admin tier for the pods with `app: server`.
fn apply(world: &World, name: &str, ingress: Value) {
    apply_rules(world, name, "server", &json!({ "ingress": ingress }));
}

/// Writes a policy in the Admin tier for the pods with this `app`.
fn apply_rules(world: &World, name: &str, app: &str, rules: &Value) {
    let selector = json!({ "matchLabels": { "app": app } });
    let pods = json!({ "namespaceSelector": {}, "podSelector": selector });
    let mut policy = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": { "name": name },
        "spec": { "tier": "Admin", "priority": 10, "subject": { "pods": pods } },
    });
    policy["spec"].as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
    world.server.replace(&policy).unwrap();
}

fn world(test: &str) -> Option<World> {
    let mut world = World::new(test)?;
    ["server", "friend", "stranger"].into_iter().for_each(|name| world.add(name));
    Some(world)
}

#[test]
fn cluster_policies_are_followed() {
    let Some(mut world) = world("cluster_policies_are_followed") else { return };
    install(&world);
    apply(&world, "tenants", json!([from("Deny", "stranger")]));
    world.start_agent();
    let status = world.wait("in sync", |_| true);
    let known = kind(&status, KIND);
    assert_eq!((&known["served"], &known["objects"]), (&json!(true), &json!(1)), "{known}");
    assert!(!world.reaches("stranger", "server"), "enforced from the first write on");
    assert!(world.reaches("friend", "server"));

    // The policy is edited, and a NetworkPolicy allows the peer that the policy denies.
    apply(&world, "tenants", json!([from("Deny", "friend")]));
    world.becomes("stranger", "server", true);
    assert!(!world.reaches("friend", "server"));
    world.policy("server", crate::apiserver::world::allow_from("server", "friend"));
    world.becomes("stranger", "server", false);
    assert!(!world.reaches("friend", "server"), "the Admin tier decides before it");
    world.without_policy("server");
    world.becomes("stranger", "server", true);

    // A peer field that no version of the API has makes the policy deny everything, and the status names the field.
    apply(&world, "tenants", json!([{ "action": "Deny", "from": [{ "moons": {} }] }]));
    world.becomes("stranger", "server", false);
    let words = "ClusterNetworkPolicy tenants: spec.ingress[0].from[0].moons: unknown field";
    world.agent().wait_for("named", PATIENCE, |status| complains(status, words)).unwrap();

    let event = wait_event(&world, "default");
    let regarding = [&event["regarding"]["kind"], &event["regarding"]["name"]];
    assert_eq!(regarding, [&json!("ClusterNetworkPolicy"), &json!("tenants")], "{event}");
    assert!(event["note"].as_str().unwrap().contains("moons"), "{event}");

    world.server.kubectl(&["delete", "clusternetworkpolicy", "tenants"]).unwrap();
    world.becomes("friend", "server", true);
    world.becomes("stranger", "server", true);
}

/// The control plane's node is unknown until a policy denies traffic to nodes; later it stays known.
#[test]
fn other_nodes_are_followed_once_policy_depends_on_them() {
    let Some(mut world) = world("other_nodes_are_followed_once_policy_depends_on_them") else {
        return;
    };
    install(&world);
    world.create(world.control.manifest());
    world.control.serve(ProbeProtocol::Tcp, PORT).unwrap();
    world.start_agent();
    let nodes = |status: &Value| kind(status, "nodes")["objects"].clone();
    let status = world.wait("in sync", |_| true);
    assert_eq!(nodes(&status), 1, "{status}");
    let reaches = |world: &World| {
        let address = world.control.addresses()[0];
        world.pod("stranger").probe(ProbeProtocol::Tcp, address, PORT, MOMENT).connected()
    };
    assert!(reaches(&world), "no policy yet");

    apply(&world, "nodes", json!([from("Deny", "stranger")]));
    world.becomes("stranger", "server", false);
    let status = world.wait("the same node", |_| true);
    assert_eq!(nodes(&status), 1, "ingress does not depend on nodes: {status}");

    let to = |action: &str| json!({ "egress": [{ "action": action, "to": [{ "nodes": {} }] }] });
    apply_rules(&world, "nodes", "stranger", &to("Deny"));
    let log = || "the control plane's node stays reachable".to_owned();
    eventually(PATIENCE, || !reaches(&world), log);
    let status = world.wait("both nodes", |status| nodes(status) == 2);
    assert!(!complains(&status, "waits for the first list of all nodes"), "{status}");

    apply_rules(&world, "nodes", "stranger", &to("Accept"));
    eventually(PATIENCE, || reaches(&world), || "the node stays unreachable".to_owned());
    world.server.kubectl(&["delete", "clusternetworkpolicy", "nodes"]).unwrap();
    let status = world.wait("in force", |_| true);
    assert_eq!(nodes(&status), 2, "{status}");
}

/// Installs and removes the `CustomResourceDefinition` while the agent runs.
#[test]
fn the_kind_itself_comes_and_goes() {
    let Some(mut world) = world("the_kind_itself_comes_and_goes") else { return };
    world.start_agent();
    let status = world.wait("in sync without it", |_| true);
    let known = kind(&status, KIND);
    assert_eq!((&known["served"], &known["in_sync"]), (&json!(false), &json!(true)), "{known}");
    assert!(!complains(&status, "clusternetworkpolicies"), "{status}");
    for _ in 0..2 {
        install(&world);
        apply(&world, "tenants", json!([from("Deny", "stranger")]));
        world.becomes("stranger", "server", false);
        world.server.kubectl(&["delete", "crd", KIND]).unwrap();
        world.becomes("stranger", "server", true);
        world.wait("that it is gone", |status| kind(status, KIND)["served"] == false);
    }
}

#[test]
fn where_they_are_off_nobody_asks_for_them() {
    let Some(mut world) = world("where_they_are_off_nobody_asks_for_them") else { return };
    install(&world);
    apply(&world, "tenants", json!([from("Deny", "stranger")]));
    world.start_agent_in_cluster(&["--cluster-network-policies", "off"]);
    world.wait("in sync", |_| true);
    world.policy("server", crate::apiserver::world::allow_from("server", "stranger"));
    world.becomes("friend", "server", false);
    assert!(world.reaches("stranger", "server"));
    let requests = world.server.requests(USER).unwrap();
    assert!(requests.iter().all(|request| request.resource != "clusternetworkpolicies"));
}

/// Without the right to list the kind, the agent enforces everything else; the right takes effect once granted.
#[test]
fn a_right_that_is_missing_is_reported_and_holds_nothing_back() {
    let Some(mut world) = world("a_right_that_is_missing_is_reported") else { return };
    install(&world);
    apply(&world, "tenants", json!([from("Deny", "stranger")]));
    let text = std::fs::read_to_string(rbac_file()).unwrap();
    let without = text.replace("resources: [clusternetworkpolicies]", "resources: [others]");
    assert_ne!(without, text);
    world.server.apply(&without).unwrap();
    world.policy("friend", crate::apiserver::world::allow_from("friend", "server"));
    world.start_agent();
    let status = world.wait("in sync", |_| true);
    let words = "cannot list clusternetworkpolicies.policy.networking.k8s.io: ";
    assert!(complains(&status, words), "{status}");
    assert!(complains(&status, "everything else is enforced without it"), "{status}");
    assert!(!world.reaches("stranger", "friend"), "the NetworkPolicy is in force");
    assert!(world.reaches("stranger", "server"));
    world.server.apply(&text).unwrap();
    world.becomes("stranger", "server", false);
    world.agent().wait_for("settled", PATIENCE, |status| !complains(status, words)).unwrap();
}
