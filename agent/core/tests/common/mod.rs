//! Builders of cluster objects, and a world that keeps a compiler and its tables together.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "each test binary uses a part"
)]

use std::net::IpAddr;

use netpold_core::compile::Compiler;
use netpold_core::model::{
    Change, Direction, Interface, IpBlock, Key, Labels, NamedPort, Namespace, Node, Peer, Pod,
    Policy, PortMatch, PortRule, Protocol, Requirement, Rule, Selector,
};
use netpold_core::ops::TableWriter;
use netpold_core::options::Options;
use netpold_testkit::memory::MemoryTables;

pub mod generate;

pub const NODE: &str = "here";

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

pub fn namespace(name: &str, pairs: &[(&str, &str)]) -> Namespace {
    let mut labels = labels(pairs);
    labels.insert("kubernetes.io/metadata.name".into(), name.into());
    Namespace { name: name.into(), labels }
}

pub fn node(name: &str, addresses: &[&str]) -> Node {
    Node { name: name.into(), addresses: addresses.iter().map(|a| ip(a)).collect() }
}

/// A pod of this node.
pub fn pod(namespace: &str, name: &str, pairs: &[(&str, &str)], addresses: &[&str]) -> Pod {
    Pod {
        key: Key::new(namespace, name),
        uid: format!("{namespace}/{name}"),
        labels: labels(pairs),
        node: NODE.into(),
        addresses: addresses.iter().map(|a| ip(a)).collect(),
        host_network: false,
        finished: false,
        terminating: false,
        created: 0,
        ports: Vec::new(),
        foreign_sources: false,
    }
}

pub fn named(name: &str, protocol: Protocol, port: u16) -> NamedPort {
    NamedPort { name: name.into(), protocol, port }
}

pub fn interface(index: u32, addresses: &[&str]) -> Interface {
    Interface {
        index,
        incarnation: 1,
        addresses: addresses.iter().map(|a| ip(a)).collect(),
        ..Interface::default()
    }
}

/// A selector of labels that must be equal.
pub fn select(pairs: &[(&str, &str)]) -> Selector {
    Selector {
        requirements: pairs
            .iter()
            .map(|(k, v)| Requirement::In((*k).into(), vec![(*v).into()]))
            .collect(),
    }
}

pub fn pods(namespaces: Option<Selector>, pods: Selector) -> Peer {
    Peer::Pods { namespaces, pods }
}

pub fn block(cidr: &str, except: &[&str]) -> Peer {
    Peer::Block(IpBlock {
        cidr: cidr.parse().unwrap(),
        except: except.iter().map(|e| e.parse().unwrap()).collect(),
    })
}

pub fn tcp(port: u16) -> PortRule {
    PortRule { protocol: Protocol::Tcp, port: PortMatch::Range(port, port) }
}

pub fn port_name(protocol: Protocol, name: &str) -> PortRule {
    PortRule { protocol, port: PortMatch::Named(name.into()) }
}

pub fn rule(peers: Option<Vec<Peer>>, ports: Option<Vec<PortRule>>) -> Rule {
    Rule { peers, ports }
}

pub fn policy(
    namespace: &str,
    name: &str,
    pod_selector: Selector,
    ingress: Option<Vec<Rule>>,
    egress: Option<Vec<Rule>>,
) -> Policy {
    let key = Key::new(namespace, name);
    Policy { key, pod_selector, ingress, egress, problems: Vec::new() }
}

/// A compiler and the tables it fills.
pub struct World {
    pub compiler: Compiler,
    pub tables: MemoryTables,
}

impl World {
    pub fn new(changes: impl IntoIterator<Item = Change>) -> Self {
        let options = Options { node: NODE.into(), ..Options::default() };
        let mut world = Self { compiler: Compiler::new(options), tables: MemoryTables::new() };
        world.apply(changes);
        world
    }

    /// Takes in changes as one update; returns the number of operations.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = Change>) -> usize {
        changes.into_iter().for_each(|change| self.compiler.ingest(change));
        let ops = self.compiler.update().unwrap();
        for op in &ops {
            self.tables.write(op).unwrap();
        }
        self.compiler.grace_passed();
        ops.len()
    }

    pub fn allows(&self, ifindex: u32, direction: Direction, remote: &str, port: u16) -> bool {
        self.tables.allows(ifindex, direction, ip(remote), 6, port).unwrap()
    }

    pub fn ingress(&self, ifindex: u32, remote: &str, port: u16) -> bool {
        self.allows(ifindex, Direction::Ingress, remote, port)
    }

    pub fn egress(&self, ifindex: u32, remote: &str, port: u16) -> bool {
        self.allows(ifindex, Direction::Egress, remote, port)
    }
}
