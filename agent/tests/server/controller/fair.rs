//! Statuses of a namespace with few policies, next to a namespace with very many.

use std::time::Instant;

use serde_json::{Value, json};

use crate::controller::world::{NAMESPACE, World, wait};

const CROWD: usize = 200;

#[test]
fn a_crowd_keeps_nobody_waiting() {
    let Some(world) = World::new("a_crowd_keeps_nobody_waiting") else { return };
    // The namespace sorts before the namespace of the single policy.
    world.server.create_namespace("crowd").unwrap();
    let policy = |number: usize| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "namespace": "crowd", "name": format!("p{number}") }, "spec": { "podSelector": {} },
        })
    };
    (0..CROWD).map(policy).for_each(|policy| world.create(&policy));
    world.policy("server", "server", 1);
    let _controller = world.start("one", &[]);
    let began = Instant::now();
    let statuses = || world.get("networkpolicystatus", "", "")["items"].as_array().unwrap().clone();
    let written = |it: &Value| it["status"].is_object();
    wait("all written", || statuses().iter().filter(|it| written(it)).count() == CROWD + 1);
    let version =
        |it: &Value| it["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    let all = statuses();
    let ours = all.iter().find(|it| it["metadata"]["namespace"] == NAMESPACE).map(version).unwrap();
    let earlier = all.iter().filter(|it| version(it) < ours).count();
    println!("{CROWD} statuses in {:?}, {earlier} of them before the other's", began.elapsed());
    assert!(earlier <= 20, "{earlier} of the crowd's {CROWD} came first");
}
