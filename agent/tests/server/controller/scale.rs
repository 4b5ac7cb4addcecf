//! Cost of a controller for the API server and for the node it runs on, in a cluster of 100 nodes.

use std::future::Future;
use std::process::Command;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Request;
use kube::{Client, Config};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::controller::world::{Controller, USER, World};

const NODES: usize = 100;
const NAMESPACES: usize = 100;
const PODS: usize = 20_000;
const POLICIES: usize = 5_000;
/// Number of apps in a namespace, and of policies: each policy selects pods on four nodes.
const APPS: usize = POLICIES / NAMESPACES;
/// Requests in flight.
const AT_ONCE: usize = 24;
/// Time over which idle cost is measured.
const IDLE: Duration = Duration::from_mins(1);
/// Deadline of the whole test.
const LONGEST: Duration = Duration::from_mins(30);

/// Client with administrator rights, which plays the agents.
struct Admin(Client);

impl Admin {
    async fn new(world: &World) -> Self {
        let file = Kubeconfig::read_from(world.server.admin()).unwrap();
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
        Self(Client::try_from(config.unwrap()).unwrap())
    }

    async fn send(&self, method: &str, path: &str, body: &Value) {
        let kind =
            if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request =
            hyper::Request::builder().method(method).uri(path).header("Content-Type", kind);
        let request = request.body(body.to_string().into_bytes()).unwrap();
        self.0.request::<Value>(request).await.unwrap();
    }

    async fn get(&self, path: &str) -> Value {
        let request = Request::new(path).list(&kube::api::ListParams::default()).unwrap();
        self.0.request(request).await.unwrap()
    }
}

/// Runs all futures, [`AT_ONCE`] at a time.
async fn all<F: Future<Output = ()>>(what: impl Iterator<Item = F>) {
    futures::stream::iter(what).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
}

fn namespace(number: usize) -> String {
    format!("ns{:03}", number % NAMESPACES)
}

fn pod(number: usize) -> (String, Value) {
    let (namespace, app) = (namespace(number), format!("app{}", number / NAMESPACES % APPS));
    let object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": format!("pod{number}"), "labels": { "app": app } },
        "spec": {
            "nodeName": format!("node{}", number / 7 % NODES),
            "containers": [{ "name": "main", "image": "example/main" }],
        },
    });
    (format!("/api/v1/namespaces/{namespace}/pods"), object)
}

fn policy(number: usize) -> (String, Value) {
    let (namespace, app) = (namespace(number), format!("app{}", number / NAMESPACES % APPS));
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": format!("policy{number}") },
        "spec": { "podSelector": { "matchLabels": { "app": app } }, "ingress": [{}] },
    });
    (format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"), object)
}

const REPORTS: &str = "/apis/netpold.io/v1alpha1/nodepolicystatuses";

/// Returns the report of each node: every policy that selects one of its pods is in force.
fn reports(policies: &Value) -> Vec<Value> {
    let mut nodes = vec![std::collections::BTreeMap::new(); NODES];
    for policy in policies["items"].as_array().unwrap() {
        let name = policy["metadata"]["name"].as_str().unwrap();
        let number: usize = name.trim_start_matches("policy").parse().unwrap();
        // Pods with the namespace and the app of the policy.
        for pod in (0..PODS / POLICIES).map(|n| number + n * POLICIES) {
            let entry = json!({
                "namespace": namespace(number), "name": name, "uid": policy["metadata"]["uid"], "pods": 1,
                "observedGeneration": policy["metadata"]["generation"], "enforced": true,
            });
            nodes[pod / 7 % NODES].insert(number, entry);
        }
    }
    let entries = nodes.into_iter().map(|of| of.into_values().collect::<Vec<_>>());
    entries
        .map(|entries| json!({ "agentVersion": "0", "inSync": true, "policies": entries }))
        .collect()
}

fn renewed(mut status: Value) -> Value {
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap();
    status["renewTime"] = json!(now.to_string());
    json!({ "status": status })
}

/// Returns bytes received and sent over the open connections of a process (closed connections do not count), seconds
/// of CPU, MiB resident.
fn costs(controller: &Controller) -> [f64; 4] {
    let output = Command::new("ss").args(["-Htinp", "state", "established"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let owner = format!("pid={},", controller.pid());
    let lines: Vec<&str> = text.lines().collect();
    let mut bytes = [0.0; 2];
    for pair in lines.windows(2).filter(|pair| pair[0].contains(&owner)) {
        for (total, name) in bytes.iter_mut().zip(["bytes_received:", "bytes_sent:"]) {
            let field = pair[1].split_whitespace().find_map(|word| word.strip_prefix(name));
            *total += field.and_then(|field| field.parse::<f64>().ok()).unwrap_or_default();
        }
    }
    let read =
        |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", controller.pid())).unwrap();
    let stat = read("stat");
    let ticks: f64 =
        stat.split_whitespace().skip(13).take(2).map(|word| word.parse::<f64>().unwrap()).sum();
    let status = read("status");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident: f64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    [bytes[0], bytes[1], ticks / 100.0, resident / 1024.0]
}

/// Formats the costs since `before`.
fn cost(
    world: &World,
    controller: &Controller,
    what: &str,
    before: ([f64; 4], usize),
    since: Instant,
) -> String {
    let (took, now) = (since.elapsed().as_secs_f64(), costs(controller));
    let requests = world.server.requests(USER).unwrap().len() - before.1;
    let [received, sent, cpu] = [0, 1, 2].map(|n| (now[n] - before.0[n]).max(0.0));
    format!(
        "{what}: {took:.0} s; {requests} requests, {:.2} a second; {:.1} kB a second received, {:.1} sent; \
         {cpu:.1} s of processor; {:.0} MiB resident",
        requests as f64 / took,
        received / took / 1000.0,
        sent / took / 1000.0,
        now[3],
    )
}

fn mark(world: &World, controller: &Controller) -> ([f64; 4], usize) {
    (costs(controller), world.server.requests(USER).unwrap().len())
}

async fn enforcing(admin: &Admin) -> usize {
    let list = admin.get("/apis/netpold.io/v1alpha1/networkpolicystatuses").await;
    let is = |it: &&Value| {
        let conditions = it["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        conditions.iter().any(|it| it["type"] == "Enforcing" && it["status"] == "True")
    };
    list["items"].as_array().unwrap().iter().filter(is).count()
}

async fn wait_enforcing(admin: &Admin) {
    let deadline = Instant::now() + LONGEST;
    while enforcing(admin).await < POLICIES {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// Renews the report of each node once in 50 s.
async fn renew(admin: &Admin, reports: &[Value], time: Duration) {
    let end = Instant::now() + time;
    let mut number = 0;
    while Instant::now() < end {
        let path = format!("{REPORTS}/node{}/status", number % NODES);
        admin
            .send(
                "PATCH",
                &path,
                &renewed(json!({ "agentVersion": reports[number % NODES]["agentVersion"] })),
            )
            .await;
        number += 1;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, not a test"]
async fn a_hundred_nodes() {
    let Some(world) = World::new("a_hundred_nodes") else { return };
    let admin = Admin::new(&world).await;
    let nodes = (0..NODES).map(|n| json!({ "metadata": { "name": format!("node{n}") } }));
    let nodes: Vec<Value> = nodes.collect();
    all(nodes.iter().map(|node| admin.send("POST", "/api/v1/nodes", node))).await;
    let spaces: Vec<Value> =
        (0..NAMESPACES).map(|n| json!({ "metadata": { "name": namespace(n) } })).collect();
    all(spaces.iter().map(|space| admin.send("POST", "/api/v1/namespaces", space))).await;
    let objects: Vec<_> = (0..PODS).map(pod).chain((0..POLICIES).map(policy)).collect();
    all(objects.iter().map(|(path, object)| admin.send("POST", path, object))).await;
    let policies = admin.get("/apis/networking.k8s.io/v1/networkpolicies").await;
    let reports = reports(&policies);
    let named: Vec<Value> = (0..NODES)
        .map(|n| {
            json!({
                "apiVersion": "netpold.io/v1alpha1", "kind": "NodePolicyStatus",
                "metadata": { "name": format!("node{n}") },
            })
        })
        .collect();
    all(named.iter().map(|object| admin.send("POST", REPORTS, object))).await;
    let tell = || async {
        let told: Vec<_> = reports.iter().cloned().map(renewed).enumerate().collect();
        let tell = told.iter().map(|(n, status)| {
            let path = format!("{REPORTS}/node{n}/status");
            let admin = &admin;
            async move { admin.send("PATCH", &path, status).await }
        });
        all(tell).await;
    };
    tell().await;
    let size = renewed(reports[0].clone()).to_string().len();
    println!("{NODES} nodes, {PODS} pods, {POLICIES} policies; a report has {size} bytes");

    let controller = world.start("one", &[]);
    let (before, since) = (([0.0; 4], world.server.requests(USER).unwrap().len()), Instant::now());
    let written = async {
        wait_enforcing(&admin).await;
    };
    tokio::select! {
        () = written => {}
        () = renew(&admin, &reports, LONGEST) => {}
    }
    println!("{}", cost(&world, &controller, "the first status of each policy", before, since));

    let (before, since) = (mark(&world, &controller), Instant::now());
    renew(&admin, &reports, IDLE).await;
    println!("{}", cost(&world, &controller, "idle, reports are renewed", before, since));

    let (before, since) = (mark(&world, &controller), Instant::now());
    let (moved, others): (Vec<_>, Vec<_>) =
        ((0..1000).map(pod).collect(), (0..1000).map(|n| pod(PODS + n)).collect());
    all(moved.iter().zip(&others).map(|((path, old), (to, new))| {
        let (admin, old) = (&admin, old["metadata"]["name"].as_str().unwrap());
        let now = json!({ "gracePeriodSeconds": 0 });
        async move {
            admin.send("DELETE", &format!("{path}/{old}"), &now).await;
            admin.send("POST", to, new).await;
        }
    }))
    .await;
    renew(&admin, &reports, Duration::from_secs(20)).await;
    println!("{}", cost(&world, &controller, "1,000 pods replaced, and 20 s", before, since));
    drop(controller);

    // Cost of a restart with all statuses written.
    let controller = world.start("two", &[]);
    let (before, since) = (([0.0; 4], world.server.requests(USER).unwrap().len()), Instant::now());
    renew(&admin, &reports, Duration::from_secs(30)).await;
    println!("{}", cost(&world, &controller, "a controller starts, 30 s", before, since));
    controller.signal(Signal::SIGTERM);
}
