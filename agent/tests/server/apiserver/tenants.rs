//! Rejected, failing or expensive writes for one tenant's objects do not delay writes for another tenant.

use std::time::{Duration, Instant};

use netpold_testbed::Credential;
use serde_json::{Value, json};

use crate::apiserver::in_force::{eventually, gate};
use crate::apiserver::world::{NAMESPACE, USER, World, allow_from, binary};

/// Namespace that sorts before [`NAMESPACE`].
const TENANT: &str = "mallory";

/// Makes the API server answer 500 to writes of a resource in a namespace, by a webhook of the tenant without a
/// backend.
fn break_writes(world: &World, namespace: &str, (group, resource): (&str, &str), operation: &str) {
    world
        .server
        .kubectl(&["label", "namespace", namespace, &format!("broken={operation}")])
        .unwrap();
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": format!("broken-{namespace}") },
        "webhooks": [{
            "name": "broken.example.com",
            "clientConfig": { "url": "https://127.0.0.1:1/nobody" },
            "rules": [{
                "operations": [operation], "apiGroups": [group], "apiVersions": ["v1"], "resources": [resource],
            }],
            "namespaceSelector": { "matchLabels": { "broken": operation } },
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "timeoutSeconds": 1,
        }],
    });
    world.server.apply(&webhook.to_string()).unwrap();
}

/// Returns the object of a pod on the node, without a sandbox.
fn pod(namespace: &str, name: &str, host_network: bool) -> Value {
    let containers = json!([{ "name": "main", "image": "example/main" }]);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "namespace": namespace, "name": name, "labels": { "app": name } },
        "spec": { "nodeName": "n1", "hostNetwork": host_network, "containers": containers },
    })
}

fn create_all(world: &World, items: &[Value]) {
    items.iter().for_each(|item| world.server.create(item).unwrap());
}

/// Returns an object, or null; with an empty name, a list.
fn get(world: &World, kind: &str, namespace: &str, name: &str) -> Value {
    world.server.get(kind, namespace, name).unwrap().unwrap_or_default()
}

#[test]
fn an_error_for_one_pods_status_pauses_no_other() {
    const TEST: &str = "an_error_for_one_pods_status_pauses_no_other";
    let Some(mut world) = World::new(TEST) else { return };
    world.server.create_namespace(TENANT).unwrap();
    break_writes(&world, TENANT, ("", "pods/status"), "UPDATE");
    // NetworkPolicies do not apply to these pods: their condition is True once the agent has their objects.
    let gated = |namespace: &str, name: &str| {
        let mut pod = pod(namespace, name, true);
        gate(&mut pod);
        pod
    };
    let broken: Vec<Value> = (0..20).map(|n| gated(TENANT, &format!("broken-{n}"))).collect();
    create_all(&world, &broken);
    world.start_agent();
    let failed = |world: &World| {
        let requests = world.server.requests("").unwrap();
        let failed = requests.iter().filter(|it| it.resource == "pods/status" && it.code == 500);
        failed.count()
    };
    eventually(&world, "refused", || failed(&world) >= 10);
    let mut times = Vec::new();
    for number in 0..8 {
        let name = format!("good-{number}");
        create_all(&world, &[gated(NAMESPACE, &name)]);
        let began = Instant::now();
        let is_ready = || {
            let pod = get(&world, "pod", NAMESPACE, &name);
            pod["status"]["conditions"].to_string().contains("HostNetwork")
        };
        eventually(&world, "ready", is_ready);
        times.push(began.elapsed());
    }
    times.sort();
    println!("{times:.1?} beside {} errors", failed(&world));
    assert!(times[7] < Duration::from_secs(8), "{times:.1?}");
    let log = world.agent().log();
    // At most one line, logged before the first write.
    assert!(
        log.matches("cannot report enforcement to the API server").count() <= 1,
        "it is no outage\n{log}"
    );
    // The conditions are written as soon as the webhook is removed.
    let mend = ["delete", "validatingwebhookconfiguration", &format!("broken-{TENANT}")];
    world.server.kubectl(&mend).unwrap();
    eventually(&world, "all ready", || {
        let pods = get(&world, "pod", TENANT, "");
        let pods = pods["items"].as_array().unwrap();
        pods.iter().all(|pod| pod["status"]["conditions"].to_string().contains("HostNetwork"))
    });
}

#[test]
fn long_names_crowds_and_refusals_hide_no_policy_from_its_owner() {
    const TEST: &str = "long_names_crowds_and_refusals_hide_no_policy_from_its_owner";
    let Some(mut world) = World::new(TEST) else { return };
    let crowd: Vec<String> = (0..110).map(|number| format!("p{number:03}")).collect();
    let long = "l".repeat(253);
    let all: [(&str, &[String]); 4] = [
        ("a-crowd", &crowd),
        ("b-refused", &["web".to_owned()]),
        ("c-long", std::slice::from_ref(&long)),
        ("z-last", &["web".to_owned()]),
    ];
    for (namespace, names) in all {
        world.server.create_namespace(namespace).unwrap();
        // No packet on the wire has an IPv4-mapped address.
        let mapped = json!({ "ipBlock": { "cidr": "::ffff:10.0.0.0/104" } });
        let policy = |name: &String| {
            json!({
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": { "namespace": namespace, "name": name },
                "spec": { "podSelector": {}, "ingress": [{ "from": [mapped] }] },
            })
        };
        world.store(&names.iter().map(policy).collect::<Vec<_>>());
        create_all(&world, &[pod(namespace, "web", false)]);
    }
    break_writes(&world, "b-refused", ("events.k8s.io", "events"), "CREATE");
    let began = Instant::now();
    world.start_agent();
    let of = |world: &World, namespace: &str| {
        let events = get(world, "event", namespace, "");
        events["items"].as_array().unwrap().clone()
    };
    for namespace in ["a-crowd", "c-long", "z-last"] {
        eventually(&world, namespace, || !of(&world, namespace).is_empty());
        println!("{namespace}: an Event after {:.1?}", began.elapsed());
    }
    let event = &of(&world, "c-long")[0];
    assert_eq!(event["regarding"]["name"], long);
    assert_eq!(event["reason"], "PolicyNotHonoured");
    assert_eq!(of(&world, "b-refused"), Vec::<Value>::new());
    // The namespace with many policies gets its Events too, one every two or three seconds.
    eventually(&world, "more of the crowd", || of(&world, "a-crowd").len() >= 10);
}

/// Reports do not contain all policies: with this number of policies, these would be 12 reports a minute of 92 kB each.
#[test]
fn edits_of_one_of_many_policies_write_little() {
    const POLICIES: usize = 400;
    const IDLE: Duration = Duration::from_secs(20);
    const WATCHED: Duration = Duration::from_secs(40);
    let Some(mut world) = World::new("edits_of_one_of_many_policies_write_little") else { return };
    world.server.create_namespace(TENANT).unwrap();
    let policy = |number: usize| {
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": { "namespace": TENANT, "name": format!("policy-{number:03}") },
            "spec": { "podSelector": {} },
        })
    };
    let items: Vec<Value> = (0..POLICIES).map(policy).chain([pod(TENANT, "web", false)]).collect();
    create_all(&world, &items);
    ["server", "friend"].into_iter().for_each(|name| world.add(name));
    world.policy("server", allow_from("server", "friend"));
    let meter = world.server.meter().unwrap();
    let access = Credential::TokenFile(&world.token_file());
    let kubeconfig =
        world.server.write_kubeconfig_to(&meter.url(), "metered.kubeconfig", &access).unwrap();
    let arguments = [
        "--kubeconfig",
        kubeconfig.to_str().unwrap(),
        "--log",
        "info,netpold_engine::publish=debug",
    ];
    world.start_agent_with(&arguments, binary().into());

    let generation = |world: &World, namespace: &str, name: &str| {
        get(world, "networkpolicy", namespace, name)["metadata"]["generation"].clone()
    };
    let is_reported = |world: &World, namespace: &str, name: &str| {
        let expected = generation(world, namespace, name);
        let report = report(world);
        report["policies"].as_array().unwrap().iter().any(|it| {
            it["namespace"] == namespace
                && it["name"] == name
                && it["observedGeneration"] == expected
        })
    };
    eventually(&world, "a report", || {
        report(&world)["policies"].as_array().is_some_and(|all| all.len() == POLICIES + 1)
    });
    let stored = report(&world).to_string().len();
    let reports = |world: &World| {
        let requests = world.server.requests(USER).unwrap();
        requests.iter().filter(|it| it.resource == "nodepolicystatuses/status").count()
    };
    // Baseline: the agents of the tests restart their watches every few seconds.
    let before = meter.passed().sent;
    std::thread::sleep(IDLE);
    let idle = (meter.passed().sent - before) as f64 / IDLE.as_secs_f64();
    let (before, reports_before, began) = (meter.passed().sent, reports(&world), Instant::now());
    let (mut edits, mut late) = (0, Vec::new());
    while began.elapsed() < WATCHED {
        let types = if edits % 2 == 0 { "Egress" } else { "Ingress" };
        let patch = json!({ "spec": { "policyTypes": [types] } }).to_string();
        let name = format!("policy-{:03}", edits * 7 % POLICIES);
        world
            .server
            .kubectl(&["patch", "networkpolicy", &name, "-n", TENANT, "-p", &patch])
            .unwrap();
        edits += 1;
        if edits % 8 == 0 {
            let to = if edits % 16 == 0 { "friend" } else { "nobody" };
            world.policy("server", allow_from("server", to));
            let edited = Instant::now();
            eventually(&world, "the report of the other tenant's edit", || {
                is_reported(&world, NAMESPACE, "server")
            });
            late.push(edited.elapsed());
        }
        std::thread::sleep(Duration::from_millis(800));
    }
    let took = began.elapsed();
    let sent = (meter.passed().sent - before) as f64 - idle * took.as_secs_f64();
    let written = reports(&world) - reports_before;
    let minute = |bytes: f64| (bytes / took.as_secs_f64() * 60.0) as i64;
    println!(
        "{edits} edits in {took:.1?}: {written} reports; a minute {} bytes sent, {} stored; the other's edits {late:.1?}",
        minute(sent),
        minute((written * stored) as f64)
    );
    assert!(edits >= 8 && written >= 1);
    let log = || world.agent.as_ref().map(netpold_testbed::Agent::log).unwrap_or_default();
    assert!(minute(sent) < 100_000, "{} bytes sent a minute\n{}", minute(sent), log());
    assert!(late.iter().all(|late| *late < Duration::from_secs(20)), "{late:?}");
    everything_is_reported_in_the_end(&world, POLICIES + 1);
}

fn report(world: &World) -> Value {
    get(world, "nodepolicystatus", "", "n1")["status"].clone()
}

/// Checks that the report matches the server's policies, and that the agent rewrites a report changed by another
/// client.
fn everything_is_reported_in_the_end(world: &World, count: usize) {
    // The report names every policy, with the generation that the server has.
    eventually(world, "all reported", || {
        let report = report(world);
        let policies = get(world, "networkpolicy", "", "");
        let key = |metadata: &Value| [metadata["namespace"].clone(), metadata["name"].clone()];
        let printed: Vec<_> = report["policies"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| (key(it), it["observedGeneration"].clone()))
            .collect();
        let mut expected: Vec<_> = policies["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| (key(&it["metadata"]), it["metadata"]["generation"].clone()))
            .collect();
        expected.sort_by_key(|(key, _)| key.each_ref().map(|it| it.as_str().unwrap().to_owned()));
        printed == expected
    });
    // The agent rewrites a list that another client has changed.
    let empty = json!({ "status": { "policies": [] } }).to_string();
    let clear =
        ["patch", "nodepolicystatus", "n1", "--subresource=status", "--type=merge", "-p", &empty];
    world.server.kubectl(&clear).unwrap();
    world.policy("server", allow_from("server", "somebody"));
    eventually(world, "the complete list", || {
        report(world)["policies"].as_array().is_some_and(|all| all.len() == count)
    });
}
