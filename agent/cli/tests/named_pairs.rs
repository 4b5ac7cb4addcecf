//! Pairs that rules name, in generated clusters, compared with the oracle.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::HashMap;
use std::net::IpAddr;

use netpold_cli::diff::{NamedPair, NamedPairs, Party, State, named_pairs};
use netpold_core::cluster::{Cluster, is_subject};
use netpold_core::model::{Change, Key, Pod, Protocol};
use netpold_core::probe::{IpProtocol, Party as Side, Probe};
use netpold_testkit::generate;
use netpold_testkit::oracle::Oracle;

/// Number of generated clusters.
const CLUSTERS: u64 = 1500;
/// Ports near the ends of generated ranges.
const PORTS: [u16; 8] = [1, 53, 79, 80, 81, 443, 8080, u16::MAX];

struct World {
    cluster: Cluster,
    oracle: Oracle,
    named: NamedPairs,
    parties: HashMap<Key, usize>,
}

impl World {
    fn new(seed: u64) -> Self {
        let objects: Vec<Change> = generate::Cluster::from_seed(seed).objects;
        let objects: Vec<Change> = objects.into_iter().filter(Change::is_object).collect();
        let cluster: Cluster = objects.iter().cloned().collect();
        let named = named_pairs(&cluster, &[], usize::MAX);
        let mut parties = HashMap::new();
        for (index, party) in named.parties.iter().enumerate() {
            if let Party::Workload(workload) = party {
                parties.extend(workload.pods[1].iter().map(|pod| (pod.clone(), index)));
            }
        }
        Self { cluster, oracle: objects.into_iter().collect(), named, parties }
    }

    /// Returns the pods that policies can select, each with its addresses.
    fn pods(&self) -> Vec<(&Pod, IpAddr)> {
        let pods = self.cluster.pods().values().map(|pod| &**pod).filter(|pod| is_subject(pod));
        let owned = pods.flat_map(|pod| pod.addresses.iter().map(move |address| (pod, *address)));
        owned
            .filter(|(pod, at)| self.cluster.owner(*at).is_some_and(|it| it.key == pod.key))
            .collect()
    }

    /// Returns whether an address is listed twice: a pod reaches its own address whoever has it, and a Service's is
    /// translated.
    fn has_claimed_addresses(&self) -> bool {
        let pods = self.cluster.pods().values().filter(|pod| !pod.host_network);
        let services = self.cluster.services().values().flat_map(|it| it.addresses.clone());
        let nodes = self.cluster.nodes().values().flat_map(|node| node.addresses.clone());
        let pods = pods.flat_map(|pod| pod.addresses.clone());
        let mut listed: Vec<IpAddr> = pods.chain(services).chain(nodes).collect();
        let all = listed.len();
        listed.sort_unstable();
        listed.dedup();
        listed.len() < all
    }

    fn is_allowed(&self, from: IpAddr, to: IpAddr, protocol: IpProtocol, port: u16) -> bool {
        let (from, to) = (Side::Address(from), Side::Address(to));
        self.oracle.verdict(&Probe { from, to, protocol, port }).allowed().unwrap()
    }

    fn pair(&self, from: usize, to: usize) -> Option<&NamedPair> {
        self.named.pairs.iter().find(|pair| (pair.from, pair.to) == (from, to))
    }
}

#[test]
fn named_pairs_have_the_oracles_ports_and_others_follow_from_isolation() {
    let (mut named, mut cut, mut open) = (0, 0, 0);
    for seed in 0..CLUSTERS {
        let world = World::new(seed);
        let pods = world.pods();
        if world.has_claimed_addresses() {
            continue;
        }
        for (from, source) in &pods {
            for (to, destination) in &pods {
                if from.key == to.key || source.is_ipv6() != destination.is_ipv6() {
                    continue;
                }
                let (a, b) = (world.parties[&from.key], world.parties[&to.key]);
                let at = |port| world.is_allowed(*source, *destination, IpProtocol::TCP, port);
                if let Some(pair) = world.pair(a, b) {
                    for port in PORTS.into_iter().filter(|_| !pair.some) {
                        let said = pair.allowed.contains(Protocol::Tcp, port);
                        assert_eq!(
                            said,
                            at(port),
                            "seed {seed}: {} to {}, TCP {port}",
                            from.key,
                            to.key
                        );
                        named += 1;
                    }
                    continue;
                }
                let [sender, receiver] = [a, b].map(|index| world.named.sides[index]);
                if sender.egress_tiers || receiver.ingress_tiers {
                    continue;
                }
                let closed = sender.egress == State::Isolated && !sender.to_everyone
                    || receiver.ingress == State::Isolated && !receiver.from_everyone;
                let free = [sender.egress, receiver.ingress]
                    .into_iter()
                    .all(|state| matches!(state, State::Open | State::Trial));
                for port in PORTS {
                    if closed {
                        assert!(!at(port), "seed {seed}: no rule names {} to {}", from.key, to.key);
                        cut += 1;
                    } else if free {
                        assert!(
                            at(port),
                            "seed {seed}: nothing isolates {} to {}",
                            from.key,
                            to.key
                        );
                        open += 1;
                    }
                }
            }
        }
    }
    assert!(named > 1000 && cut > 1000 && open > 1000, "{named} named, {cut} cut, {open} open");
}
