//! Verdicts about a node's own pods, with other nodes' pods from slices, compared with those with whole pods.
#![expect(clippy::unwrap_used, reason = "tests")]

use netpold_core::model::{Change, Key, Pod};
use netpold_slices::{MAX_PODS, Vocabulary, decode, encode};
use netpold_testkit::generate::{Choices, GeneratedCluster, NODE, OpeningPacket, PacketSource};
use netpold_testkit::oracle::Oracle;

const CLUSTERS: u64 = 600;
const PACKETS: usize = 150;

fn vocabulary(cluster: &GeneratedCluster) -> Vocabulary {
    let mut all = Vocabulary::default();
    for change in &cluster.objects {
        if let Change::Policy(policy) = change {
            all.extend(Vocabulary::of_policy(policy));
        }
        if let Change::ClusterPolicy(policy) = change {
            all.extend(Vocabulary::of_cluster_policy(policy));
        }
    }
    all
}

/// The cluster's state in the view of an agent on [`NODE`], from encoded slices of this vocabulary.
fn by_slices(cluster: &GeneratedCluster, vocabulary: &Vocabulary) -> Oracle {
    let mut oracle: Oracle = cluster.objects.iter().cloned().collect();
    let (own, others): (Vec<Pod>, Vec<Pod>) =
        oracle.pods.into_iter().partition(|pod| *pod.node == *NODE);
    let mut reduced: Vec<Pod> = others.iter().filter_map(|pod| vocabulary.reduce(pod)).collect();
    reduced.sort_by(|a, b| a.key.cmp(&b.key));
    let read = |pods: &[Pod]| {
        let text = serde_json::to_string(&encode(pods)).unwrap();
        let read = decode(&serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(read, pods);
        read
    };
    let read: Vec<Pod> = reduced.chunks(MAX_PODS).flat_map(read).collect();
    oracle.pods = own.into_iter().chain(read).collect();
    oracle
}

/// Number of packets with different verdicts.
fn differences(seed: u64, cluster: &GeneratedCluster, vocabulary: &Vocabulary) -> usize {
    let own = cluster.pods().filter(|pod| *pod.node == *NODE && !pod.host_network);
    let own: Vec<Key> = own.map(|pod| pod.key.clone()).collect();
    if own.is_empty() {
        return 0;
    }
    let whole: Oracle = cluster.objects.iter().cloned().collect();
    let reduced = by_slices(cluster, vocabulary);
    let (source, mut choices) = (PacketSource::new(cluster), Choices::from_seed(seed));
    let differs = |OpeningPacket { pod, direction, remote, protocol, port }: &OpeningPacket| {
        let verdict = |oracle: &Oracle| {
            let pod = oracle.pods.iter().find(|it| it.key == *pod).unwrap();
            oracle.judge(pod, *direction, *remote, *protocol, *port)
        };
        verdict(&whole) != verdict(&reduced)
    };
    let packets = (0..PACKETS).map(|_| source.packet(&mut choices, &own));
    packets.filter(differs).count()
}

#[test]
fn slices_give_the_verdicts_of_whole_pods() {
    for seed in 0..CLUSTERS {
        let cluster = GeneratedCluster::from_seed(seed);
        assert_eq!(differences(seed, &cluster, &vocabulary(&cluster)), 0, "seed {seed}");
    }
}

/// A vocabulary that lacks a policy's names gives other verdicts, and does not cover the policies.
#[test]
fn slices_without_labels_of_a_policy_are_recognised() {
    let mut differing = 0;
    for seed in 0..CLUSTERS {
        let cluster = GeneratedCluster::from_seed(seed);
        let needed = vocabulary(&cluster);
        assert!(needed.covers(&needed));
        let known = Vocabulary::default();
        assert_eq!(known.covers(&needed), needed == known);
        differing += usize::from(differences(seed, &cluster, &known) > 0);
    }
    assert!(differing > 20, "{differing} clusters");
}
