//! The examples of `deploy/cluster-network-policy.md` have the effect that the page describes.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::path::Path;

use netpold_core::compile::Compiler;
use netpold_core::model::{Change, Direction, Rule, Selector};
use netpold_core::ops::TableWriter;
use netpold_core::options::Options;
use netpold_kube::convert::{Manifest, manifest};
use netpold_kube::document::parse;
use netpold_testkit::memory::MemoryTables;
use netpold_testkit::objects;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Returns the policies on the page, by name.
fn examples() -> BTreeMap<String, Change> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/cluster-network-policy.md");
    let page = std::fs::read_to_string(page).unwrap();
    let blocks = page.split("\n```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let converted = blocks.map(|text| {
        let Manifest::Object(object) = manifest(&parse(text).unwrap()[0]).unwrap() else {
            panic!("not read: {text}")
        };
        assert_eq!(object.problems, [], "{text}");
        let Change::ClusterPolicy(policy) = &object.change else { panic!("{text}") };
        (policy.name.clone(), object.change)
    });
    converted.collect()
}

/// Namespace, name and labels.
type PodOf = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Pods of three namespaces and of kube-system on this node; the interface index of a pod is its position here, from
/// 1.
const PODS: [PodOf; 5] = [
    ("red-web", "a", &[]),
    ("red-web", "b", &[("metadata-service", "needed")]),
    ("red-db", "c", &[]),
    ("blue", "d", &[]),
    ("kube-system", "dns", &[("k8s-app", "kube-dns")]),
];

fn address(pod: &str) -> String {
    let index = PODS.iter().position(|(_, name, _)| *name == pod).unwrap();
    format!("10.0.0.{}", index + 1)
}

/// Tables of the node with some policies.
struct InForce(MemoryTables);

impl InForce {
    fn with(policies: impl IntoIterator<Item = Change>) -> Self {
        let mut compiler = Compiler::new(Options { node: "here".into(), ..Options::default() });
        for (name, tenant) in
            [("red-web", "red"), ("red-db", "red"), ("blue", "blue"), ("kube-system", "")]
        {
            let labels = [("kubernetes.io/metadata.name", name), ("tenant", tenant)];
            let used = if tenant.is_empty() { &labels[..1] } else { &labels[..] };
            compiler.ingest(Change::Namespace(objects::namespace(name, used)));
        }
        for (number, (namespace, name, labels)) in PODS.iter().enumerate() {
            let at = address(name);
            let mut pod = objects::pod(namespace, name, labels, &[&at]);
            pod.node = "here".into();
            compiler.ingest(Change::Pod(pod));
            let index = u32::try_from(number).unwrap() + 1;
            compiler.ingest(Change::Interface(objects::interface(index, &[&at])));
        }
        policies.into_iter().for_each(|policy| compiler.ingest(policy));
        let mut tables = MemoryTables::new();
        for op in compiler.update().unwrap() {
            tables.write(&op).unwrap();
        }
        Self(tables)
    }

    fn allows(
        &self,
        direction: Direction,
        pod: &str,
        remote: &str,
        protocol: u8,
        port: u16,
    ) -> bool {
        let index = PODS.iter().position(|(_, name, _)| *name == pod).unwrap() + 1;
        let index = u32::try_from(index).unwrap();
        self.0.allows(index, direction, objects::ip(remote), protocol, port).unwrap()
    }

    fn receives(&self, pod: &str, from: &str) -> bool {
        self.allows(Direction::Ingress, pod, &address(from), TCP, 80)
    }

    fn sends(&self, pod: &str, remote: &str, protocol: u8, port: u16) -> bool {
        self.allows(Direction::Egress, pod, remote, protocol, port)
    }
}

/// Returns a policy for all pods of a namespace, with rules in one direction.
fn network_policy(namespace: &str, direction: Direction, rules: Vec<Rule>) -> Change {
    let (ingress, egress) = match direction {
        Direction::Ingress => (Some(rules), None),
        Direction::Egress => (None, Some(rules)),
    };
    Change::Policy(objects::policy(namespace, "p", Selector::default(), ingress, egress))
}

fn everyone() -> Vec<Rule> {
    vec![Rule { peers: None, ports: None }]
}

fn example(name: &str) -> Change {
    examples().remove(name).unwrap()
}

#[test]
fn every_example_is_checked_here() {
    let names: Vec<String> = examples().into_keys().collect();
    assert_eq!(names, ["default-red-web", "dns", "metadata-service", "tenant-red"]);
}

#[test]
fn tenants_are_isolated_whatever_network_policies_say() {
    let open = network_policy("red-web", Direction::Ingress, everyone());
    for more in [None, Some(open)] {
        let node = InForce::with([example("tenant-red")].into_iter().chain(more));
        assert!(node.receives("a", "c") && node.receives("c", "a"), "the own tenant");
        assert!(!node.receives("a", "d") && !node.receives("c", "d"), "another tenant");
        assert!(node.receives("a", "dns"), "no tenant");
        assert!(node.receives("d", "a"), "not its subject");
        let sends = |pod, to: &str| node.sends(pod, &address(to), TCP, 80);
        assert!(sends("a", "c") && sends("a", "dns") && sends("d", "a"), "not denied");
        assert!(!sends("a", "d") && !sends("c", "d"), "to another tenant");
    }
    let closed = network_policy("red-web", Direction::Ingress, Vec::new());
    let node = InForce::with([example("tenant-red"), closed]);
    assert!(!node.receives("a", "c"), "Pass leaves it to the NetworkPolicy");
}

#[test]
fn the_metadata_service_is_out_of_reach() {
    let open = network_policy("red-web", Direction::Egress, everyone());
    let node = InForce::with([example("metadata-service"), open]);
    for (protocol, port) in [(TCP, 80), (UDP, 53), (1, 0)] {
        assert!(!node.sends("a", "169.254.169.254", protocol, port));
        assert!(!node.sends("d", "169.254.169.254", protocol, port));
        assert!(node.sends("b", "169.254.169.254", protocol, port), "it needs it");
        assert!(node.sends("a", "169.254.169.253", protocol, port));
    }
}

#[test]
fn dns_works_for_pods_that_are_closed() {
    let closed = network_policy("red-web", Direction::Egress, Vec::new());
    let node = InForce::with([example("dns"), closed]);
    let dns = address("dns");
    assert!(node.sends("a", &dns, UDP, 53) && node.sends("a", &dns, TCP, 53));
    assert!(!node.sends("a", &dns, TCP, 80) && !node.sends("a", "192.0.2.1", UDP, 53));
    assert!(node.sends("d", &dns, TCP, 80), "nothing isolates it");
}

#[test]
fn the_default_holds_until_a_network_policy_replaces_it() {
    let node = InForce::with([example("default-red-web")]);
    assert!(node.receives("a", "b") && !node.receives("a", "c") && !node.receives("a", "d"));
    assert!(node.receives("c", "a"), "not its subject");
    assert!(node.allows(Direction::Ingress, "a", "192.0.2.1", TCP, 80), "from outside");
    let open = network_policy("red-web", Direction::Ingress, everyone());
    let node = InForce::with([example("default-red-web"), open]);
    assert!(node.receives("a", "d"));
}
