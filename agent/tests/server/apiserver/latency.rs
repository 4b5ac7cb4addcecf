//! Measurements, printed: latency from an object's creation through the API to its effect on packets, and a rollout
//! alongside traffic.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, DeleteParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use netpold_testbed::processor_time;
use serde_json::{Value, json};

use crate::apiserver::world::{NAMESPACE, PATIENCE, World, isolated};

const ROUNDS: usize = 20;
/// Interval between packets: the resolution of the figures.
const PACE: Duration = Duration::from_micros(200);
/// Time without a packet after which the flow counts as denied.
const SILENCE: Duration = Duration::from_millis(300);
/// Port of the agent's metrics.
const LISTEN: u16 = 9899;
/// Destination port of the flows.
const PORT: u16 = 4000;

fn socket(world: &World, pod: &str, port: u16) -> UdpSocket {
    let pod = world.pod(pod);
    let address = SocketAddr::new(pod.ip4().unwrap(), port);
    pod.run(|| UdpSocket::bind(address)).unwrap().unwrap()
}

/// Returns the agent's metrics by name and labels.
fn metrics(world: &World) -> BTreeMap<String, f64> {
    let exchange = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, LISTEN))?;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: netpold\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    let answer = world.node.run(exchange).unwrap().unwrap();
    let samples = answer.lines().filter(|line| line.starts_with("netpold_"));
    let samples = samples.filter_map(|line| line.rsplit_once(' '));
    samples.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

/// Returns the increase of a metric.
fn more(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>, name: &str) -> f64 {
    let of = |metrics: &BTreeMap<String, f64>| metrics.get(name).copied().unwrap();
    of(after) - of(before)
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Formats minimum, median and maximum.
fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    format!("{:.1} / {:.1} / {:.1}", values[0], values[values.len() / 2], values[values.len() - 1])
}

/// Returns a client with administrator rights.
pub(crate) async fn client(world: &World) -> Client {
    let kubeconfig = Kubeconfig::read_from(world.server.admin()).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    Client::try_from(config).unwrap()
}

/// Stream of packets that carry the time of their sending.
struct Stream {
    zero: Instant,
    /// Time of sending and of arrival of the last packet received, in nanoseconds.
    last: AtomicU64,
    arrived: AtomicU64,
    stop: AtomicBool,
}

impl Stream {
    fn now(&self) -> u64 {
        u64::try_from(self.zero.elapsed().as_nanos()).unwrap()
    }

    fn send(&self, socket: &UdpSocket) {
        while !self.stop.load(Ordering::Relaxed) {
            let _ = socket.send(&self.now().to_be_bytes());
            std::thread::sleep(PACE);
        }
    }

    fn receive(&self, socket: &UdpSocket) {
        socket.set_read_timeout(Some(SILENCE)).unwrap();
        let mut buffer = [0; 8];
        while !self.stop.load(Ordering::Relaxed) {
            if socket.recv(&mut buffer).is_ok() {
                self.last.store(u64::from_be_bytes(buffer), Ordering::Relaxed);
                self.arrived.store(self.now(), Ordering::Relaxed);
            }
        }
    }

    /// Waits until packets arrive, or until none arrives.
    async fn wait(&self, flowing: bool) {
        let deadline = Instant::now() + PATIENCE;
        let silence = || Duration::from_nanos(self.now() - self.arrived.load(Ordering::Relaxed));
        while if flowing { silence() > Duration::from_millis(20) } else { silence() < SILENCE } {
            assert!(Instant::now() < deadline, "packets flow: not {flowing}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Latencies of all rounds, in milliseconds from the start of the request; the last three fields are durations.
#[derive(Default)]
struct Took {
    answered: Vec<f64>,
    watched: Vec<f64>,
    last_packet: Vec<f64>,
    programming: Vec<f64>,
    compile: Vec<f64>,
    apply: Vec<f64>,
}

#[test]
#[ignore = "a measurement, not a test"]
fn from_policy_to_packet() {
    let Some(mut world) = World::new("from_policy_to_packet") else { return };
    ["server", "client"].into_iter().for_each(|name| world.add(name));
    world.start_agent_in_cluster(&["--listen", &format!(":{LISTEN}")]);
    world.wait("enforcing", |_| true);
    let (to, from) = (socket(&world, "server", PORT), socket(&world, "client", 0));
    from.connect(to.local_addr().unwrap()).unwrap();
    let stream = Stream {
        zero: Instant::now(),
        last: AtomicU64::new(0),
        arrived: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let mut both = [Took::default(), Took::default()];
    std::thread::scope(|scope| {
        scope.spawn(|| stream.send(&from));
        scope.spawn(|| stream.receive(&to));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for (took, tracks) in both.iter_mut().zip([false, true]) {
                if tracks {
                    track(&world);
                }
                let rounds = || {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_all().build();
                    runtime.unwrap().block_on(rounds(&world, &stream, took));
                };
                world.server.inside(rounds).unwrap();
            }
        }));
        stream.stop.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    for (took, node) in both.into_iter().zip(["without conntrack", "with conntrack"]) {
        println!(
            "{ROUNDS} policies on a node {node}, ms from the request (min / median / max): answered {}, event at another \
             watch {}, last packet {}; in the agent: noticed to enforced {}, compiled {}, written {}",
            spread(took.answered),
            spread(took.watched),
            spread(took.last_packet),
            spread(took.programming),
            spread(took.compile),
            spread(took.apply),
        );
    }
}

/// Makes the node's kernel track its flows, as kube-proxy does.
fn track(world: &World) {
    let rules = "table inet track { chain forward { type filter hook forward priority 0; ct state new accept; }; }";
    world.node.netns().nft(rules).unwrap();
}

async fn rounds(world: &World, stream: &Stream, took: &mut Took) {
    let client = client(world).await;
    let policies = Api::<NetworkPolicy>::namespaced(client.clone(), NAMESPACE);
    let seen = std::sync::Arc::new(Mutex::new(BTreeMap::<String, Instant>::new()));
    let (all, notes) = (Api::<NetworkPolicy>::all(client), std::sync::Arc::clone(&seen));
    let watcher = tokio::spawn(async move {
        let events = all.watch(&WatchParams::default(), "0").await.unwrap();
        let mut events = events.boxed();
        while let Some(event) = events.try_next().await.unwrap() {
            if let WatchEvent::Added(policy) = event {
                notes.lock().unwrap().insert(policy.metadata.name.unwrap(), Instant::now());
            }
        }
    });
    for round in 0..ROUNDS {
        stream.wait(true).await;
        // The wait outlasts the agent's batching of changes, and its length varies so that rounds start at any phase
        // of the agent's ticks.
        tokio::time::sleep(Duration::from_millis(200 + 37 * (round as u64 % 7))).await;
        let before = metrics(world);
        let name = format!("deny-{round}");
        let policy = json!({
            "metadata": { "name": name },
            "spec": { "podSelector": { "matchLabels": { "app": "server" } }, "policyTypes": ["Ingress"] },
        });
        let policy = serde_json::from_value(policy).unwrap();
        let began = Instant::now();
        policies.create(&PostParams::default(), &policy).await.unwrap();
        took.answered.push(milliseconds(began.elapsed()));
        stream.wait(false).await;
        let last = stream.zero + Duration::from_nanos(stream.last.load(Ordering::Relaxed));
        took.last_packet.push(milliseconds(last.saturating_duration_since(began)));
        let watched = seen.lock().unwrap().get(&name).copied().unwrap();
        took.watched.push(milliseconds(watched - began));
        let after = metrics(world);
        let of = |what: &str| {
            let sum = more(&before, &after, &format!("netpold_{what}_duration_seconds_sum"));
            sum * 1e3 / more(&before, &after, &format!("netpold_{what}_duration_seconds_count"))
        };
        took.programming.push(of("programming"));
        took.compile.push(of("compile"));
        took.apply.push(of("apply"));
        policies.delete(&name, &DeleteParams::default()).await.unwrap();
    }
    watcher.abort();
}

/// Number of pods of the node, with traffic.
const LOCAL: usize = 110;
/// Numbers of pods on other nodes: present at the start, and created during the test.
const OTHERS: (usize, usize) = (5000, 1000);
const ROLLOUT: Duration = Duration::from_secs(10);
/// Packets per second of each local pod.
const RATE: u32 = 100;

/// Returns the object of a pod on another node, with an address if `runs`.
fn elsewhere(number: usize, runs: bool) -> (String, Option<String>) {
    let name = format!("elsewhere{number}");
    let address = format!("10.{}.{}.{}", 100 + number / 65_536, number / 256 % 256, number % 256);
    let status = if runs {
        json!({ "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }] })
    } else {
        json!({ "phase": "Pending" })
    };
    // Makes the object as large as a Deployment's pod with its `managedFields`.
    let env: Vec<Value> = (0..60)
        .map(|n| json!({ "name": format!("VARIABLE_{n}"), "value": format!("a value of some length, {n:032}") }))
        .collect();
    let object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": NAMESPACE, "name": name, "uid": format!("5f3c9a1e-7b2d-4c6f-0000-{number:012x}"),
            "labels": { "app": "web" },
        },
        "spec": {
            "nodeName": format!("other{}", number % 250),
            "containers": [{ "name": "main", "image": "example/main", "env": env }],
        },
        "status": status,
    });
    (format!("/registry/pods/{NAMESPACE}/{name}"), Some(object.to_string()))
}

fn name(number: usize) -> String {
    format!("local{number}")
}

/// Opens a flow from each pod n to pod n + 1; receivers accept packets of their sender only.
fn flows(world: &World) -> Vec<(UdpSocket, UdpSocket)> {
    let receivers: Vec<UdpSocket> = (0..LOCAL).map(|n| socket(world, &name(n), PORT)).collect();
    let flow = |n: usize, receiver: UdpSocket| {
        let sender = socket(world, &name((n + LOCAL - 1) % LOCAL), 0);
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        receiver.set_nonblocking(true).unwrap();
        (sender, receiver)
    };
    receivers.into_iter().enumerate().map(|(n, receiver)| flow(n, receiver)).collect()
}

/// Drains the receivers and returns the number of packets.
fn received(flows: &[(UdpSocket, UdpSocket)]) -> u64 {
    let mut buffer = [0; 16];
    flows
        .iter()
        .map(|(_, to)| std::iter::from_fn(|| to.recv(&mut buffer).ok()).count() as u64)
        .sum()
}

#[test]
#[ignore = "a measurement, not a test"]
fn a_thousand_pods_in_ten_seconds() {
    let Some(mut world) = World::new("a_thousand_pods_in_ten_seconds") else { return };
    let (before, new) = OTHERS;
    let there: Vec<_> = (0..before).map(|n| elsewhere(n, true)).collect();
    world.server.etcd().write(&there).unwrap();
    world.add_all((0..LOCAL).map(name));
    let peers: Value = json!([{ "podSelector": { "matchLabels": { "app": "web" } } },
        { "podSelector": { "matchExpressions": [{ "key": "app", "operator": "Exists" }] } }]);
    let every = json!({
        "podSelector": { "matchExpressions": [{ "key": "app", "operator": "NotIn", "values": ["web"] }] },
        "policyTypes": ["Ingress", "Egress"], "ingress": [{ "from": peers }], "egress": [{ "to": peers }],
    });
    world.policy("every", every);
    world.start_agent_in_cluster(&["--listen", &format!(":{LISTEN}")]);
    world.wait("enforcing", |status| {
        isolated(status, &name(0)) && isolated(status, &name(LOCAL - 1))
    });
    let (flows, stop, sent) = (flows(&world), AtomicBool::new(false), AtomicU64::new(0));
    let pid = world.agent().pid();
    let idle = {
        let used = processor_time(pid).unwrap().as_secs_f64();
        std::thread::sleep(ROLLOUT);
        processor_time(pid).unwrap().as_secs_f64() - used
    };
    let metrics_before = metrics(&world);
    let (mut arrived, mut took, mut used) = (0, Duration::ZERO, 0.0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let begin = Instant::now();
            for turn in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                for (from, _) in &flows {
                    from.send(b"?").unwrap();
                    sent.fetch_add(1, Ordering::Relaxed);
                }
                let due = begin + Duration::from_secs(1) * (turn + 1) / RATE;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        });
        let reader = scope.spawn(|| {
            let mut arrived = 0;
            while !stop.load(Ordering::Relaxed) {
                arrived += received(&flows);
                std::thread::sleep(Duration::from_millis(2));
            }
            arrived
        });
        let (begin, steps) = (Instant::now(), 100);
        let before_cpu = processor_time(pid).unwrap().as_secs_f64();
        for step in 0..steps + 2 {
            // Each step creates ten pods, which run two steps later.
            let of =
                |step: usize| (step * new / steps..(step + 1) * new / steps).map(|n| before + n);
            let created = (step < steps).then(|| of(step)).into_iter().flatten();
            let running = step.checked_sub(2).map(of).into_iter().flatten();
            let entries: Vec<_> = created
                .map(|n| elsewhere(n, false))
                .chain(running.map(|n| elsewhere(n, true)))
                .collect();
            world.server.etcd().write(&entries).unwrap();
            let due = begin + ROLLOUT * (step as u32 + 1) / steps as u32;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        took = begin.elapsed();
        used = processor_time(pid).unwrap().as_secs_f64() - before_cpu;
        std::thread::sleep(Duration::from_secs(1));
        stop.store(true, Ordering::Relaxed);
        arrived = reader.join().unwrap();
    });
    arrived += received(&flows);
    let after = metrics(&world);
    let within = |bound: &str| {
        let name = format!("netpold_programming_duration_seconds_bucket{{le=\"{bound}\"}}");
        more(&metrics_before, &after, &name)
    };
    let all = more(&metrics_before, &after, "netpold_programming_duration_seconds_count");
    let mean = more(&metrics_before, &after, "netpold_programming_duration_seconds_sum") / all;
    let sent = sent.load(Ordering::Relaxed);
    println!(
        "{new} pods in {took:.1?} beside {LOCAL} local ones that sent {sent} packets, of which {arrived} arrived; {all} \
         updates, in force {:.2} ms after they were noticed on average, {} within 1 ms, {} within 2, {} within 5, {} \
         within 10, {} within 20; {:.1} % of a core, {:.1} % idle",
        mean * 1e3,
        within("0.001"),
        within("0.002"),
        within("0.005"),
        within("0.01"),
        within("0.02"),
        used * 100.0 / took.as_secs_f64(),
        idle * 100.0 / ROLLOUT.as_secs_f64(),
    );
    assert_eq!(arrived, sent, "no packet is lost");
}
