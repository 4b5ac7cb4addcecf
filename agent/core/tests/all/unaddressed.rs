//! Verdicts for pods without an address hold at every address that the pods can get.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use netpold_core::explain::{Explainer, Verdict};
use netpold_core::model::{Change, Direction, Key, Peer, Pod};
use netpold_core::probe::{IpProtocol, Party, Probe};
use netpold_testkit::generate::{Choices, GeneratedCluster};
use netpold_testkit::oracle::Oracle;

const CLUSTERS: u64 = 2500;
const RANGE: &str = "10.0.0.0/14";
const PORTS: [u16; 6] = [53, 79, 80, 443, 8080, 65535];
/// Number of addresses per pod and probe to compare with the oracle.
const ADDRESSES: usize = 12;

/// Returns the objects, with the given addresses of these pods.
fn with<C: FromIterator<Change>>(objects: &[Change], given: &[(&Key, Option<IpAddr>)]) -> C {
    let place = |object: &Change| {
        let Change::Pod(pod) = object else { return object.clone() };
        let Some((_, address)) = given.iter().find(|(key, _)| **key == pod.key) else {
            return object.clone();
        };
        Change::Pod(Pod { addresses: address.iter().copied().collect(), ..pod.clone() })
    };
    objects.iter().map(place).collect()
}

/// Returns the ends of the policies' blocks and their neighbours, as far as they are in the range and belong to no
/// object.
fn addresses(cluster: &netpold_core::cluster::Cluster, range: IpNet) -> Vec<IpAddr> {
    let mut found = BTreeSet::from([IpAddr::from([10, 0, 0, 9]), IpAddr::from([10, 2, 3, 4])]);
    let of_policies = cluster.policies().values();
    let rules =
        of_policies.flat_map(|policy| Direction::BOTH.map(|d| policy.rules(d))).flatten().flatten();
    let of_tiers =
        cluster.cluster_policies().flat_map(|policy| Direction::BOTH.map(|d| policy.rules(d)));
    let rules = rules.chain(of_tiers.flatten().map(|rule| &rule.matches));
    for peer in rules.flat_map(|rule| rule.peers.iter().flatten()) {
        let Peer::Block(block) = peer else { continue };
        for net in [block.cidr].iter().chain(&block.except) {
            let IpNet::V4(net) = net else { continue };
            let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
            let near = [
                first.saturating_sub(1),
                first,
                first.saturating_add(1),
                last,
                last.saturating_add(1),
            ];
            found.extend(near.map(|bits| IpAddr::from(std::net::Ipv4Addr::from_bits(bits))));
        }
    }
    let is_free = |address: &IpAddr| {
        range.contains(address)
            && cluster.owner(*address).is_none()
            && cluster.service_at(*address).is_none()
            && cluster.nodes().values().all(|node| !node.addresses.contains(address))
            && cluster.pods().values().all(|pod| !pod.addresses.contains(address))
    };
    found.into_iter().filter(is_free).collect()
}

#[test]
fn verdicts_hold_at_every_address() {
    let ranges: [IpNet; 1] = [RANGE.parse().unwrap()];
    let (mut allowed, mut denied, mut unknown, mut both_seen) = (0, 0, 0, 0);
    for seed in 0..CLUSTERS {
        let mut choices = Choices::from_seed(seed);
        let objects = GeneratedCluster::generate(&mut choices).objects;
        let all: netpold_core::cluster::Cluster = objects.iter().cloned().collect();
        let is_meant = |pod: &&Pod| !pod.host_network && !pod.finished;
        let pods: Vec<&Pod> = all.pods().values().map(|pod| &**pod).filter(is_meant).collect();
        let placed = |pod: &Pod| {
            pod.addresses.iter().any(IpAddr::is_ipv4)
                && pod.addresses.iter().all(|a| all.owner(*a).is_some_and(|o| o.key == pod.key))
        };
        let others: Vec<&Pod> = pods.iter().copied().filter(|pod| placed(pod)).collect();
        if pods.is_empty() || others.is_empty() {
            continue;
        }
        for _ in 0..8 {
            let (lacks, other) = (*choices.pick(&pods), *choices.pick(&others));
            if lacks.key == other.key {
                continue;
            }
            let both = choices.chance(30);
            let mut given = vec![(&lacks.key, None)];
            if both {
                given.push((&other.key, None));
            }
            let cluster: netpold_core::cluster::Cluster = with(&objects, &given);
            let free = addresses(&cluster, ranges[0]);
            let [from, to] = match choices.chance(50) {
                true => [lacks, other],
                false => [other, lacks],
            };
            let [from, to] = [from, to].map(|pod| Party::Pod(pod.key.clone()));
            let (protocol, port) =
                (*choices.pick(&[IpProtocol::TCP, IpProtocol::UDP]), *choices.pick(&PORTS));
            let probe = Probe { from, to, protocol, port };
            let explainer = Explainer::new(&cluster).with_ranges(&ranges);
            let (verdict, reason) = explainer.verdict(&probe);
            let told = explainer.explain(&probe);
            assert_eq!((told.verdict, &told.reason), (verdict, &reason));
            let mut seen = BTreeSet::new();
            for _ in 0..ADDRESSES {
                let (one, two) = (*choices.pick(&free), *choices.pick(&free));
                if both && one == two {
                    continue;
                }
                let mut given = vec![(&lacks.key, Some(one))];
                if both {
                    given.push((&other.key, Some(two)));
                }
                let oracle: Oracle = with(&objects, &given);
                seen.extend(oracle.verdict(&probe).allowed());
            }
            let place =
                || format!("seed {seed}: {probe}: {verdict:?} {reason:?}, the oracle has {seen:?}");
            match verdict {
                Verdict::Allow => {
                    assert!(!seen.contains(&false), "{}", place());
                    allowed += 1;
                }
                Verdict::Deny => {
                    assert!(!seen.contains(&true), "{}", place());
                    denied += 1;
                }
                Verdict::Unknown => {
                    unknown += 1;
                    both_seen += u32::from(seen.len() == 2);
                }
            }
        }
    }
    assert!(allowed > 1000 && denied > 1000, "{allowed} allowed, {denied} denied");
    // Unknown verdicts do depend on the address, as far as a few addresses show it.
    assert!(
        unknown > 100 && both_seen * 4 > unknown,
        "{unknown} unknown, {both_seen} seen to differ"
    );
}
