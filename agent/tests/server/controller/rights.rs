//! Checks that the rights of `deploy/base/controller.yaml` are exact: sufficient to run, without unused rights.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::controller::webhook::{configuration, trusted};
use crate::controller::world::{NAMESPACE, USER, World, condition, manifest, wait};

/// Verb, group and resource.
type Right = (String, String, String);

fn granted() -> BTreeSet<Right> {
    let objects = manifest();
    let of = |value: &Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
    };
    let mut rights = BTreeSet::new();
    for rule in objects.iter().filter_map(|object| object["rules"].as_array()).flatten() {
        for group in of(&rule["apiGroups"]) {
            for resource in of(&rule["resources"]) {
                let verbs = of(&rule["verbs"]).into_iter();
                rights.extend(verbs.map(|verb| (verb, group.clone(), resource.clone())));
            }
        }
    }
    rights
}

#[test]
fn every_right_is_used_and_none_is_missing() {
    let Some(world) = World::new("every_right_is_used_and_none_is_missing") else { return };
    world.node("n1");
    // The agent of a node without pods is silent.
    world.node("n2");
    world.say_ready("n2", 20);
    world.report("n2", 10, &[]);
    world.pod("server", "server", "n1");
    world.create(&configuration(1));
    world.serve_cluster_policies();
    world.cluster_policy(100);
    let mut controller = world.start("one", &[]);
    wait("trusted", || trusted(&world));
    world.policy("server", "server", 1);
    world.becomes("server", [1, 0, 0], ["False", "Pending"]);
    // The status of a deleted policy passes to a new policy of the same name.
    world.server.kubectl(&["delete", "networkpolicy", "server", "-n", NAMESPACE]).unwrap();
    world.policy("server", "server", 1);
    let policy = world.get("networkpolicy", NAMESPACE, "server");
    wait("owned by the new one", || {
        world.status("server").unwrap()["metadata"]["ownerReferences"][0]["uid"]
            == policy["metadata"]["uid"]
    });
    // The next leader replaces a Secret with unusable content.
    let useless =
        ["patch", "secret", "netpold-controller-tls", "-n", "netpold-system", "--type=merge"];
    let patch = ["-p", r#"{"data":{"certificates.json":"e30="}}"#];
    world.server.kubectl(&[&useless[..], &patch].concat()).unwrap();
    let replaced = || {
        let requests = world.server.requests(USER).unwrap();
        requests.iter().any(|it| it.resource == "secrets" && it.verb == "update" && it.code == 200)
    };
    wait("replaced", replaced);

    world.report("n1", 0, &[("server", true, "")]);
    world.becomes("server", [1, 1, 0], ["True", "AllNodes"]);
    let of_cluster = || world.get("clusternetworkpolicy", "", "tenants")["status"].clone();
    wait("of the cluster", || condition(&of_cluster(), "Enforcing")["reason"] == "NoPods");
    world.becomes_unknown("n2");
    // The API server may log a watch only at its end.
    controller.end(Signal::SIGTERM);
    let watched = |resource: &str| {
        let requests = world.server.requests(USER).unwrap();
        requests.iter().any(|it| it.resource == resource && it.verb == "watch")
    };
    wait("logged", || ["networkpolicystatuses", "nodepolicystatuses"].into_iter().all(watched));
    let mut requests = world.server.requests(USER).unwrap();
    // Every user may ask which kinds are served.
    requests.retain(|request| !request.resource.is_empty());
    for request in &requests {
        assert!(request.code != 403 && request.code != 401, "refused: {request:?}");
    }
    let used: BTreeSet<Right> =
        requests.iter().map(|r| (r.verb.clone(), r.group.clone(), r.resource.clone())).collect();
    let granted = granted();
    assert_eq!(used.difference(&granted).collect::<Vec<_>>(), Vec::<&Right>::new(), "not granted");
    assert_eq!(granted.difference(&used).collect::<Vec<_>>(), Vec::<&Right>::new(), "never used");
}
