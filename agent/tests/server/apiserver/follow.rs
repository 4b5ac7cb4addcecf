//! Enforcement follows objects that are created, edited and deleted.

use serde_json::json;

use crate::apiserver::world::{NAMESPACE, World, allow_from, complains, isolated, kind};

#[test]
fn enforcement_follows_the_objects_of_a_cluster() {
    let Some(mut world) = World::new("enforcement_follows_the_objects_of_a_cluster") else {
        return;
    };
    ["server", "friend", "stranger"].into_iter().for_each(|name| world.add(name));
    world.start_agent();
    // Kubernetes 1.20 does not serve EndpointSlices in v1; the agent follows all other kinds.
    let status = world.wait("in sync", |_| true);
    let slices = kind(&status, "endpointslices.discovery.k8s.io");
    let versions = world.server.kubectl(&["api-versions"]).unwrap();
    let serves = versions.lines().any(|version| version == "discovery.k8s.io/v1");
    assert_eq!((&slices["served"], &slices["in_sync"]), (&json!(serves), &json!(true)), "{slices}");
    assert!(serves || complains(&status, "does not serve it; it counts as empty"), "{status}");
    assert!(world.reaches("stranger", "server"), "no policy yet");

    world.policy("server", allow_from("server", "friend"));
    world.wait("isolating the server", |status| isolated(status, "server"));
    assert!(world.reaches("friend", "server"));
    assert!(!world.reaches("stranger", "server"));

    // The stranger gets the label of the friend, then loses it again.
    let label = |value: &str| {
        let arguments = ["label", "pod", "stranger", "-n", NAMESPACE, "--overwrite", value];
        world.server.kubectl(&arguments).unwrap();
    };
    label("app=friend");
    world.becomes("stranger", "server", true);
    label("app=stranger");
    world.becomes("stranger", "server", false);

    // The policies also cover a pod that is created later, with a new interface.
    world.add("late");
    world.policy("server", allow_from("server", "late"));
    world.becomes("late", "server", true);
    world.becomes("friend", "server", false);
    world.policy("late", json!({ "podSelector": { "matchLabels": { "app": "late" } } }));
    world.becomes("friend", "late", false);
    world.delete("late");
    world.wait("without the pod", |status| !status.to_string().contains("\"late\""));

    world.without_policy("server");
    world.becomes("stranger", "server", true);
}

/// Runs the agent as in a pod: API server address from the environment, token and certificate authority from the
/// files that a kubelet mounts. The files are in a mount namespace of the agent.
#[test]
fn an_agent_finds_the_cluster_it_runs_in() {
    use std::os::unix::fs::PermissionsExt;
    let Some(mut world) = World::new("an_agent_finds_the_cluster_it_runs_in") else { return };
    ["server", "client"].into_iter().for_each(|name| world.add(name));
    let directory = world.server.directory().join("serviceaccount");
    std::fs::create_dir(&directory).unwrap();
    std::fs::copy(world.token_file(), directory.join("token")).unwrap();
    std::fs::copy(world.server.certificate(), directory.join("ca.crt")).unwrap();
    std::fs::write(directory.join("namespace"), "netpold-system").unwrap();
    let script = format!(
        "#!/bin/sh\n\
         [ \"$1\" = run ] || exec {netpold} \"$@\"\n\
         export KUBERNETES_SERVICE_HOST={host} KUBERNETES_SERVICE_PORT={port}\n\
         exec unshare --mount sh -c '\n\
         mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io/serviceaccount &&\n\
         mount --bind {files} /run/secrets/kubernetes.io/serviceaccount && exec \"$@\"' sh \
         {netpold} \"$@\"\n",
        netpold = crate::apiserver::world::binary(),
        host = world.server.address(),
        port = world.server.port(),
        files = directory.display(),
    );
    let binary = world.server.directory().join("netpold");
    std::fs::write(&binary, script).unwrap();
    std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o755)).unwrap();
    world.policy("server", json!({ "podSelector": { "matchLabels": { "app": "server" } } }));
    world.start_agent_with(&["--watch-nodes", "own"], binary);
    let status = world.wait("isolating the server", |status| isolated(status, "server"));
    assert!(!world.reaches("client", "server") && world.reaches("server", "client"));
    assert_eq!(kind(&status, "nodes")["objects"], 1);
}
