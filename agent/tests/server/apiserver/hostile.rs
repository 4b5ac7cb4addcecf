//! Objects of a tenant that the whole-object decoder rejects: policies of all other namespaces stay enforced.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::apiserver::world::{World, allow_from, complains, isolated, kind};

/// Second tenant, with the rights of the role `edit` in one namespace.
const TENANT: &str = "mallory";
const POLICIES: &str = "networkpolicies.networking.k8s.io";

/// Returns entries of `managedFields` that Kubernetes 1.20 accepts from a tenant. The server renders the times in
/// UTC, where they fall in the years 10000 and -1.
fn entries() -> [(&'static str, String); 4] {
    let fields = r#""fieldsType":"FieldsV1","fieldsV1":{"f:a":{}}"#;
    let deep = [r#"{"f:a":"#.repeat(200), "{}".into(), "}".repeat(200)].concat();
    [
        ("late", format!(r#""time":"9999-12-31T23:59:59-14:00",{fields}"#)),
        ("zero", format!(r#""time":"0000-01-01T00:00:00Z",{fields}"#)),
        ("early", format!(r#""time":"0000-01-01T00:00:00+14:00",{fields}"#)),
        (
            "deep",
            format!(r#""time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{deep}"#),
        ),
    ]
}

fn create_tenant(world: &World) {
    world.server.create_namespace(TENANT).unwrap();
    // A controller that does not run here aggregates `edit`, so the test binds one of the aggregated roles.
    let role = "--clusterrole=system:aggregate-to-edit";
    let user = format!("--user={TENANT}");
    world.server.kubectl(&["create", "rolebinding", "edit", "-n", TENANT, role, &user]).unwrap();
}

/// Creates one object of each kind with the entry, as the tenant. Returns the entries as the server renders them.
fn create_hostile(world: &World, name: &str, entry: &str) -> String {
    let mut made = String::new();
    for (path, version, kind, spec) in [
        (
            "/api/v1",
            "v1",
            "Pod",
            json!({ "containers": [{ "name": "c", "image": "example/main" }] }),
        ),
        ("/api/v1", "v1", "Service", json!({ "ports": [{ "port": 80 }] })),
        (
            "/apis/networking.k8s.io/v1",
            "networking.k8s.io/v1",
            "NetworkPolicy",
            json!({ "podSelector": {} }),
        ),
    ] {
        let resource = kind.to_lowercase().replace("policy", "policie") + "s";
        let object = format!(
            r#"{{"apiVersion":"{version}","kind":"{kind}","metadata":{{"name":"{name}",
                "managedFields":[{{"manager":"m","operation":"Update","apiVersion":"{version}",
                {entry}}}]}},"spec":{spec}}}"#
        );
        let path = format!("{path}/namespaces/{TENANT}/{resource}");
        let user = format!("--as={TENANT}");
        let create = [user.as_str(), "create", "--raw", &path, "-f", "-"];
        made += &world.server.kubectl_with(&create, &object).unwrap();
    }
    made
}

fn known(status: &Value, policies: usize, pods: usize, services: usize) -> bool {
    [(POLICIES, policies), ("pods", pods), ("services", services)].iter().all(|(name, count)| {
        let kind = kind(status, name);
        kind["objects"] == *count && kind["undecoded"] == 0
    })
}

#[test]
fn one_tenants_objects_stop_nobody_elses_policy() {
    let Some(mut world) = World::new("one_tenants_objects_stop_nobody_elses_policy") else {
        return;
    };
    ["server", "friend", "stranger"].into_iter().for_each(|name| world.add(name));
    create_tenant(&world);
    world.policy("server", allow_from("server", "friend"));
    world.start_agent();
    world.wait("isolating the server", |status| isolated(status, "server"));
    let before = follows_the_others(&mut world, "before", 0);
    // The running agent receives the objects by its watches.
    let mut made = String::new();
    for (name, entry) in entries() {
        made += &create_hostile(&world, name, &entry);
    }
    for rendered in ["\"10000-01-01T", "\"0000-01-01T", "\"-0001-12-31T", &r#"{"f:a":"#.repeat(199)]
    {
        assert_eq!(made.matches(rendered).count(), 3, "{rendered}: {made}");
    }
    let beside = follows_the_others(&mut world, "watching", entries().len());
    // A restarted agent receives the objects with its first lists.
    let (agent, node) = (world.agent.as_mut().unwrap(), &world.node);
    agent.restart(node).unwrap();
    world.wait("isolating the server", |status| isolated(status, "server"));
    let fresh = follows_the_others(&mut world, "fresh", entries().len());
    println!("an edit takes {before:.1?}, beside hostile objects {beside:.1?} and {fresh:.1?}");
}

/// Checks that policies, pods and Services of another namespace are listed and enforced. Returns the time of one
/// edit, including kubectl.
fn follows_the_others(world: &mut World, when: &str, hostile: usize) -> Duration {
    world.policy("server", allow_from("server", "friend"));
    world.becomes("stranger", "server", false);
    let began = Instant::now();
    world.policy("server", allow_from("server", "stranger"));
    world.becomes("stranger", "server", true);
    world.becomes("friend", "server", false);
    let edited = began.elapsed();
    let late = format!("late-{when}");
    world.add(&late);
    world.policy(&late, allow_from(&late, "friend"));
    world.becomes("stranger", &late, false);
    // Its veth is closed until policy is in force.
    world.becomes("friend", &late, true);
    let port = [
        "create",
        "service",
        "clusterip",
        &late,
        "--tcp=80",
        "-n",
        crate::apiserver::world::NAMESPACE,
    ];
    world.server.kubectl(&port).unwrap();
    let count = |kind: &str| {
        let said = world.server.kubectl(&[
            "get",
            kind,
            "-n",
            crate::apiserver::world::NAMESPACE,
            "-o",
            "name",
        ]);
        said.unwrap().lines().count()
    };
    let (policies, pods, services) = (count("networkpolicy"), count("pod"), count("service"));
    // The Service `default/kubernetes` counts too.
    let all = (hostile + policies, hostile + pods, hostile + services + 1);
    let status = world.wait("knowing all", |status| known(status, all.0, all.1, all.2));
    assert!(!complains(&status, "invalid answer") && !complains(&status, "decoded"), "{status}");
    edited
}
