//! Checks that the RBAC of `deploy/` is exact: sufficient to run, without unused rights.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use netpold_engine::publish::STARTUP_TAINT;
use netpold_kube::decode::decode;
use netpold_kube::document;
use netpold_testbed::apiserver::Request;
use netpold_testbed::cluster::network_policy;
use netpold_testbed::{Access, cluster};
use serde_json::{Value, json};

use crate::in_force::gate;
use crate::world::{NAMESPACE, PATIENCE, USER, World, binary, complains, isolated, rbac_file};

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

/// Returns the rights that requests used. A resource that this server does not serve
/// (`discovery.k8s.io/v1` before Kubernetes 1.21) is listed, and its watch counts as used.
fn used(requests: &[Request]) -> BTreeSet<Right> {
    let right = |verb: &str, r: &Request| (verb.into(), r.group.clone(), r.resource.clone());
    let not_served = requests.iter().filter(|r| r.verb == "list" && r.code == 404);
    let watched = not_served.map(|r| right("watch", r));
    requests.iter().map(|r| right(&r.verb, r)).chain(watched).collect()
}

#[test]
fn every_right_is_used_and_none_is_missing() {
    let Some(mut world) = World::new("every_right_is_used_and_none_is_missing") else { return };
    world.add_with("server", gate);
    crate::cluster_policies::install(&world);
    let taint = format!("{STARTUP_TAINT}=:NoSchedule");
    world.server.kubectl(&["taint", "node", "n1", &taint]).unwrap();
    // No packet on the wire has an IPv4-mapped address.
    let mapped = json!({ "ipBlock": { "cidr": "::ffff:10.0.0.0/104" } });
    let selector = json!({ "matchLabels": { "app": "server" } });
    let spec = json!({ "podSelector": selector, "ingress": [{ "from": [mapped] }] });
    let mapped = network_policy("mapped", &spec);
    // This policy selects no pod of the cluster, so the agent writes no Event for it.
    let mut nobody = network_policy("nobody", &spec);
    nobody["spec"]["podSelector"] = json!({ "matchLabels": { "app": "nobody" } });
    world.store(&[mapped, nobody]);
    world.start_agent();
    let status = world.wait("isolating the server", |status| isolated(status, "server"));
    assert!(complains(&status, "NetworkPolicy shop/mapped: spec.ingress[0]"), "{status}");
    let event = wait_event(&world, NAMESPACE);
    assert_eq!(event["regarding"]["name"], "mapped");
    assert_eq!((&event["type"], &event["reportingInstance"]), (&json!("Warning"), &json!("n1")));
    assert!(event["note"].as_str().unwrap().contains("IPv4-mapped IPv6"), "{event}");
    let described =
        world.server.kubectl(&["describe", "netpol", "mapped", "-n", NAMESPACE]).unwrap();
    println!("{described}");

    // The agent writes the Node's condition after it removes the taint, and the report at any time.
    let unused = || {
        let used = used(&world.server.requests(USER).unwrap());
        granted().difference(&used).cloned().collect::<Vec<_>>()
    };
    cluster::eventually(
        PATIENCE,
        || unused().is_empty(),
        || format!("rights never used: {:?}\n{}", unused(), world.agent.as_ref().unwrap().log()),
    );

    let requests = world.server.requests(USER).unwrap();
    assert!(requests.len() > 6);
    for request in &requests {
        assert!(request.code != 403 && request.code != 401, "refused: {request:?}");
    }
    let (granted, used) = (granted(), used(&requests));
    assert_eq!(used.difference(&granted).collect::<Vec<_>>(), Vec::<&Right>::new(), "not granted");
    assert_eq!(granted.difference(&used).collect::<Vec<_>>(), Vec::<&Right>::new(), "never used");
}

/// Checks for an Event on the Node, covered by the same right, about packets that no program judged.
#[test]
fn packets_past_the_programs_are_told_of_the_node() {
    const TEST: &str = "packets_past_the_programs_are_told_of_the_node";
    let Some(mut world) = World::new(TEST) else { return };
    ["server", "client"].into_iter().for_each(|name| world.add(name));
    world.policy("server", json!({ "podSelector": { "matchLabels": { "app": "server" } } }));
    world.start_agent();
    world.wait("isolating the server", |status| isolated(status, "server"));
    assert!(!world.reaches("client", "server"));
    let to = world.pod("server").host_ifindex();
    let past = world.node.redirect_peer(world.pod("client").host_interface(), to);
    let Ok(_past) = past else { return netpold_testbed::skip(TEST, "no TCX here") };
    // Packets before the first check (10 s after the start) are not reported.
    for _ in 0..20 {
        let _ = world.reaches("client", "server");
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    let event = wait_event(&world, "default");
    let regarding = [&event["regarding"]["kind"], &event["regarding"]["name"]];
    assert_eq!(regarding, [&json!("Node"), &json!("n1")], "{event}");
    assert_eq!(event["reason"], "PacketsNotJudged");
    assert!(event["note"].as_str().unwrap().contains("past its programs"), "{event}");
}

/// Checks for an Event on the Node about a rule that clears netpold's marks.
#[test]
fn a_rule_that_erases_marks_is_told_of_the_node() {
    const TEST: &str = "a_rule_that_erases_marks_is_told_of_the_node";
    let Some(mut world) = World::new(TEST) else { return };
    ["server", "client"].into_iter().for_each(|name| world.add(name));
    world.start_agent();
    world.wait("at both pods", |status| {
        let endpoints = status["endpoints"].as_array().map_or(&[][..], Vec::as_slice);
        endpoints.iter().filter(|endpoint| !endpoint["hook"].is_null()).count() == 2
    });
    let rules = "add table inet other; add chain inet other passing { type filter hook forward priority 0; }; \
                 add rule inet other passing meta mark set 0";
    let done = world.node.command("nft").unwrap().arg(rules).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    // Packets before the first check (10 s after the start) are not reported.
    for _ in 0..20 {
        assert!(world.reaches("client", "server"), "policy allows it, and it is judged");
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    let event = wait_event(&world, "default");
    assert_eq!(event["regarding"]["kind"], "Node", "{event}");
    assert_eq!(event["reason"], "PacketsWithoutProof");
    assert!(event["note"].as_str().unwrap().contains("lost bit 28 of skb->mark"), "{event}");
}

/// Returns the only Event of netpold in a namespace.
pub(crate) fn wait_event(world: &World, namespace: &str) -> Value {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let events: Value =
            serde_json::from_str(&world.server.kubectl(&["get", "--raw", &path]).unwrap()).unwrap();
        let all = events["items"].as_array().unwrap();
        let ours = |event: &&Value| event["reportingController"] == "netpold";
        let items: Vec<&Value> = all.iter().filter(ours).collect();
        assert!(items.len() <= 1, "one policy, one agent, one Event: {events}");
        if let Some(&event) = items.first() {
            return event.clone();
        }
        let log = world.agent.as_ref().map(netpold_testbed::Agent::log).unwrap_or_default();
        assert!(std::time::Instant::now() < deadline, "no Event\n{log}");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

/// Checks that a kind without the right to read it is named, and that the agent does not enforce as if it were empty.
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

/// Certificate authority that has signed no certificate here.
const ELSEWHERE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBfjCCASSgAwIBAgITP+VkuN+Pt+xtQd+p1d7E5Mpu8zAKBggqhkjOPQQDAjAU
MRIwEAYDVQQDDAllbHNld2hlcmUwIBcNMjYxMTIxMTY1MTI3WhgPMjEyNjEwMjgx
NjUxMjdaMBQxEjAQBgNVBAMMCWVsc2V3aGVyZTBZMBMGByqGSM49AgEGCCqGSM49
AwEHA0IABIgaoMfjpKgI6sQPBMENg+8ybPwuhTRWfO9NUf1X5V+yKTFDCdC40Sjs
fwDxl2bGSlm3KMpKEQP4Rlw+CLn3FSGjUzBRMB0GA1UdDgQWBBT5gT2bsNezRy7i
X17qO0bgIRgmxzAfBgNVHSMEGDAWgBT5gT2bsNezRy7iX17qO0bgIRgmxzAPBgNV
HRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIQDCdJdP9N9U8nPaUyALzlNU
OtbOzU6JPBmm1UtICpSESgIgH/3prLzoY7+LwJQ1SBiJ3HcSYHKT90wNmA7YMHGJ
wdE=
-----END CERTIFICATE-----
";

#[test]
fn a_server_of_another_authority_is_told_nothing() {
    let Some(mut world) = World::new("a_server_of_another_authority_is_told_nothing") else {
        return;
    };
    let right = world.server.certificate();
    let wrong = world.server.directory().join("elsewhere.crt");
    std::fs::write(&wrong, ELSEWHERE).unwrap();
    let access = Access::TokenFile(&world.token_file());
    let kubeconfig = world.server.write_kubeconfig("wrong", &access).unwrap();
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    let swapped = text.replace(right.to_str().unwrap(), wrong.to_str().unwrap());
    assert_ne!(swapped, text);
    std::fs::write(&kubeconfig, swapped).unwrap();
    world.start_agent_with(&["--kubeconfig", kubeconfig.to_str().unwrap()], binary().into());
    let agent = world.agent.as_mut().unwrap();
    let words = "is the kubeconfig's (or the mounted) certificate authority this cluster's?";
    agent.wait_for("suspicious", PATIENCE, |status| complains(status, words)).unwrap();
    assert_eq!(world.server.requests(USER).unwrap(), []);
    // The agent reads the repaired kubeconfig again.
    std::fs::write(&kubeconfig, text).unwrap();
    world.wait("in sync", |_| true);
}
