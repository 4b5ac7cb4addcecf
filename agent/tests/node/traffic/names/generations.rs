//! Generations of programs whose tables of names the next one continues.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use aya::maps::{Array, Map, MapData};
use netpold_core::compile::Compiler;
use netpold_core::model::{Action, Change, DomainName, Peer, Tier};
use netpold_core::ops::{Capacity, Op};
use netpold_core::options::Options;
use netpold_dataplane::attach::{AttachMode, Attacher};
use netpold_dataplane::bpffs::PinRoot;
use netpold_dataplane::conntrack::Buckets;
use netpold_dataplane::role::Role;
use netpold_dataplane::{Dataplane, DataplaneOptions};
use netpold_testbed::cluster::TestCluster;
use netpold_testbed::{Cni, Unmount, require_root};
use netpold_testkit::objects::{
    NODE, block, cluster_policy, cluster_rule, interface, namespace, node, pod,
};

/// Operations for a pod at an interface, with or without a rule about a domain name.
fn image(index: u32, has_names: bool) -> Vec<Op> {
    let name = DomainName::try_from("api.example.com".to_owned()).unwrap();
    let peer = if has_names { Peer::Domain(name) } else { block("192.0.2.0/24", &[]) };
    let rules = vec![
        cluster_rule(Action::Accept, vec![peer], None),
        cluster_rule(Action::Deny, vec![block("0.0.0.0/0", &[])], None),
    ];
    let address = "10.1.1.7";
    let mut compiler = Compiler::new(Options { node: NODE.into(), ..Options::default() });
    let changes = [
        Change::Node(node(NODE, &["192.168.0.1"])),
        Change::Namespace(namespace("a", &[])),
        Change::Pod(pod("a", "p", &[], &[address])),
        Change::Interface(interface(index, &[address])),
        Change::ClusterPolicy(cluster_policy("names", (Tier::Admin, 10), vec![], rules)),
    ];
    changes.into_iter().for_each(|change| compiler.ingest(change));
    compiler.recompile(Capacity::SMALL, |_, _| None).unwrap()
}

/// Time of the last doubt about all connections of an endpoint, as the pinned table has it.
fn doubt(pins: &Path, endpoint: u32) -> u64 {
    let map = MapData::from_pin(pins.join("DOUBTED_PODS")).unwrap();
    Array::<_, u64>::try_from(Map::Array(map)).unwrap().get(&endpoint, 0).unwrap()
}

/// Programs that were never attached have read nothing, so connections to resolvers end at the attachment of the next
/// ones.
#[test]
fn connections_end_that_a_generation_never_attached_should_have_read() {
    require_root!();
    let cluster = TestCluster::one(Cni::Ptp).with_pods(&["client"]);
    let index = cluster.pod("client").host_ifindex();
    let root = cluster.directory.path().join("bpf");
    let _mounted = Unmount(root.clone());
    let act = || {
        let pins = PinRoot::open(&root).unwrap();
        let maps = pins.map("DOUBTED_PODS").parent().unwrap().to_owned();
        let attacher = Attacher::new(&pins.links(), AttachMode::probe()).unwrap();
        let options = DataplaneOptions::new(Buckets::fixed(1_024), 7);
        let mut dataplane = Dataplane::new(pins, attacher, options);
        let roles = BTreeMap::from([(index, Role::Pod(1))]);
        dataplane.install(&Capacity::SMALL, &image(index, false)).unwrap();
        let problems = dataplane.attach(&roles);
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(doubt(&maps, 1), 0, "no rule has a name");
        for _ in 0..2 {
            dataplane.install(&Capacity::SMALL, &image(index, true)).unwrap();
        }
        let before = doubt(&maps, 1);
        assert_ne!(before, 0, "rules have names");
        // A jiffy is 10 ms at most.
        std::thread::sleep(Duration::from_millis(20));
        let problems = dataplane.attach(&roles);
        assert!(problems.is_empty(), "{problems:?}");
        assert_ne!(doubt(&maps, 1), before, "packets before the attachment were not read");
    };
    cluster.nodes[0].run(act).unwrap();
}
