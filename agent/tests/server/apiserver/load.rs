//! Thousands of policies and pods created while traffic runs.
//!
//! The default scale is a tenth of `NETPOLD_SCALE=full` (5,000 policies and 20,000 pods), which takes an API server
//! on two processors minutes to accept.

mod peers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use netpold_testbed::ProbeProtocol;
use serde_json::{Value, json};

use crate::apiserver::latency::client;
use crate::apiserver::world::{PATIENCE, PORT, World, allow_from, isolated, kind};

/// Number of requests in flight.
const AT_ONCE: usize = 32;
/// Number of namespaces that the pods are spread over.
const NAMESPACES: usize = 20;

#[derive(Clone, Copy)]
struct Scale {
    policies: usize,
    pods: usize,
}

impl Scale {
    fn of_environment() -> Self {
        let full = std::env::var("NETPOLD_SCALE").is_ok_and(|scale| scale == "full");
        let part = if full { 1 } else { 10 };
        Self { policies: 5_000 / part, pods: 20_000 / part }
    }
}

#[test]
fn a_cluster_fills_while_traffic_runs() {
    let Some(mut world) = World::new("a_cluster_fills_while_traffic_runs") else { return };
    ["server", "friend", "stranger"].into_iter().for_each(|name| world.add(name));
    world.policy("server", allow_from("server", "friend"));
    world.start_agent();
    world.wait("isolating the server", |status| isolated(status, "server"));
    let scale = Scale::of_environment();
    let (began, done) = (Instant::now(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| keep_talking(&world, &done));
        let filled = world.server.inside(|| fill(&world, scale)).unwrap();
        done.store(true, Ordering::Relaxed);
        filled.unwrap();
        let (answered, tried) = traffic.join().unwrap();
        println!("{answered} pings answered, {tried} denied connections tried meanwhile");
    });
    let created = began.elapsed();
    let pods = u64::try_from(scale.pods).unwrap() + 3;
    let policies = u64::try_from(scale.policies).unwrap() + 1;
    world.wait("knowing everything", |status| {
        kind(status, "pods")["objects"] == pods
            && kind(status, "networkpolicies.networking.k8s.io")["objects"] == policies
    });
    let followed = began.elapsed();
    // An agent starts with all objects present.
    let (agent, node) = (world.agent.as_mut().unwrap(), &world.node);
    agent.restart(node).unwrap();
    let restarted = Instant::now();
    agent.wait_enforced(PATIENCE).unwrap();
    println!(
        "{policies} policies and {pods} pods: created in {created:.1?}, known after {followed:.1?}; \
         a new agent enforces after {:.1?}, {} MiB resident",
        restarted.elapsed(),
        resident(agent.pid()) / 1024
    );
    assert!(world.reaches("friend", "server") && !world.reaches("stranger", "server"));
    world.without_policy("server");
    world.becomes("stranger", "server", true);
}

/// Checks until `done` that every ping of an allowed connection is answered and that no denied connection opens.
fn keep_talking(world: &World, done: &AtomicBool) -> (u32, u32) {
    let (server, friend) = (world.pod("server").ip4().unwrap(), world.pod("friend"));
    let mut flow = friend.open_flow(ProbeProtocol::Tcp, (server, PORT).into(), PATIENCE).unwrap();
    let (mut answered, mut tried) = (0, 0);
    while !done.load(Ordering::Relaxed) {
        assert!(flow.ping(PATIENCE), "an allowed flow goes on");
        answered += 1;
        let moment = Duration::from_millis(50);
        let result = world.pod("stranger").probe(ProbeProtocol::Tcp, server, PORT, moment);
        assert!(result.dropped(), "what is denied stays denied: {result}");
        tried += 1;
    }
    (answered, tried)
}

/// Creates all objects, with many requests in flight.
fn fill(world: &World, scale: Scale) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = client(world).await;
        let namespaces = Api::<Namespace>::all(client.clone());
        for number in 0..NAMESPACES {
            let object = json!({ "metadata": { "name": namespace(number), "labels": { "team": format!("t{}", number % 4) } } });
            namespaces.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        }
        let all = stream::iter(0..scale.policies.max(scale.pods)).map(|number| {
            let client = client.clone();
            async move {
                if number < scale.policies {
                    create_policy(&client, number).await?;
                }
                if number < scale.pods {
                    create_pod(&client, number).await?;
                }
                anyhow::Ok(())
            }
        });
        all.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
        anyhow::Ok(())
    })
}

fn namespace(number: usize) -> String {
    format!("fill-{}", number % NAMESPACES)
}

async fn create_policy(client: &Client, number: usize) -> anyhow::Result<()> {
    let api = Api::<NetworkPolicy>::namespaced(client.clone(), &namespace(number));
    let mut spec = allow_from(&format!("a{}", number % 50), &format!("a{}", number % 70));
    spec["ingress"][0]["ports"] = json!([{ "port": number % 60_000 + 1 }]);
    let object = json!({ "metadata": { "name": format!("p{number}") }, "spec": spec });
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

async fn create_pod(client: &Client, number: usize) -> anyhow::Result<()> {
    let api = Api::<Pod>::namespaced(client.clone(), &namespace(number));
    let name = format!("pod{number}");
    let object: Value = json!({
        "metadata": { "name": name, "labels": { "app": format!("a{}", number % 70) } },
        "spec": {
            "nodeName": format!("other{}", number % 100),
            "containers": [{ "name": "main", "image": "example/main" }],
        },
    });
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    let address = format!("10.{}.{}.{}", 64 + number / 65_536, number / 256 % 256, number % 256);
    let status = json!({ "status": { "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }] } });
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await?;
    Ok(())
}

/// Returns `VmRSS` in KiB.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
