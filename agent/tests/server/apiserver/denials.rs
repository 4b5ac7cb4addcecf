//! Events on pods with denied packets, in namespaces that opt in by label.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use netpold_testbed::udp_frame;
use serde_json::{Value, json};

use crate::apiserver::world::{NAMESPACE, PATIENCE, PORT, USER, World, isolated};

/// Returns the Events with reason `NetworkPolicyDenied`, by pod name.
fn denied(world: &World) -> BTreeMap<String, Vec<Value>> {
    let list = world.server.get("event", NAMESPACE, "").unwrap().unwrap();
    let mut of_pods: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for event in list["items"].as_array().unwrap() {
        if event["reason"] == "NetworkPolicyDenied" {
            let pod = event["regarding"]["name"].as_str().unwrap().to_owned();
            of_pods.entry(pod).or_default().push(event.clone());
        }
    }
    of_pods
}

fn wait_denied(world: &World, pod: &str) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(events) = denied(world).remove(pod) {
            return events[0].clone();
        }
        assert!(Instant::now() < deadline, "{}", world.agent.as_ref().unwrap().log());
        sleep(Duration::from_millis(200));
    }
}

fn ask(world: &World, label: &str) {
    let name = ["label", "namespace", NAMESPACE, label, "--overwrite"];
    world.server.kubectl(&name).unwrap();
}

/// Sends `count` packets from the client, each to a different port of the server.
fn flood(world: &World, count: u16) {
    let (client, server) = (world.pod("client"), world.pod("server"));
    let [from, to] = [client, server].map(|pod| pod.ip4().unwrap());
    for port in 0..count {
        let (from, to) = (SocketAddr::from((from, 4000)), SocketAddr::from((to, 10_000 + port)));
        let frame = udp_frame(client.gateway_mac(), client.mac(), from, to, b"x").unwrap();
        client.send_frame("eth0", &frame).unwrap();
    }
}

#[test]
fn denials_are_told_where_a_namespace_asks_and_no_flood_tells_more() {
    const TEST: &str = "denials_are_told_where_a_namespace_asks_and_no_flood_tells_more";
    let Some(mut world) = World::new(TEST) else { return };
    ["server", "other", "client"].into_iter().for_each(|name| world.add(name));
    for name in ["server", "other"] {
        world.policy(name, json!({ "podSelector": { "matchLabels": { "app": name } } }));
    }
    world.start_agent();
    world.wait("isolating both", |s| isolated(s, "server") && isolated(s, "other"));
    assert!(!world.reaches("client", "server"));
    // Longer than the agent's interval of 10 s, so an Event would have been written.
    sleep(Duration::from_secs(15));
    assert_eq!(denied(&world), BTreeMap::new(), "nobody asked");

    ask(&world, "netpold.io/events=denied");
    // The status does not show the label, so the test sends packets until an Event appears.
    let deadline = Instant::now() + PATIENCE;
    while denied(&world).is_empty() {
        assert!(Instant::now() < deadline, "{}", world.agent.as_ref().unwrap().log());
        assert!(!world.reaches("client", "server"));
    }
    let event = wait_denied(&world, "server");
    assert_eq!(event["regarding"]["kind"], "Pod");
    assert_eq!((&event["type"], &event["action"]), (&json!("Warning"), &json!("Deny")));
    let note = event["note"].as_str().unwrap();
    for part in ["Denied ingress: TCP", &format!(":{PORT}"), "shop/server"] {
        assert!(note.contains(part), "{part}: {note}");
    }
    // The note may quote the packet of either IP family.
    let client = world.pod("client");
    let [v4, v6] = [client.ip4(), client.ip6()].map(Option::unwrap);
    let quoted = [format!("{v4}:"), format!("[{v6}]:")];
    assert!(quoted.iter().any(|address| note.contains(address)), "{quoted:?}: {note}");
    println!("{note}");

    for _ in 0..4 {
        flood(&world, 1000);
        sleep(Duration::from_secs(4));
    }
    // The flood does not use up the Events of the other pod.
    assert!(!world.reaches("client", "other"));
    wait_denied(&world, "other");
    // Waits one more interval, for delayed Events.
    sleep(Duration::from_secs(20));
    let events = denied(&world);
    assert!(events["server"].len() <= 5, "{events:#?}");
    let requests = world.server.requests(USER).unwrap();
    let written = requests.iter().filter(|r| r.resource == "events").count();
    assert!(written <= 10, "{written} writes for {events:#?}");
}
