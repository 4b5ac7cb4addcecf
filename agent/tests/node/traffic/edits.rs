//! A thousand policy edits a second, alongside flows that no edit affects.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use netpold_core::compile::Compiler;
use netpold_core::model::{
    Change, Enforcement, Interface, IpBlock, Key, Peer, Policy, PolicyVersion, PortMatch, PortRule,
    Protocol, Requirement, Rule, Selector,
};
use netpold_core::ops::Capacity;
use netpold_core::options::Options;
use netpold_dataplane::attach::{AttachMode, Attacher};
use netpold_dataplane::bpffs::PinRoot;
use netpold_dataplane::conntrack::Buckets;
use netpold_dataplane::{Dataplane, DataplaneOptions};
use netpold_engine::Engine;
use netpold_kube::manifests::read_once;
use netpold_testbed::cluster::{NAMESPACE, TestCluster};
use netpold_testbed::{Cni, Unmount, require_root};

use crate::traffic::load::{guarded, under_load};

/// Numbers of updates, and of edits per update: as many as the 10 ms batch interval of manifests collects.
const UPDATES: u32 = 150;
const EDITS: u32 = 32;

/// Returns an engine that this test drives itself: edits arrive as fast as the engine applies them.
fn engine(cluster: &TestCluster, pins: &Path) -> Engine {
    let pins = PinRoot::open(pins).unwrap();
    let attacher = Attacher::new(&pins.links(), AttachMode::probe()).unwrap();
    let node = cluster.nodes[0].name().to_owned();
    let compiler = Compiler::new(Options { node, ..Options::default() });
    let dataplane =
        Dataplane::new(pins, attacher, DataplaneOptions::new(Buckets::fixed(131_072), 7));
    let mut engine = Engine::new(compiler, dataplane, Capacity::default());
    let (changes, _) = read_once(cluster.manifests.directory()).unwrap();
    changes.into_iter().for_each(|change| engine.ingest(change));
    engine.ingest(Change::OwnAddresses(cluster.nodes[0].addresses().to_vec()));
    for name in ["server", "friend", "stranger", "spare"] {
        let pod = cluster.pod(name);
        let (index, mut addresses) = (pod.host_ifindex(), pod.addresses().to_vec());
        addresses.sort_unstable();
        engine.ingest(Change::Interface(Interface {
            index,
            incarnation: 1,
            addresses,
            ..Interface::default()
        }));
    }
    engine
}

/// Returns a policy for the stranger's ingress, different for each edit.
fn edit(update: u32, number: u32) -> Change {
    let cidr = format!("198.18.{}.{}/32", update % 256, number).parse().unwrap();
    let port = 1000 + (update * EDITS + number) as u16 % 5000;
    let rule = Rule {
        peers: Some(vec![Peer::Block(IpBlock { cidr, except: Vec::new() })]),
        ports: Some(vec![PortRule {
            protocol: Protocol::Tcp,
            port: PortMatch::Range(port, port + 10),
        }]),
    };
    Change::Policy(Policy {
        key: Key::new(NAMESPACE, format!("edit{number}")),
        pod_selector: Selector {
            requirements: vec![Requirement::In("app".into(), vec!["stranger".into()])],
        },
        ingress: Some(vec![rule]),
        egress: None,
        problems: Vec::new(),
        version: PolicyVersion::default(),
        enforcement: Enforcement::Enforce,
        denial: None,
    })
}

#[test]
fn edits_that_concern_no_flow_touch_none() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    cluster.add(0, "spare");
    cluster.write();
    let pins = cluster.directory.path().join("bpf");
    let _mounted = Unmount(pins.clone());
    let engine = Mutex::new(cluster.nodes[0].run(|| engine(&cluster, &pins)).unwrap());
    let step = |cluster: &TestCluster| {
        let mut engine = engine.lock().unwrap();
        let engine = &mut *engine;
        let failed = cluster.nodes[0].run(|| engine.step(None)).unwrap();
        assert!(failed.is_none(), "an update was refused");
    };
    step(&cluster);
    cluster.denied("stranger", "server");
    let edits = |cluster: &mut TestCluster| {
        let began = Instant::now();
        for update in 0..UPDATES {
            for number in 0..EDITS {
                engine.lock().unwrap().ingest(edit(update, number));
            }
            step(cluster);
        }
        let edits = f64::from(UPDATES * EDITS);
        println!("{:.0} edits a second", edits / began.elapsed().as_secs_f64());
    };
    under_load(&mut cluster, &[&edits]);
    let mut engine = engine.into_inner().unwrap();
    engine.readback(1);
    let repaired = engine.report(&[]).repaired;
    assert!(repaired.is_empty(), "the tables hold what the edits came to: {repaired:?}");
    cluster.reaches("friend", "server");
    cluster.denied("stranger", "server");
}

/// Number of rules of a policy that is too large to be compiled together with other edits.
const LARGE: u32 = 2000;
/// Deadline of a compile on another thread, in a debug build, on a busy machine.
const COMPILED: Duration = Duration::from_mins(4);

/// Returns a policy for the spare pod's ingress, from these addresses and from many others.
fn large(from: &[IpAddr], turn: u32) -> Change {
    let rule = |address: IpAddr, ports| Rule {
        peers: Some(vec![Peer::Block(IpBlock { cidr: address.into(), except: Vec::new() })]),
        ports,
    };
    let others = (turn..LARGE).map(|n| {
        let port = PortMatch::Range(1000 + n as u16, 1010 + n as u16);
        let ports = Some(vec![PortRule { protocol: Protocol::Tcp, port }]);
        rule(Ipv4Addr::from_bits(0xc612_0000 + n).into(), ports)
    });
    let from = from.iter().map(|address| rule(*address, None));
    Change::Policy(Policy {
        key: Key::new(NAMESPACE, "large"),
        pod_selector: Selector {
            requirements: vec![Requirement::In("app".into(), vec!["spare".into()])],
        },
        ingress: Some(from.chain(others).collect()),
        egress: None,
        problems: Vec::new(),
        version: PolicyVersion::default(),
        enforcement: Enforcement::Enforce,
        denial: None,
    })
}

#[test]
fn what_is_large_is_compiled_beside_others_edits() {
    require_root!();
    let mut cluster = guarded(Cni::Ptp);
    cluster.add(0, "spare");
    cluster.without_policy("f").without_policy("to");
    cluster.write();
    let pins = cluster.directory.path().join("bpf");
    let _mounted = Unmount(pins.clone());
    let engine = Mutex::new(cluster.nodes[0].run(|| engine(&cluster, &pins)).unwrap());
    // Runs one update and returns the status line about the large policy.
    let step = |cluster: &TestCluster| -> Option<String> {
        let mut engine = engine.lock().unwrap();
        let engine = &mut *engine;
        cluster.nodes[0].run(|| engine.step(None)).unwrap();
        let problems = engine.report(&[]).problems;
        assert!(engine.is_settled(), "an update was refused: {problems:?}");
        problems.into_iter().find(|problem| problem.contains("compiled in the background"))
    };
    let apply = |change| engine.lock().unwrap().ingest(change);
    assert_eq!(step(&cluster), None);
    cluster.reaches("friend", "spare");
    cluster.reaches("stranger", "spare");
    let flapping = |cluster: &mut TestCluster| {
        let friend = cluster.pod("friend").addresses().to_vec();
        apply(large(&friend, 0));
        apply(edit(0, 0));
        let said = step(cluster).expect("it is not compiled with the others");
        assert!(said.contains("is closed"), "{said}");
        cluster.denied("friend", "spare");
        cluster.denied("friend", "stranger");
        let began = Instant::now();
        while step(cluster).is_some() {
            assert!(began.elapsed() < COMPILED, "compiled at some time");
            std::thread::sleep(Duration::from_millis(20));
        }
        cluster.reaches("friend", "spare");
        cluster.denied("stranger", "spare");
        apply(large(&[], 1));
        let said = step(cluster).expect("nor is its edit");
        assert!(said.contains("before their last edit"), "{said}");
        cluster.reaches("friend", "spare");
    };
    under_load(&mut cluster, &[&flapping]);
    let mut engine = engine.into_inner().unwrap();
    engine.readback(1);
    let repaired = engine.report(&[]).repaired;
    assert!(repaired.is_empty(), "the tables hold what was compiled: {repaired:?}");
    cluster.denied("stranger", "server");
}
