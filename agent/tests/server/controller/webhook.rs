//! Readiness gates that the webhook adds to pods at their creation.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::controller::world::{NAMESPACE, World, wait};

const NAME: &str = "netpold-readiness-gate";

/// Returns the configuration in `deploy/chart/templates/options/readiness-gate-webhook.yaml`, for a webhook at this port.
pub(crate) fn configuration(port: u16) -> Value {
    let rule = json!({
        "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "scope": "Namespaced",
    });
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": NAME },
        "webhooks": [{
            "name": "readiness-gate.netpold.io",
            "clientConfig": { "url": format!("https://127.0.0.1:{port}/mutate-pods") },
            "rules": [rule],
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "reinvocationPolicy": "IfNeeded",
            "timeoutSeconds": 10,
        }],
    })
}

pub(crate) fn bundle(world: &World) -> String {
    let found = world.get("mutatingwebhookconfiguration", "", NAME);
    found["webhooks"][0]["clientConfig"]["caBundle"].as_str().unwrap_or_default().to_owned()
}

/// Returns whether the configuration has the webhook's certificate authority.
pub(crate) fn trusted(world: &World) -> bool {
    !bundle(world).is_empty()
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Creates a pod and returns its readiness gates.
fn gates(world: &World, name: &str) -> Vec<String> {
    world.pod(name, "x", "n1");
    let pod = world.get("pod", NAMESPACE, name);
    let gates = pod["spec"]["readinessGates"].as_array().cloned().unwrap_or_default();
    gates.iter().map(|gate| gate["conditionType"].as_str().unwrap().to_owned()).collect()
}

pub(crate) fn is_gated(world: &World, name: &str) -> bool {
    gates(world, name) == ["netpold.io/network-ready"]
}

/// A pod created before the configuration is trusted gets no gate, so the controller updates the configuration at
/// once.
#[test]
fn a_configuration_that_comes_later_is_trusted_at_once() {
    const TEST: &str = "a_configuration_that_comes_later_is_trusted_at_once";
    let Some(world) = World::new(TEST) else { return };
    world.node("n1");
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let controller = world.start("one", &["--webhook-listen", &address]);
    wait("serving", || controller.log().contains("loaded webhook certificate"));
    std::thread::sleep(Duration::from_secs(1));
    for round in 0..3 {
        world.create(&configuration(port));
        let began = Instant::now();
        wait("trusted", || trusted(&world));
        let took = began.elapsed();
        println!("round {round}: trusted after {took:?}");
        let since = r"jsonpath={.metadata.annotations.netpold\.io/trusted-since}";
        let since =
            world.server.kubectl(&["get", "mutatingwebhookconfiguration", NAME, "-o", since]);
        assert!(since.as_ref().is_ok_and(|since| since.ends_with('Z')), "{since:?}");
        assert!(took < Duration::from_secs(5), "{took:?}\n{}", controller.log());
        world.server.kubectl(&["delete", "mutatingwebhookconfiguration", NAME]).unwrap();
    }
    let said = controller.log().matches("new pods get the readiness gate").count();
    assert_eq!(said, 3, "{}", controller.log());
}

#[test]
fn pods_get_the_gate_while_certificates_change() {
    let Some(world) = World::new("pods_get_the_gate_while_certificates_change") else { return };
    world.node("n1");
    let port = free_port();
    world.create(&configuration(port));
    let address = format!("127.0.0.1:{port}");
    let life = ["--webhook-listen", &address, "--certificate-lifetime", "60s"];
    let mut controller = world.start("one", &life);
    wait("trusted", || trusted(&world));
    let mut number = 0;
    let mut next = || {
        number += 1;
        is_gated(&world, &format!("p{number}"))
    };
    wait("asked", &mut next);
    // The controller issues another certificate after 40 s and serves it after 45 s; the first one expires at 60 s.
    let served = || controller.log().matches("loaded webhook certificate").count();
    let (began, mut bundles) = (Instant::now(), vec![bundle(&world)]);
    while served() < 2 || began.elapsed() < Duration::from_secs(65) {
        assert!(next(), "{:?} after the first\n{}", began.elapsed(), controller.log());
        std::thread::sleep(Duration::from_millis(200));
        let now = bundle(&world);
        if bundles.last() != Some(&now) {
            bundles.push(now);
        }
        assert!(
            began.elapsed() < Duration::from_mins(3),
            "no other certificate\n{}",
            controller.log()
        );
    }
    println!("{number} pods, {} bundles, {} certificates", bundles.len(), served());
    assert!(bundles.len() >= 2);

    // The API server creates pods also while no webhook answers.
    controller.end(Signal::SIGKILL);
    assert_eq!(gates(&world, "without"), Vec::<String>::new());
}
