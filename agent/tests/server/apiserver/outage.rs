//! The API server stops, hangs, is unreachable, loses its watch history or rejects the credentials: enforcement stays
//! unchanged, and the agent is in sync again afterwards.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::apiserver::world::{World, allow_from, complains, isolated, kind};

/// Starts three pods; the server admits its friend only.
fn guarded(test: &str) -> Option<World> {
    let mut world = World::new(test)?;
    ["server", "friend", "stranger"].into_iter().for_each(|name| world.add(name));
    world.policy("server", allow_from("server", "friend"));
    world.start_agent();
    world.wait("isolating the server", |status| isolated(status, "server"));
    as_before(&world);
    Some(world)
}

#[track_caller]
fn as_before(world: &World) {
    assert!(world.reaches("friend", "server"), "what is allowed");
    assert!(!world.reaches("stranger", "server"), "what is denied");
}

fn failing(world: &mut World, words: &str) {
    world.wait("complaining", |status| complains(status, words));
}

#[test]
fn an_api_server_that_goes_and_comes_back() {
    let Some(mut world) = guarded("an_api_server_that_goes_and_comes_back") else { return };
    world.server.end(Signal::SIGKILL);
    failing(&mut world, "cannot watch pods: https://");
    as_before(&world);
    // An agent that starts in the outage keeps the enforced state until the outage ends.
    let (agent, node) = (world.agent.as_mut().unwrap(), &world.node);
    agent.restart(node).unwrap();
    let unreachable = |status: &serde_json::Value| complains(status, "cannot list pods: https://");
    agent.wait_for("complaining", crate::apiserver::world::PATIENCE, unreachable).unwrap();
    let status = agent.status().unwrap();
    assert_eq!(status["in_sync"], false, "{status}");
    as_before(&world);
    world.server.restart().unwrap();
    world.wait("isolating the server", |status| isolated(status, "server"));
    as_before(&world);
    world.without_policy("server");
    world.becomes("stranger", "server", true);
}

/// Checks for one log line at the start of an outage and one at its end, however many kinds notice it.
#[test]
fn an_outage_is_logged_once() {
    let Some(mut world) = guarded("an_outage_is_logged_once") else { return };
    world.server.end(Signal::SIGKILL);
    failing(&mut world, "Connection refused");
    let down = outage();
    std::thread::sleep(down);
    let since = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    world.server.restart().unwrap();
    let up = std::time::Instant::now();
    world.wait("following every kind", |status| {
        let kinds = status["source"]["kinds"].as_array().unwrap();
        let mut served = kinds.iter().filter(|kind| kind["served"] == true);
        served.all(|kind| kind["last_event"].as_u64().is_some_and(|last| last >= since))
    });
    println!("after {down:?} every kind is followed {:?} after the server is ready", up.elapsed());
    let log = world.agent().log();
    let lines = |words: &str| log.lines().filter(|line| line.contains(words)).count();
    assert_eq!(lines("the last known state stays in force"), 1, "{log}");
    assert_eq!(lines("is reachable again"), 1, "{log}");
    assert_eq!(lines("client error"), 0, "{log}");
    as_before(&world);
}

/// Returns the length of an outage: `NETPOLD_OUTAGE_SECONDS`, else 1 s.
fn outage() -> Duration {
    let seconds = std::env::var("NETPOLD_OUTAGE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1))
}

/// The kubelet starts a pod scheduled before the outage and cannot write its status.
#[test]
fn a_pod_that_comes_while_the_server_is_away() {
    let test = "a_pod_that_comes_while_the_server_is_away";
    let Some(mut world) = guarded(test) else { return };
    world.policy("late", allow_from("late", "friend"));
    let uid = world.schedule("late");
    world.wait("knowing both", |status| {
        kind(status, "pods")["objects"] == 4
            && kind(status, "networkpolicies.networking.k8s.io")["objects"] == 2
    });
    world.server.end(Signal::SIGKILL);
    failing(&mut world, "cannot watch pods: https://");
    world.make_sandbox("late", &uid);
    world.wait("isolating the late pod", |status| isolated(status, "late"));
    assert!(world.reaches("friend", "late"), "what is allowed");
    assert!(!world.reaches("stranger", "late"), "what is denied");
    // The restarted server still has no address of the pod: the endpoint stays as it is.
    world.server.restart().unwrap();
    world.wait("without problems", |status| !complains(status, "cannot watch"));
    assert!(world.reaches("friend", "late") && !world.reaches("stranger", "late"));
    as_before(&world);
}

/// Partitions the network while objects are deleted and watch history is compacted.
#[test]
fn what_was_missed_is_noticed() {
    let Some(mut world) = guarded("what_was_missed_is_noticed") else { return };
    world.partition(true);
    failing(&mut world, "has been silent for");
    as_before(&world);
    world.without_policy("server");
    world.policy("stranger", allow_from("stranger", "friend"));
    world.delete("friend");
    world.add("friend");
    world.server.etcd().compact().unwrap();
    assert!(!world.reaches("stranger", "server"), "nothing is known of it yet");
    let before = world.agent().status().unwrap();
    // The server resumes old watches from its own memory, so it is restarted too.
    world.server.end(Signal::SIGKILL);
    world.server.restart().unwrap();
    world.partition(false);
    world.becomes("stranger", "server", true);
    world.wait("isolating the other pod", |status| isolated(status, "stranger"));
    // Each kind has its own watch: the agent may receive the new pod after the policy.
    world.becomes("friend", "stranger", true);
    assert!(!world.reaches("server", "stranger"));
    let after = world.wait("without problems", |status| !complains(status, "cannot watch"));
    let lists = |status, name| kind(status, name)["lists"].as_u64().unwrap();
    let name = "networkpolicies.networking.k8s.io";
    assert!(lists(&after, name) > lists(&before, name), "410 Gone, so listed again");
    assert_eq!(kind(&after, name)["objects"], 1, "the policy that went in the meantime is gone");
}

/// The server and its etcd are frozen: connections stay open, and no data arrives.
#[test]
fn an_api_server_that_hangs() {
    let Some(mut world) = guarded("an_api_server_that_hangs") else { return };
    world.server.freeze();
    failing(&mut world, "has been silent for");
    as_before(&world);
    world.server.thaw();
    world.without_policy("server");
    world.becomes("stranger", "server", true);
    world.wait("without problems", |status| !complains(status, "silent"));
    // A slow server: it runs a tenth of the time.
    std::thread::scope(|scope| {
        let (done, stop) = std::sync::mpsc::channel::<()>();
        let server = &world.server;
        scope.spawn(move || {
            while stop.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                server.freeze();
                std::thread::sleep(Duration::from_millis(450));
                server.thaw();
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        world.policy("server", allow_from("server", "friend"));
        world.becomes("stranger", "server", false);
        drop(done);
    });
    as_before(&world);
}

/// Invalidates the token and puts a new one in the token file.
#[test]
fn a_token_that_is_replaced() {
    let Some(mut world) = guarded("a_token_that_is_replaced") else { return };
    let account = ["serviceaccount", "netpold", "-n", "netpold-system"];
    world.server.kubectl(&[&["delete"], &account[..]].concat()).unwrap();
    world.server.kubectl(&[&["create"], &account[..]].concat()).unwrap();
    // Open watches outlive the token; the restart of the server ends them.
    world.server.end(Signal::SIGTERM);
    world.server.restart().unwrap();
    failing(&mut world, "does not accept the credentials");
    as_before(&world);
    world.policy("server", allow_from("server", "stranger"));
    world.rotate_token();
    world.becomes("stranger", "server", true);
    world.becomes("friend", "server", false);
    world.wait("without problems", |status| !complains(status, "credentials"));
}
