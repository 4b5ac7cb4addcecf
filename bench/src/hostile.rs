//! Cost of one tenant's objects by size: of the objects themselves, of an edit of them, and of an edit by another
//! tenant. Compiled and written to tables in memory; measured in CPU time, to be independent of other load.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Result, ensure};
use ipnet::{IpNet, Ipv4Net};
use netpold_core::compile::Compiler;
use netpold_core::model::{
    Change, EndpointSlice, Enforcement, Interface, IpBlock, Key, NamedPort, Peer, Pod, Policy,
    PolicyVersion, PortMatch, PortRule, Protocol, Requirement, Rule, Selector, Service,
    ServicePort, SlicePort,
};
use netpold_core::ops::{Capacity, TableWriter};
use netpold_core::options::Options;
use netpold_testkit::memory::MemoryTables;
use netpold_testkit::objects;
use nix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::cluster::NODE;
use crate::control::{Scale, memory, milliseconds, percentile};
use crate::figures::{say, table};

/// Sizes of each shape.
pub(crate) const SIZES: [u32; 5] = [625, 1250, 2500, 5000, 10_000];
/// The rest of the cluster.
pub(crate) const BESIDE: Scale =
    Scale { pods: 10_000, namespaces: 100, policies: 500, local: 50, dual_stack: false, events: 0 };
/// Edits by another tenant.
const EDITS: u32 = 50;
const TENANT: &str = "tenant";

/// Results for a shape and a size.
#[derive(Debug, Serialize)]
pub(crate) struct Hostile {
    /// Shape of the tenant's objects.
    pub(crate) shape: &'static str,
    /// Number of rules or ports.
    pub(crate) size: u32,
    /// Milliseconds of CPU time until the objects are in force.
    pub(crate) first_ms: f64,
    /// Milliseconds until an edit of them is in force.
    pub(crate) edit_ms: f64,
    /// Milliseconds until a pod's new labels are in force, which move it out of the selection of these objects or back
    /// into it; the longer of both.
    pub(crate) relabel_ms: f64,
    /// Milliseconds until an edit of another tenant's policy is in force, p99.
    pub(crate) other_ms: f64,
    /// Work of the compiler for the first update.
    pub(crate) work: u64,
    /// Additional resident memory, including tables.
    pub(crate) bytes: u64,
}

/// Builds objects of a size, edited or not.
type ObjectShape = fn(u32, bool) -> Vec<Change>;

/// Shapes by name.
pub(crate) const SHAPES: [(&str, ObjectShape); 5] = [
    ("rules with all but one address, and a port", blocks_but_one),
    ("rules with an address, and two ports", port_sets),
    ("rules with a label, and a port", labels),
    ("ports of a Service", service_ports),
    ("rules with a port's name", named_ports),
];

/// Measures all shapes in all sizes.
pub(crate) fn measure(progress: &dyn Fn(&str)) -> Result<Vec<Hostile>> {
    let mut all = Vec::new();
    for (shape, objects) in SHAPES {
        for size in SIZES {
            progress(&format!("hostile: {size} {shape}"));
            all.push(one(shape, objects, size)?);
        }
    }
    Ok(all)
}

struct HostileWorld {
    compiler: Compiler,
    tables: MemoryTables,
}

impl HostileWorld {
    /// Milliseconds to take changes and put them into force.
    fn enforce(&mut self, changes: Vec<Change>) -> Result<f64> {
        let start = processor_time();
        changes.into_iter().for_each(|change| self.compiler.ingest(change));
        for op in self.compiler.update()? {
            self.tables.write(&op)?;
        }
        let took = milliseconds(processor_time().saturating_sub(start));
        self.compiler.grace_passed();
        Ok(took)
    }
}

/// CPU time of this thread.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

fn one(shape: &'static str, objects: ObjectShape, size: u32) -> Result<Hostile> {
    let capacity = Capacity {
        bitmaps: 1 << 15,
        row_blocks: 1 << 16,
        rows: 1 << 11,
        trie_blocks: 1 << 18,
        hosts6: 1 << 17,
        blocks6: 1 << 16,
        names: 1 << 14,
    };
    let options = Options { node: NODE.into(), capacity, ..Options::default() };
    let mut world = HostileWorld { compiler: Compiler::new(options), tables: MemoryTables::new() };
    let mut changes = BESIDE.changes();
    changes.push(Change::Pod(local_pod(true)));
    let addresses = local_pod(true).addresses;
    let interface = Interface { index: 9, incarnation: 1, addresses, ..Interface::default() };
    changes.push(Change::Interface(interface));
    world.enforce(changes)?;
    let (before, work) = (memory()?, world.compiler.work());
    let first_ms = world.enforce(objects(size, false))?;
    let work = world.compiler.work() - work;
    let bytes = memory()?.saturating_sub(before);
    ensure!(world.compiler.problems().is_empty(), "{shape}: {:?}", world.compiler.problems());
    let edit_ms = world.enforce(objects(size, true))?;
    let relabelled =
        [false, true].map(|selected| world.enforce(vec![Change::Pod(local_pod(selected))]));
    let relabel_ms =
        relabelled.into_iter().try_fold(0.0, |most, took| took.map(|t| t.max(most)))?;
    let others = (0..EDITS).map(|n| {
        let port = vec![objects::tcp(3000 + n as u16)];
        world.enforce(vec![BESIDE.edited(n % BESIDE.local, |rule| rule.ports = Some(port))])
    });
    let others: Vec<f64> = others.collect::<Result<_>>()?;
    let other_ms = percentile(&others, 0.99);
    Ok(Hostile { shape, size, first_ms, edit_ms, relabel_ms, other_ms, work, bytes })
}

/// The tenant's pod on the node; if `selected`, the large policies isolate it.
pub(crate) fn local_pod(selected: bool) -> Pod {
    pod("p", if selected { "x" } else { "y" }, 0)
}

fn pod(name: &str, label: &str, number: u32) -> Pod {
    Pod {
        node: if name == "p" { NODE.into() } else { "elsewhere".into() },
        addresses: vec![IpAddr::V4(Ipv4Addr::from_bits(0x0b00_0001 + number))],
        ..objects::pod(TENANT, name, &[("id", label)], &[])
    }
}

/// A policy of egress rules; the edited one lacks the last rule.
fn policy(size: u32, edited: bool, rule: impl Fn(u32) -> Rule) -> Change {
    Change::Policy(Policy {
        key: Key::new(TENANT, "hostile"),
        pod_selector: Selector {
            requirements: vec![Requirement::In("id".into(), vec!["x".into()])],
        },
        ingress: None,
        egress: Some((0..size - u32::from(edited)).map(rule).collect()),
        problems: Vec::new(),
        version: PolicyVersion::default(),
        enforcement: Enforcement::Enforce,
        denial: None,
    })
}

fn scattered(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(number.wrapping_mul(0x9e37_79b1))
}

pub(crate) fn blocks_but_one(size: u32, edited: bool) -> Vec<Change> {
    vec![policy(size, edited, |n| {
        let except = vec![IpNet::V4(Ipv4Net::new_assert(scattered(n), 32))];
        let block = IpBlock { cidr: IpNet::default(), except };
        Rule {
            peers: Some(vec![Peer::Block(block)]),
            ports: Some(vec![objects::tcp(1 + n as u16)]),
        }
    })]
}

fn port_sets(size: u32, edited: bool) -> Vec<Change> {
    vec![policy(size, edited, |n| {
        let cidr = IpNet::V4(Ipv4Net::new_assert(scattered(n), 32));
        let block = IpBlock { cidr, except: Vec::new() };
        let ports = vec![objects::tcp(1 + n as u16), objects::tcp(20_000 + n as u16)];
        Rule { peers: Some(vec![Peer::Block(block)]), ports: Some(ports) }
    })]
}

fn labels(size: u32, edited: bool) -> Vec<Change> {
    let rules = policy(size, edited, |n| {
        let requirements = vec![Requirement::In("id".into(), vec![format!("id{n}")])];
        let pods = Selector { requirements };
        let peers = vec![Peer::Pods { namespaces: None, pods }];
        Rule { peers: Some(peers), ports: Some(vec![objects::tcp(1 + n as u16)]) }
    });
    let pods = (0..size).map(|n| Change::Pod(pod(&format!("far{n}"), &format!("id{n}"), n + 1)));
    pods.filter(|_| !edited).chain([rules]).collect()
}

fn service_ports(size: u32, edited: bool) -> Vec<Change> {
    let address = IpAddr::V4(Ipv4Addr::new(10, 96, 1, 1));
    let name = |n: u32| format!("port{n}");
    let service = Change::Service(Service {
        key: Key::new(TENANT, "s"),
        addresses: vec![address],
        cluster: vec![address],
        networks: Vec::new(),
        beyond: Vec::new(),
        unserved: false,
        ports: (0..size - u32::from(edited))
            .map(|n| ServicePort {
                name: name(n),
                protocol: Protocol::Tcp,
                port: 1 + n as u16,
                node_port: None,
            })
            .collect(),
    });
    let slices = (0..size.div_ceil(100)).map(|slice| {
        let ports = slice * 100..size.min((slice + 1) * 100);
        let port =
            |n| SlicePort { name: name(n), protocol: Protocol::Tcp, port: 20_000 + n as u16 };
        Change::EndpointSlice(EndpointSlice {
            key: Key::new(TENANT, format!("s{slice}")),
            service: "s".into(),
            ports: ports.map(port).collect(),
            addresses: (0..100).map(|n| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0001 + n))).collect(),
            not_ready: Vec::new(),
            terminating: Vec::new(),
        })
    });
    slices.filter(|_| !edited).chain([service]).collect()
}

fn named_ports(size: u32, edited: bool) -> Vec<Change> {
    let name = |n: u32| format!("port{n}");
    let rules = policy(size, edited, |n| {
        let port = PortRule { protocol: Protocol::Tcp, port: PortMatch::Named(name(n)) };
        let peers = vec![Peer::Pods { namespaces: None, pods: Selector::default() }];
        Rule { peers: Some(peers), ports: Some(vec![port]) }
    });
    let mut far = pod("far", "far", 1);
    far.ports = (0..size)
        .map(|n| NamedPort { name: name(n), protocol: Protocol::Tcp, port: 1 + n as u16 })
        .collect();
    [Change::Pod(far)].into_iter().filter(|_| !edited).chain([rules]).collect()
}

/// Prints the results.
pub(crate) fn print(figures: &[Hostile]) {
    if figures.is_empty() {
        return;
    }
    say("\nHostile tenants: what they write, by size");
    let rows = figures.iter().map(|f| {
        let times = [f.first_ms, f.edit_ms, f.relabel_ms, f.other_ms].map(|ms| format!("{ms:.1}"));
        let megabytes = format!("{:.0}", f.bytes as f64 / 1e6);
        let begin = [f.shape.to_owned(), f.size.to_string()];
        begin.into_iter().chain(times).chain([megabytes, f.work.to_string()]).collect()
    });
    let header = [
        "what",
        "size",
        "first ms",
        "edited ms",
        "relabelled ms",
        "another's edit, p99 ms",
        "MB",
        "steps",
    ];
    table(&header, rows);
}
