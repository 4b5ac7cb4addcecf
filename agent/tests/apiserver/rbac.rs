//! The RBAC of `deploy/` is exact: enough to run with, and nothing that is not used.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use netpold::source::decode::decode;
use netpold::source::document;
use netpold_testbed::apiserver::Request;
use serde_json::{Value, json};

use crate::world::{NAMESPACE, PATIENCE, USER, World, complains, isolated, rbac_file};

/// Verb, group and resource.
type Right = (String, String, String);

fn rights(rules: &[PolicyRule]) -> BTreeSet<Right> {
    let all = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
    let mut rights = BTreeSet::new();
    for rule in rules {
        assert_eq!(rule.resource_names.as_ref().map_or(0, Vec::len), 0);
        for (group, resource) in all(&rule.api_groups)
            .iter()
            .flat_map(|g| all(&rule.resources).into_iter().map(move |r| (g.clone(), r)))
        {
            let of = |verb: &String| (verb.clone(), group.clone(), resource.clone());
            rights.extend(rule.verbs.iter().map(of));
        }
    }
    rights
}

fn granted() -> BTreeSet<Right> {
    let text = std::fs::read_to_string(rbac_file()).unwrap();
    let documents = document::parse(&text).unwrap();
    let role = documents.iter().find(|d| d.text("kind") == Some("ClusterRole")).unwrap();
    let role: ClusterRole = decode(role).unwrap();
    rights(&role.rules.unwrap())
}

fn used(requests: &[Request]) -> BTreeSet<Right> {
    requests.iter().map(|r| (r.verb.clone(), r.group.clone(), r.resource.clone())).collect()
}

#[test]
fn every_right_is_used_and_none_is_missing() {
    let Some(mut world) = World::new("every_right_is_used_and_none_is_missing") else { return };
    world.add("server");
    // The API takes such a block, but no packet has such an address on the wire.
    let mapped = json!({ "ipBlock": { "cidr": "::ffff:10.0.0.0/104" } });
    let selector = json!({ "matchLabels": { "app": "server" } });
    let spec = json!({ "podSelector": selector, "ingress": [{ "from": [mapped] }] });
    world.policy("mapped", spec.clone());
    // Nobody here is concerned by this one: no Event.
    world.policy("nobody", {
        let mut spec = spec;
        spec["podSelector"] = json!({ "matchLabels": { "app": "nobody" } });
        spec
    });
    world.start_agent();
    let status = world.wait("isolating the server", |status| isolated(status, "server"));
    assert!(complains(&status, "NetworkPolicy shop/mapped: spec.ingress[0]"), "{status}");
    let event = wait_event(&world);
    assert_eq!(event["regarding"]["name"], "mapped");
    assert_eq!((&event["type"], &event["reportingInstance"]), (&json!("Warning"), &json!("n1")));
    assert!(event["note"].as_str().unwrap().contains("IPv4-mapped IPv6"), "{event}");
    let described =
        world.server.kubectl(&["describe", "netpol", "mapped", "-n", NAMESPACE]).unwrap();
    println!("{described}");

    let requests = world.server.requests(USER).unwrap();
    assert!(requests.len() > 6);
    for request in &requests {
        assert!(request.code != 403 && request.code != 401, "refused: {request:?}");
    }
    let (granted, used) = (granted(), used(&requests));
    assert_eq!(used.difference(&granted).collect::<Vec<_>>(), Vec::<&Right>::new(), "not granted");
    assert_eq!(granted.difference(&used).collect::<Vec<_>>(), Vec::<&Right>::new(), "never used");
}

/// The only Event there is.
fn wait_event(world: &World) -> Value {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events");
        let events: Value =
            serde_json::from_str(&world.server.kubectl(&["get", "--raw", &path]).unwrap()).unwrap();
        let items = events["items"].as_array().unwrap();
        assert!(items.len() <= 1, "one policy, one agent, one Event: {events}");
        if let Some(event) = items.first() {
            return event.clone();
        }
        assert!(std::time::Instant::now() < deadline, "no Event");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

/// A kind that may not be read is named, and nothing is enforced as if there were none of it.
#[test]
fn what_may_not_be_read_is_named_and_holds_everything_back() {
    let Some(mut world) = World::new("what_may_not_be_read_is_named") else { return };
    ["server", "client"].into_iter().for_each(|name| world.add(name));
    let text = std::fs::read_to_string(rbac_file()).unwrap();
    let without =
        text.replace("[namespaces, nodes, pods, services]", "[namespaces, nodes, services]");
    assert_ne!(without, text);
    world.server.apply(&without).unwrap();
    world.policy("server", json!({ "podSelector": { "matchLabels": { "app": "server" } } }));
    world.start_agent();
    let agent = world.agent.as_mut().unwrap();
    agent
        .wait_for("refused", PATIENCE, |status| {
            let words = "cannot list pods: pods is forbidden: User";
            complains(status, words) && status["in_sync"] == false
        })
        .unwrap();
    assert!(world.reaches("client", "server"), "nothing is enforced yet");
    world.server.apply(&text).unwrap();
    world.wait("isolating the server", |status| isolated(status, "server"));
    assert!(!world.reaches("client", "server"));
}
