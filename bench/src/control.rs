//! A large cluster: time to the first full image, memory, and time from an event to its enforcement.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use netpold_core::model::{
    Change, Enforcement, Interface, IpBlock, Key, Namespace, Node, Peer, Pod, Policy,
    PolicyVersion, Rule, Selector,
};
use netpold_core::ops::Op;
use netpold_dataplane::quiescence::grace_period;
use netpold_testkit::objects;
use serde::Serialize;

use crate::cluster::{NODE, selector};
use crate::figures::{say, table};
use crate::host;
use crate::random::SplitMix64;
use crate::world::LoadedCluster;

/// Size of the cluster.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Scale {
    /// Pods in the cluster.
    pub(crate) pods: u32,
    /// Namespaces.
    pub(crate) namespaces: u32,
    /// NetworkPolicies.
    pub(crate) policies: u32,
    /// Pods on the measured node, all under policy.
    pub(crate) local: u32,
    /// Pods also have an IPv6 address.
    pub(crate) dual_stack: bool,
    /// Number of events of each kind.
    pub(crate) events: u32,
}

/// Results for one cluster.
#[derive(Debug, Serialize)]
pub(crate) struct ControlResults {
    /// The cluster.
    pub(crate) scale: Scale,
    /// Milliseconds to take and compile the objects.
    pub(crate) compile_ms: f64,
    /// Milliseconds to create maps and load programs.
    pub(crate) load_ms: f64,
    /// Milliseconds to write the first image.
    pub(crate) write_ms: f64,
    /// Operations in the first image.
    pub(crate) operations: usize,
    /// Resident anonymous memory of the process with the cluster.
    pub(crate) own_bytes: u64,
    /// Memory of all maps of the generation.
    pub(crate) map_bytes: u64,
    /// Times from event to enforcement.
    pub(crate) events: Vec<Latency>,
}

/// Times from an event to its enforcement (compile and write).
#[derive(Debug, Serialize)]
pub(crate) struct Latency {
    /// Kind of event.
    pub(crate) event: &'static str,
    /// Number of events.
    pub(crate) events: usize,
    /// Milliseconds.
    pub(crate) p50_ms: f64,
    /// Milliseconds.
    pub(crate) p75_ms: f64,
    /// Milliseconds.
    pub(crate) p99_ms: f64,
    /// Milliseconds.
    pub(crate) max_ms: f64,
    /// Operations, on average.
    pub(crate) operations: f64,
    /// Waits for packets in flight within an update, on average.
    pub(crate) waits: f64,
}

/// Maximum time per kind of event, unless there were fewer than the minimum number of events.
const LIMIT: (Duration, usize) = (Duration::from_secs(4), 6);

/// Number of values of the label `app` in a namespace.
const APPS: u32 = 7;
/// Number of values of the label `team` of namespaces.
const TEAMS: u32 = 10;

/// Builds the cluster, writes it to real maps and measures events.
pub(crate) fn measure(
    scale: Scale,
    buckets: u32,
    pins: &Path,
    progress: &dyn Fn(&str),
) -> Result<ControlResults> {
    let stack = if scale.dual_stack { "dual stack" } else { "IPv4" };
    progress(&format!("control, {stack}: the first image"));
    let before = (memory()?, map_bytes()?);
    let mut world = LoadedCluster::new(pins, scale.changes(), buckets)?;
    let own_bytes = memory()?.saturating_sub(before.0);
    let map_bytes = map_bytes()?.saturating_sub(before.1);
    let mut events = Vec::new();
    for (names, change) in EVENTS {
        let name = names.join(", ");
        progress(&format!("control, {stack}: {name}"));
        let mut random = SplitMix64::new(u64::from(scale.events));
        let changes = (0..scale.events).map(|n| change(&scale, n, &mut random));
        events.extend(latency(&mut world, names, changes).context(name)?);
        // Each kind of event begins with the same cluster.
        scale.local_changes().into_iter().for_each(|change| world.compiler.ingest(change));
        enforce(&mut world)?;
    }
    let first = world.first;
    Ok(ControlResults {
        scale,
        compile_ms: milliseconds(first.compile),
        load_ms: milliseconds(first.load),
        write_ms: milliseconds(first.write),
        operations: first.operations,
        own_bytes,
        map_bytes,
        events,
    })
}

/// Own memory, after returning free memory to the kernel.
pub(crate) fn memory() -> Result<u64> {
    // SAFETY: no preconditions.
    unsafe { libc::malloc_trim(0) };
    host::own_memory()
}

fn map_bytes() -> Result<u64> {
    Ok(host::map_memory("self")?.values().sum())
}

pub(crate) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Cost of one event.
struct EventCost {
    ms: f64,
    operations: usize,
    waits: usize,
}

/// Runs events of alternating kinds. Each kind has its own figures, because a common median would lie between the two.
fn latency(
    world: &mut LoadedCluster,
    names: &[&'static str],
    changes: impl Iterator<Item = Change>,
) -> Result<Vec<Latency>> {
    let mut samples = Vec::new();
    let begin = Instant::now();
    for change in changes {
        let start = Instant::now();
        world.compiler.ingest(change);
        let ops = world.compiler.update()?;
        world.generation.apply(&ops)?;
        samples.push(EventCost {
            ms: milliseconds(start.elapsed()),
            operations: ops.len(),
            waits: ops.iter().filter(|op| **op == Op::Grace).count(),
        });
        settle(world);
        if samples.len() >= LIMIT.1 * names.len() && begin.elapsed() > LIMIT.0 {
            break;
        }
    }
    let of_kind = |kind| samples.iter().skip(kind).step_by(names.len());
    Ok(names.iter().enumerate().map(|(kind, event)| summary(event, of_kind(kind))).collect())
}

fn summary<'a>(event: &'static str, samples: impl Iterator<Item = &'a EventCost>) -> Latency {
    let samples: Vec<_> = samples.collect();
    let times: Vec<_> = samples.iter().map(|sample| sample.ms).collect();
    let at = |part| percentile(&times, part);
    let mean = |sum: usize| sum as f64 / samples.len() as f64;
    Latency {
        event,
        events: samples.len(),
        p50_ms: at(0.5),
        p75_ms: at(0.75),
        p99_ms: at(0.99),
        max_ms: at(1.0),
        operations: mean(samples.iter().map(|sample| sample.operations).sum()),
        waits: mean(samples.iter().map(|sample| sample.waits).sum()),
    }
}

/// The value that this part of the values does not exceed; 0 without values.
pub(crate) fn percentile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(place).copied().unwrap_or_default()
}

fn enforce(world: &mut LoadedCluster) -> Result<()> {
    let ops = world.compiler.update()?;
    world.generation.apply(&ops)?;
    settle(world);
    Ok(())
}

/// Background work of the agent after an update.
fn settle(world: &mut LoadedCluster) {
    grace_period();
    world.compiler.grace_passed();
}

type ClusterEvent = fn(&Scale, u32, &mut SplitMix64) -> Change;

/// Alternating kinds of events, with a function for the n-th event.
const EVENTS: [(&[&str], ClusterEvent); 10] = [
    (&["pod added"], |scale, n, _| Change::Pod(labelled(scale.pod(scale.pods + n), "app", app(n)))),
    (&["pod deleted"], |scale, n, _| Change::PodGone(scale.pod(scale.pods + n).key)),
    (&["pod relabelled"], |scale, n, random| {
        let number = scale.local + random.below(scale.pods - scale.local);
        Change::Pod(labelled(scale.pod(number), "app", app(n)))
    }),
    (&["pod relabelled, nothing matches"], |scale, n, random| {
        let number = scale.local + random.below(scale.pods - scale.local);
        Change::Pod(labelled(scale.pod(number), "version", n.to_string()))
    }),
    (&["local pod relabelled"], |scale, n, random| {
        Change::Pod(labelled(scale.pod(random.below(scale.local)), "app", app(n)))
    }),
    (&["policy edited: ports"], |scale, n, random| {
        let number = random.below(scale.local);
        scale.edited(number, |rule| rule.ports = Some(vec![objects::tcp(2000 + n as u16)]))
    }),
    (&["policy edited: peers"], |scale, n, random| {
        let number = random.below(scale.local);
        scale.edited(number, |rule| rule.peers = Some(vec![peer(team(n), &app(n + 1))]))
    }),
    (
        &["policy edited: every pod a peer", "policy edited: no longer every pod a peer"],
        |scale, n, _| {
            let number = n / 2 % scale.local;
            if n % 2 == 1 {
                return Change::Policy(scale.policy(number));
            }
            let namespaces = Some(Selector::default());
            let everyone = Peer::Pods { namespaces, pods: Selector::default() };
            scale.edited(number, |rule| rule.peers = Some(vec![everyone]))
        },
    ),
    (&["policy deleted", "policy created again"], |scale, n, _| {
        let policy = scale.policy(n / 2 % scale.local);
        if n % 2 == 1 { Change::Policy(policy) } else { Change::PolicyGone(policy.key) }
    }),
    (&["namespace relabelled"], |scale, n, random| {
        Change::Namespace(namespace(random.below(scale.namespaces), n))
    }),
];

impl Scale {
    /// All objects of the cluster.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
        let mut changes = vec![Change::Node(Node {
            name: NODE.into(),
            addresses: vec![address],
            ..Node::default()
        })];
        changes.extend((0..self.namespaces).map(|n| Change::Namespace(namespace(n, n))));
        changes.extend((0..self.pods).map(|n| Change::Pod(self.pod(n))));
        changes.extend((0..self.policies).map(|n| Change::Policy(self.policy(n))));
        changes.extend((0..self.local).map(|n| {
            let addresses = self.pod(n).addresses;
            Change::Interface(Interface {
                index: 100 + n,
                incarnation: 1,
                addresses,
                ..Interface::default()
            })
        }));
        changes
    }

    /// The local pods and the policies that select them.
    fn local_changes(&self) -> Vec<Change> {
        let pods = (0..self.local).map(|n| Change::Pod(self.pod(n)));
        pods.chain((0..self.local).map(|n| Change::Policy(self.policy(n)))).collect()
    }

    /// Pod `number`; the first ones are local, each in a different namespace.
    pub(crate) fn pod(&self, number: u32) -> Pod {
        let mut addresses = vec![IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0001 + number))];
        if self.dual_stack {
            let bits = 0xfd00 << 112 | u128::from(number + 1);
            addresses.push(IpAddr::V6(Ipv6Addr::from_bits(bits)));
        }
        let namespace = namespace_name(number % self.namespaces);
        let labels = [("app", &*app(number / self.namespaces)), ("version", "1")];
        Pod {
            node: if number < self.local { NODE.into() } else { "elsewhere".into() },
            addresses,
            ..objects::pod(&namespace, &format!("pod{number}"), &labels, &[])
        }
    }

    /// Policy `number`: selects one application of one namespace, with peers in that namespace, in others, and outside
    /// the cluster. The first ones select one local pod each.
    fn policy(&self, number: u32) -> Policy {
        let own = app(number / self.namespaces);
        let block = [172, 16 + (number % 16) as u8, (number % 256) as u8, 0];
        let cidr = ipnet::IpNet::V4(ipnet::Ipv4Net::new_assert(block.into(), 24));
        let peers = vec![
            Peer::Pods { namespaces: None, pods: selector("app", &own) },
            peer(team(number), &app(1)),
            Peer::Block(IpBlock { cidr, except: Vec::new() }),
        ];
        let ports = vec![objects::tcp(80), objects::tcp(1000 + (number % 50) as u16)];
        let rules = vec![Rule { peers: Some(peers), ports: Some(ports) }];
        Policy {
            key: Key::new(namespace_name(number % self.namespaces), format!("policy{number}")),
            pod_selector: selector("app", &own),
            ingress: Some(rules.clone()),
            egress: Some(rules),
            problems: Vec::new(),
            version: PolicyVersion::default(),
            enforcement: Enforcement::Enforce,
            denial: None,
        }
    }

    /// A policy with an edited ingress rule.
    pub(crate) fn edited(&self, number: u32, edit: impl FnOnce(&mut Rule)) -> Change {
        let mut policy = self.policy(number);
        if let Some(rule) = policy.ingress.as_mut().and_then(|rules| rules.first_mut()) {
            edit(rule);
        }
        Change::Policy(policy)
    }
}

fn labelled(mut pod: Pod, key: &str, value: String) -> Pod {
    pod.labels.insert(key.into(), value);
    pod
}

fn namespace_name(number: u32) -> String {
    format!("ns{number}")
}

fn namespace(number: u32, of_team: u32) -> Namespace {
    let labels = [("team".to_owned(), team(of_team))].into_iter().collect();
    Namespace { name: namespace_name(number), labels, denial: None }
}

fn app(number: u32) -> String {
    format!("app{}", number % APPS)
}

fn team(number: u32) -> String {
    format!("team{}", number % TEAMS)
}

fn peer(team: String, app: &str) -> Peer {
    Peer::Pods { namespaces: Some(selector("team", &team)), pods: selector("app", app) }
}

/// Prints the results.
pub(crate) fn print(control: &ControlResults) {
    let ControlResults {
        scale,
        compile_ms,
        load_ms,
        write_ms,
        operations,
        own_bytes,
        map_bytes,
        events,
    } = control;
    let stack = if scale.dual_stack { "dual stack" } else { "IPv4" };
    say(&format!(
        "\nControl, {stack}: {} pods, {} namespaces, {} policies, {} local pods\n\
         first image: compiled in {compile_ms:.0} ms, maps and programs made in {load_ms:.0} ms, \
         {operations} operations written in {write_ms:.1} ms\n\
         memory: {:.0} MB of its own, {:.0} MB of maps",
        scale.pods,
        scale.namespaces,
        scale.policies,
        scale.local,
        *own_bytes as f64 / 1e6,
        *map_bytes as f64 / 1e6,
    ));
    let rows = events.iter().map(|e| {
        let time = |ms: f64| format!("{ms:.3}");
        let mean = |count: f64| format!("{count:.1}");
        let times = [e.p50_ms, e.p99_ms, e.max_ms].map(time);
        let counts = [e.operations, e.waits].map(mean);
        [e.event.to_owned(), e.events.to_string()].into_iter().chain(times).chain(counts).collect()
    });
    let header =
        ["from event to enforced", "events", "p50 ms", "p99 ms", "max ms", "operations", "waits"];
    table(&header, rows);
}
