//! Checks that the RBAC of `deploy/` is exact: sufficient to run, without unused rights.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use netpold_engine::publish::STARTUP_TAINT;
use netpold_kube::decode::decode;
use netpold_kube::document;
use netpold_testbed::apiserver::Request;
use netpold_testbed::cluster::network_policy;
use netpold_testbed::{Credential, cluster};
use serde_json::{Value, json};

use crate::apiserver::in_force::gate;
use crate::apiserver::world::{
    NAMESPACE, PATIENCE, USER, World, binary, complains, isolated, rbac_file,
};

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

/// Returns the rights that requests used. The agent lists a resource that the server does not serve
/// (`discovery.k8s.io/v1` before Kubernetes 1.21) but cannot watch it; the right to watch counts as used.
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
    crate::apiserver::cluster_policies::install(&world);
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

    // The agent writes the Node's condition after the removal of the taint, and its report at any time.
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

/// Packets that no program judged are reported by an Event on the Node, with the same right as Events on policies.
#[test]
fn packets_past_the_programs_are_reported_on_the_node() {
    const TEST: &str = "packets_past_the_programs_are_reported_on_the_node";
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

/// A rule that clears netpold's marks is reported by an Event on the Node.
#[test]
fn a_rule_that_erases_marks_is_reported_on_the_node() {
    const TEST: &str = "a_rule_that_erases_marks_is_reported_on_the_node";
    let Some(mut world) = World::new(TEST) else { return };
    ["server", "client"].into_iter().for_each(|name| world.add(name));
    world.start_agent();
    world.wait("programs at both pods", |status| {
        let endpoints = status["endpoints"].as_array().map_or(&[][..], Vec::as_slice);
        endpoints.iter().filter(|endpoint| !endpoint["hook"].is_null()).count() == 2
    });
    let rules = "add table inet other; add chain inet other passing { type filter hook forward priority 0; }; \
                 add rule inet other passing meta mark set 0";
    world.node.netns().nft(rules).unwrap();
    // Packets before the first check (10 s after the start) are not reported.
    for _ in 0..20 {
        assert!(
            world.reaches("client", "server"),
            "policy allows the connection, and an exit judges the packets"
        );
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    let event = wait_event(&world, "default");
    assert_eq!(event["regarding"]["kind"], "Node", "{event}");
    assert_eq!(event["reason"], "PacketsWithoutProof");
    assert!(event["note"].as_str().unwrap().contains("lost bit 28 of skb->mark"), "{event}");
}

/// Waits for the only Event of netpold in a namespace, and returns it.
pub(crate) fn wait_event(world: &World, namespace: &str) -> Value {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let events = world.server.get("event", namespace, "").unwrap().unwrap();
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

/// A kind that the agent may not read is reported, and the agent does not enforce as if there were no such objects.
#[test]
fn an_unreadable_kind_is_reported_and_nothing_is_enforced() {
    let Some(mut world) = World::new("an_unreadable_kind_is_reported_and_nothing_is_enforced")
    else {
        return;
    };
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

/// Certificate authority that has signed no certificate of the cluster.
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
fn a_server_of_another_authority_gets_no_request() {
    let Some(mut world) = World::new("a_server_of_another_authority_gets_no_request") else {
        return;
    };
    let right = world.server.certificate();
    let wrong = world.server.directory().join("elsewhere.crt");
    std::fs::write(&wrong, ELSEWHERE).unwrap();
    let access = Credential::TokenFile(&world.token_file());
    let kubeconfig = world.server.write_kubeconfig("wrong", &access).unwrap();
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    let swapped = text.replace(right.to_str().unwrap(), wrong.to_str().unwrap());
    assert_ne!(swapped, text);
    std::fs::write(&kubeconfig, swapped).unwrap();
    world.start_agent_with(&["--kubeconfig", kubeconfig.to_str().unwrap()], binary().into());
    let agent = world.agent.as_mut().unwrap();
    let words = "is the kubeconfig's (or the mounted) certificate authority this cluster's?";
    agent.wait_for("the certificate error", PATIENCE, |status| complains(status, words)).unwrap();
    assert_eq!(world.server.requests(USER).unwrap(), []);
    // The agent reads the repaired kubeconfig again.
    std::fs::write(&kubeconfig, text).unwrap();
    world.wait("in sync", |_| true);
}
