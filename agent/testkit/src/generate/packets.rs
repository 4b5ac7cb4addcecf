//! Packets for a generated cluster, biased towards the edges of verdicts.

use std::net::IpAddr;

use ipnet::IpNet;

use super::choices::Choices;
use super::cluster::GeneratedCluster;
use super::objects::{self, NAMED_PORTS, PORTS};
use netpold_core::model::{Change, Direction, Key, Peer, PortMatch, Rule, Service};
use netpold_core::probe::{IpProtocol, Party, Probe};

/// A packet that opens a flow, as a pod sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpeningPacket {
    /// The judged pod.
    pub pod: Key,
    /// Direction as the pod sees it.
    pub direction: Direction,
    /// The remote address.
    pub remote: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Destination port.
    pub port: u16,
}

/// Pool from which packets of one cluster are drawn.
#[derive(Clone, Debug)]
pub struct PacketSource {
    pods: Vec<Key>,
    addresses: Vec<IpAddr>,
    blocks: Vec<IpNet>,
    ports: Vec<u16>,
    /// Addresses, protocols and ports of Services and of node ports.
    frontends: Vec<(IpAddr, u8, u16)>,
    services: Vec<Key>,
}

impl PacketSource {
    /// Collects addresses, blocks, excepts, and the ends of port ranges with their neighbours from a cluster's objects.
    #[must_use]
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "of the many kinds, those that packets are drawn from"
    )]
    pub fn new(cluster: &GeneratedCluster) -> Self {
        let mut all = Self {
            pods: cluster.pods().map(|pod| pod.key.clone()).collect(),
            addresses: Vec::new(),
            blocks: Vec::new(),
            ports: PORTS.to_vec(),
            frontends: Vec::new(),
            services: Vec::new(),
        };
        let nodes: Vec<IpAddr> =
            cluster.nodes().flat_map(|node| &node.addresses).copied().collect();
        for object in &cluster.objects {
            match object {
                Change::Pod(pod) => {
                    all.addresses.extend(pod.all_addresses());
                    all.ports.extend(pod.ports.iter().map(|port| port.port));
                }
                Change::Node(node) => all.addresses.extend(&node.addresses),
                Change::Policy(policy) => {
                    let rules = policy.ingress.iter().chain(&policy.egress).flatten();
                    rules.for_each(|rule| all.note_rule(rule));
                }
                Change::ClusterPolicy(policy) => {
                    let rules = policy.ingress.iter().chain(&policy.egress);
                    rules.for_each(|rule| all.note_rule(&rule.matches));
                }
                Change::Service(service) => all.note_service(service, &nodes),
                Change::EndpointSlice(slice) => {
                    all.addresses.extend(&slice.addresses);
                    all.ports.extend(slice.ports.iter().map(|port| port.port));
                }
                _ => {}
            }
        }
        all
    }

    fn note_service(&mut self, service: &Service, nodes: &[IpAddr]) {
        self.services.push(service.key.clone());
        self.addresses.extend(&service.addresses);
        for port in &service.ports {
            let protocol = port.protocol.number();
            let own = service.addresses.iter().map(|address| (*address, port.port));
            let node_ports = port.node_port.into_iter();
            let node_ports = node_ports.flat_map(|number| nodes.iter().map(move |a| (*a, number)));
            self.frontends.extend(own.chain(node_ports).map(|(a, number)| (a, protocol, number)));
        }
    }

    fn note_rule(&mut self, rule: &Rule) {
        rule.peers.iter().flatten().for_each(|peer| self.note_peer(peer));
        rule.ports.iter().flatten().for_each(|port| self.note_port(&port.port));
    }

    fn note_peer(&mut self, peer: &Peer) {
        if let Peer::Block(block) = peer {
            self.blocks.push(block.cidr);
            self.blocks.extend(&block.except);
        }
    }

    fn note_port(&mut self, port: &PortMatch) {
        if let PortMatch::Range(first, last) = port {
            let ends = [first.wrapping_sub(1), *first, *last, last.wrapping_add(1)];
            self.ports.extend(ends);
        }
    }

    /// A remote address.
    pub fn remote(&self, choices: &mut Choices<'_>) -> IpAddr {
        match choices.below(10) {
            0..=5 if !self.addresses.is_empty() => *choices.pick(&self.addresses),
            6..=8 if !self.blocks.is_empty() => {
                let block = *choices.pick(&self.blocks);
                objects::near(choices, &block)
            }
            9 if choices.chance(30) => IpAddr::from(choices.word().to_be_bytes()),
            _ => objects::address(choices),
        }
    }

    fn port(&self, choices: &mut Choices<'_>) -> u16 {
        match choices.below(10) {
            0 => (choices.word() & 0xffff) as u16,
            1..=3 => *choices.pick(&NAMED_PORTS),
            _ => *choices.pick(&self.ports),
        }
    }

    /// A packet of one of these pods.
    pub fn packet(&self, choices: &mut Choices<'_>, pods: &[Key]) -> OpeningPacket {
        if !self.frontends.is_empty() && choices.chance(20) {
            let (remote, protocol, port) = *choices.pick(&self.frontends);
            // Sometimes a port that is not translated.
            let port = if choices.chance(90) { port } else { self.port(choices) };
            let direction = if choices.chance(90) { Direction::Egress } else { Direction::Ingress };
            let pod = choices.pick(pods).clone();
            return OpeningPacket { pod, direction, remote, protocol, port };
        }
        OpeningPacket {
            pod: choices.pick(pods).clone(),
            direction: *choices.pick(&Direction::BOTH),
            remote: self.remote(choices),
            protocol: protocol(choices),
            port: self.port(choices),
        }
    }

    /// A probe between any two parties.
    pub fn probe(&self, choices: &mut Choices<'_>) -> Probe {
        if !self.frontends.is_empty() && choices.chance(20) {
            let (address, protocol, port) = *choices.pick(&self.frontends);
            let protocol = IpProtocol(protocol);
            let to = match choices.chance(20) && !self.services.is_empty() {
                true => Party::Service(choices.pick(&self.services).clone()),
                false => Party::Address(address),
            };
            return Probe { from: self.party(choices), to, protocol, port };
        }
        let protocol = IpProtocol(protocol(choices));
        let port = if protocol.has_ports() { self.port(choices) } else { 0 };
        Probe { from: self.party(choices), to: self.party(choices), protocol, port }
    }

    fn party(&self, choices: &mut Choices<'_>) -> Party {
        match choices.below(10) {
            0..=5 if !self.pods.is_empty() => Party::Pod(choices.pick(&self.pods).clone()),
            6 if choices.chance(10) => Party::Pod(Key::new("x", "nobody")),
            _ => Party::Address(self.remote(choices)),
        }
    }
}

fn protocol(choices: &mut Choices<'_>) -> u8 {
    match choices.below(12) {
        0..=4 => 6,
        5..=7 => 17,
        8 | 9 => 132,
        10 => *choices.pick(&[1, 58]),
        _ => *choices.pick(&[0, 2, 5, 7, 47, 131, 133, 255]),
    }
}
