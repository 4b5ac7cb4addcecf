//! A thousand policy edits a second beside flows that none of them concerns.

use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use netpold::dataplane::Dataplane;
use netpold::dataplane::attach::{Attacher, Mode};
use netpold::dataplane::bpffs::PinRoot;
use netpold::engine::Engine;
use netpold::source::manifests::read_once;
use netpold_core::compile::Compiler;
use netpold_core::model::{
    Change, Interface, IpBlock, Key, Peer, Policy, PortMatch, PortRule, Protocol, Requirement,
    Rule, Selector,
};
use netpold_core::ops::Capacity;
use netpold_core::options::Options;
use netpold_testbed::cluster::{Cluster, NAMESPACE};
use netpold_testbed::{Cni, Unmount, require_root};

use crate::load::{guarded, under_load};

/// Updates, and edits that each of them gathers: what the manifests' 10 ms would.
const UPDATES: u32 = 150;
const EDITS: u32 = 32;

/// An engine of this test's own: edits come as fast as it takes them.
fn engine(cluster: &Cluster, pins: &Path) -> Engine {
    let pins = PinRoot::open(pins).unwrap();
    let attacher = Attacher::new(&pins.links(), Mode::probe()).unwrap();
    let node = cluster.nodes[0].name().to_owned();
    let compiler = Compiler::new(Options { node, ..Options::default() });
    let dataplane = Dataplane::new(pins, attacher, 131_072, 7);
    let mut engine = Engine::new(compiler, dataplane, Capacity::default());
    let (changes, _) = read_once(cluster.manifests.directory()).unwrap();
    changes.into_iter().for_each(|change| engine.apply(change));
    engine.apply(Change::OwnAddresses(cluster.nodes[0].addresses().to_vec()));
    for name in ["server", "friend", "stranger"] {
        let pod = cluster.pod(name);
        let (index, mut addresses) = (pod.host_ifindex(), pod.addresses().to_vec());
        addresses.sort_unstable();
        engine.apply(Change::Interface(Interface {
            index,
            incarnation: 1,
            addresses,
            ..Interface::default()
        }));
    }
    engine
}

/// A policy for the stranger's ingress that says something else each time.
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
    })
}

#[test]
fn edits_that_concern_no_flow_touch_none() {
    if !require_root("edits_that_concern_no_flow_touch_none") {
        return;
    }
    let mut cluster = guarded(Cni::Ptp);
    cluster.write();
    let pins = cluster.directory.path().join("bpf");
    let _mounted = Unmount(pins.clone());
    let engine = Mutex::new(cluster.nodes[0].run(|| engine(&cluster, &pins)).unwrap());
    let step = |cluster: &Cluster| {
        let mut engine = engine.lock().unwrap();
        let engine = &mut *engine;
        let failed = cluster.nodes[0].run(|| engine.step(None)).unwrap();
        assert!(failed.is_none(), "an update was refused");
    };
    step(&cluster);
    cluster.denied("stranger", "server");
    let edits = |cluster: &mut Cluster| {
        let began = Instant::now();
        for update in 0..UPDATES {
            for number in 0..EDITS {
                engine.lock().unwrap().apply(edit(update, number));
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
