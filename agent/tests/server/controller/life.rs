//! Status of a policy from its creation to its deletion.

use std::time::Duration;

use serde_json::json;

use crate::controller::world::{NAMESPACE, World, condition, wait};

/// The API server refuses a new object in a namespace that is being deleted: the controller reports no failure and
/// stops retrying.
#[test]
fn a_namespace_that_is_being_deleted_gets_no_status() {
    const TEST: &str = "a_namespace_that_is_being_deleted_gets_no_status";
    let Some(world) = World::new(TEST) else { return };
    world.server.create_namespace("going").unwrap();
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "namespace": "going", "name": "server" },
        "spec": { "podSelector": {} },
    });
    world.server.apply(&policy.to_string()).unwrap();
    world.policy("other", "other", 1);
    // Garbage collection does not run here, so the namespace keeps its objects.
    world.server.kubectl(&["delete", "namespace", "going", "--wait=false"]).unwrap();
    let controller = world.start("one", &[]);
    let told = "no status written for NetworkPolicy going/server: its namespace is being deleted";
    wait("told so", || controller.log().contains(told));
    world.becomes("other", [0, 0, 0], ["True", "NoPods"]);
    // Twice the pause after a failure.
    std::thread::sleep(Duration::from_secs(5));
    let log = controller.log();
    assert!(!log.contains("WARN"), "{log}");
    assert_eq!(log.matches(told).count(), 1, "{log}");
}

#[test]
fn a_status_follows_its_policy() {
    let Some(world) = World::new("a_status_follows_its_policy") else { return };
    for node in ["n1", "n2", "n3"] {
        world.node(node);
        world.pod(&format!("server-{node}"), "server", node);
    }
    world.pod("other", "other", "n1");
    let _controller = world.start("one", &[]);
    world.policy("server", "server", 1);
    let object = world.becomes("server", [3, 0, 0], ["False", "Pending"]);
    let policy = world.get("networkpolicy", NAMESPACE, "server");
    let owner = &object["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["uid"]),
        (&json!("NetworkPolicy"), &policy["metadata"]["uid"])
    );
    assert_eq!(condition(&object["status"], "Accepted")["status"], "Unknown", "{object}");

    // The nodes report one after the other.
    for node in ["n1", "n2", "n3"] {
        world.report(node, 0, &[]);
    }
    world.report("n1", 0, &[("server", true, "")]);
    let object = world.becomes("server", [3, 1, 0], ["False", "Pending"]);
    let status = &object["status"];
    assert_eq!(condition(status, "Accepted")["status"], "True", "{status}");
    assert_eq!(condition(status, "Enforcing")["message"], "in force on 1 of 3 nodes");
    let named =
        status["notEnforced"].as_array().unwrap().iter().map(|it| it["node"].as_str().unwrap());
    assert_eq!(named.collect::<Vec<_>>(), ["n2", "n3"]);
    world.report("n2", 0, &[("server", false, "its interface is not known")]);
    wait("with the node's word", || {
        let object = world.status("server").unwrap();
        object["status"]["notEnforced"][0]["message"] == "its interface is not known"
    });
    let waiting = std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let for_it = [
                "wait",
                "--for=condition=Enforcing",
                "networkpolicystatus/server",
                "-n",
                NAMESPACE,
            ];
            world.server.kubectl(&[&for_it[..], &["--timeout=90s"]].concat())
        });
        world.report("n2", 0, &[("server", true, "")]);
        world.report("n3", 0, &[("server", true, "")]);
        waits.join().unwrap()
    });
    assert!(waiting.unwrap().contains("condition met"));
    let object = world.becomes("server", [3, 3, 0], ["True", "AllNodes"]);
    let status = &object["status"];
    assert!(status["notEnforced"].as_array().is_none_or(Vec::is_empty), "{status}");
    assert_eq!(
        (&status["policyGeneration"], &status["observedGeneration"]),
        (&json!(1), &object["metadata"]["generation"])
    );

    // An edit is not in force before the nodes report it.
    world.policy("server", "server", 2);
    let object = world.becomes("server", [3, 0, 0], ["False", "Pending"]);
    assert_eq!(object["status"]["policyGeneration"], 2);
    assert_eq!(object["status"]["observedGeneration"], object["metadata"]["generation"]);
    world.report("n1", 0, &[("server", false, "spec.ingress: closed: more than the tables hold")]);
    let object = world.becomes("server", [3, 0, 1], ["False", "NotHonoured"]);
    let accepted = condition(&object["status"], "Accepted");
    assert_eq!(
        (&accepted["status"], &accepted["reason"]),
        (&json!("False"), &json!("PartNotHonoured"))
    );
    for node in ["n1", "n2", "n3"] {
        world.report(node, 0, &[("server", true, "")]);
    }
    world.becomes("server", [3, 3, 0], ["True", "AllNodes"]);

    // An agent stops reporting, resumes, and its Node is deleted.
    world.report("n3", 10, &[("server", true, "")]);
    let object = world.becomes("server", [3, 2, 1], ["False", "AgentSilent"]);
    assert_eq!(object["status"]["notEnforced"][0]["node"], "n3");
    world.report("n3", 0, &[("server", true, "")]);
    world.becomes("server", [3, 3, 0], ["True", "AllNodes"]);
    world.report("n3", 10, &[("server", true, "")]);
    world.becomes("server", [3, 2, 1], ["False", "AgentSilent"]);
    world.server.kubectl(&["delete", "node", "n3"]).unwrap();
    world.becomes("server", [2, 2, 0], ["True", "AllNodes"]);

    // The pod of a policy is created and deleted.
    world.policy("other", "other", 1);
    world.becomes("other", [1, 0, 0], ["False", "Pending"]);
    let now = ["delete", "pod", "other", "-n", NAMESPACE, "--grace-period=0", "--force"];
    world.server.kubectl(&now).unwrap();
    world.becomes("other", [0, 0, 0], ["True", "NoPods"]);

    // A policy with the same name as a deleted one is a new policy.
    world.server.kubectl(&["delete", "networkpolicy", "server", "-n", NAMESPACE]).unwrap();
    world.policy("server", "server", 1);
    let object = world.becomes("server", [2, 0, 0], ["False", "Pending"]);
    let policy = world.get("networkpolicy", NAMESPACE, "server");
    wait("owned by the new one", || {
        let object = world.status("server").unwrap();
        object["metadata"]["ownerReferences"][0]["uid"] == policy["metadata"]["uid"]
    });
    assert_eq!(object["status"]["policyGeneration"], 1);

    // A deleted status is written again.
    world.server.kubectl(&["delete", "networkpolicystatus", "server", "-n", NAMESPACE]).unwrap();
    world.becomes("server", [2, 0, 0], ["False", "Pending"]);
}

#[test]
fn a_cluster_policy_has_conditions_of_netpold_beside_those_of_others() {
    const TEST: &str = "a_cluster_policy_has_conditions_of_netpold_beside_those_of_others";
    let Some(world) = World::new(TEST) else { return };
    world.serve_cluster_policies();
    for node in ["n1", "n2"] {
        world.node(node);
        world.pod(&format!("server-{node}"), "server", node);
    }
    let other = "2026-01-01T00:00:00Z";
    world.cluster_policy(100);
    let foreign = json!({ "status": { "conditions": [{
        "type": "ReadyElsewhere", "status": "True", "reason": "There", "message": "by another", "lastTransitionTime": other,
    }] } });
    let patch = ["patch", "clusternetworkpolicy", "tenants", "--subresource=status"];
    world
        .server
        .kubectl(&[&patch[..], &["--type=merge", "-p", &foreign.to_string()]].concat())
        .unwrap();
    let controller = world.start("one", &[]);
    let becomes = |accepted: [&str; 2], status: &str, reason: &str, message: &str| {
        wait(&format!("{accepted:?}, {status} {reason} {message}"), || {
            let object = world.get("clusternetworkpolicy", "", "tenants");
            let all = ["Accepted", "Enforcing"].map(|name| condition(&object["status"], name));
            all.iter().all(|it| it["observedGeneration"] == object["metadata"]["generation"])
                && all[0]["status"] == accepted[0]
                && all[0]["reason"] == accepted[1]
                && all[1]["status"] == status
                && all[1]["reason"] == reason
                && all[1]["message"] == message
                && condition(&object["status"], "ReadyElsewhere")["lastTransitionTime"] == other
        });
    };
    let honoured = ["True", "Honoured"];
    becomes(honoured, "True", "NoPods", "the policy selects no pod on any node");
    world.server.kubectl(&["label", "namespace", NAMESPACE, "tenant=red"]).unwrap();
    world.report("n1", 0, &[("/tenants", true, "")]);
    world.report("n2", 0, &[]);
    becomes(honoured, "False", "Pending", "in force on 1 of 2 nodes");
    world.report("n2", 0, &[("/tenants", true, "")]);
    becomes(honoured, "True", "AllNodes", "in force on 2 of 2 nodes");
    world.cluster_policy(101);
    let unread = ["Unknown", "NotLookedAt"];
    becomes(unread, "False", "Pending", "in force on 0 of 2 nodes");
    // A part of the policy that a node does not honour.
    let closed = "spec.ingress[0]: closed: more than the tables hold";
    world.report("n1", 0, &[("/tenants", false, closed)]);
    let refused = ["False", "PartNotHonoured"];
    becomes(refused, "False", "NotHonoured", "in force on 0 of 2 nodes");
    let log = controller.log();
    assert!(!log.contains("WARN"), "{log}");
}
