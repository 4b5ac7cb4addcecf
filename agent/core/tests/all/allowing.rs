//! The rules that `Allowing` finds for flows, compared with the explainer's verdict for each rule alone.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeSet;
use std::sync::Arc;

use netpold_core::cluster::Cluster;
use netpold_core::explain::{Allowing, Cause, Explainer, PodFlow, RuleIndex, Verdict};
use netpold_core::model::{Change, Direction, Key, Policy, Rule};
use netpold_core::probe::IpProtocol;
use netpold_testkit::generate::{Choices, GeneratedCluster, OpeningPacket, PacketSource};

/// A rule: its policy, and its number in the packet's direction.
type Rules = BTreeSet<(Key, u32)>;

/// The rules that `Allowing` finds for a packet. Also compares the rule of a ClusterNetworkPolicy with the explainer's.
fn found(state: &Cluster, packet: &OpeningPacket) -> Rules {
    let allowing = Allowing::new(state);
    let pod = state.pods().get(&packet.pod).unwrap();
    let policies = allowing.policies(pod, packet.direction).into_iter();
    let indexes: Vec<RuleIndex> = policies.map(RuleIndex::new).collect();
    let flow = PodFlow {
        pod,
        direction: packet.direction,
        remote: packet.remote,
        protocol: IpProtocol(packet.protocol),
        port: packet.port,
    };
    let allowed = allowing.rules(&indexes.iter().collect::<Vec<_>>(), flow, |_| None);
    assert!(allowed.compared > 0);
    if state.services().is_empty() {
        let protocol = IpProtocol(packet.protocol);
        let explainer = Explainer::new(state);
        let judged =
            explainer.judge(&pod.key, packet.direction, packet.remote, protocol, packet.port);
        let rule = judged.filter(|judged| judged.verdict == Verdict::Allow);
        let rule = rule.and_then(|judged| judged.tiers.decided_by);
        let rule = rule.map(|rule| (rule.policy.policy, rule.index));
        assert_eq!(allowed.cluster_rules, Vec::from_iter(rule), "{packet:?}");
    }
    let name = |(policy, rule): (u32, u32)| (indexes[policy as usize].policy().key.clone(), rule);
    allowed.rules.into_iter().map(name).collect()
}

/// The rules that each allow the packet as the only rule of the namespace. `weighed`: the state with all rules, for the
/// budget of each policy.
fn alone(objects: &[Change], packet: &OpeningPacket, weighed: &Cluster) -> Rules {
    let of = |policy: &Policy| policy.key.namespace == packet.pod.namespace;
    let (policies, others): (Vec<_>, Vec<_>) = objects
        .iter()
        .cloned()
        .partition(|object| matches!(object, Change::Policy(policy) if of(policy)));
    let mut rules = Rules::new();
    for object in policies {
        let Change::Policy(policy) = object else { continue };
        let granted = policy.rules(packet.direction).unwrap_or_default().to_vec();
        let cause = |only: Vec<Rule>| {
            let alone = match packet.direction {
                Direction::Ingress => Policy { ingress: Some(only), ..policy.clone() },
                Direction::Egress => Policy { egress: Some(only), ..policy.clone() },
            };
            let state: Cluster = others.iter().cloned().chain([Change::Policy(alone)]).collect();
            let protocol = IpProtocol(packet.protocol);
            let (pod, remote) = (&packet.pod, packet.remote);
            let explainer = Explainer::new(&state);
            let judged = explainer.judge(pod, packet.direction, remote, protocol, packet.port);
            judged.unwrap().cause
        };
        // Without a rule, a Service's address is allowed if a backend is the pod itself or its node.
        let needs_none = cause(Vec::new()) == Cause::Backend;
        for (number, rule) in (0_u32..).zip(granted) {
            let cause = cause(vec![rule]);
            let allows = cause == Cause::Rule || (cause == Cause::Backend && !needs_none);
            if allows && weighed.excess(&policy.key).is_none() {
                rules.insert((policy.key.clone(), number));
            }
        }
    }
    rules
}

#[test]
fn every_rule_that_allows_alone_is_found_and_no_other() {
    let (mut flows, mut several) = (0, 0);
    for seed in 0..600 {
        let cluster = GeneratedCluster::from_seed(seed);
        let state: Cluster = cluster.objects.iter().cloned().collect();
        let source = PacketSource::new(&cluster);
        let mut choices = Choices::from_seed(!seed);
        let pods: Vec<Key> = cluster.pods().map(|pod| pod.key.clone()).collect();
        for _ in 0..40 {
            let packet = source.packet(&mut choices, &pods);
            let (found, alone) = (found(&state, &packet), alone(&cluster.objects, &packet, &state));
            let missing: Vec<_> = alone.difference(&found).collect();
            assert!(missing.is_empty(), "seed {seed}, {packet:?}: {missing:?}\n{cluster}");
            // At another node's node port, `Allowing` also finds rules that allow only some of the backends.
            let services = state.services().len();
            assert!(
                services > 0 || alone == found,
                "seed {seed}, {packet:?}: {found:?}\n{cluster}"
            );
            flows += usize::from(!found.is_empty());
            several += usize::from(found.len() > 1);
        }
    }
    println!("{flows} flows allowed by rules, {several} by several");
    assert!(flows > 1_000 && several > 100, "{flows} {several}");
}

/// The cost of a flow does not grow with the number of rules, with blocks and with pods as peers.
#[test]
fn few_of_many_rules_are_compared() {
    use netpold_core::model::{IpBlock, Peer};
    use netpold_testkit::objects::{ip, pod, select};

    const RULES: u32 = 10_000;
    let address = |n: u32| format!("10.{}.{}.1", n >> 8, n & 255);
    let number = |n: u32| n.to_string();
    let rule = |n: u32| {
        let peer = if n < RULES / 2 {
            let cidr = address(n).parse::<std::net::IpAddr>().unwrap().into();
            Peer::Block(IpBlock { cidr, except: Vec::new() })
        } else {
            let pods = select(&[("app", "client"), ("number", &number(n))]);
            Peer::Pods { namespaces: None, pods }
        };
        Rule { peers: Some(vec![peer]), ports: None }
    };
    let mut policy = netpold_testkit::objects::policy("x", "many", select(&[]), None, None);
    policy.ingress = Some((0..RULES).map(rule).collect());
    let server = pod("x", "server", &[], &["10.200.0.1"]);
    let clients = (RULES / 2..RULES).map(|n| {
        let labels = [("app", "client"), ("number", &number(n))];
        pod("x", &format!("c{n}"), &labels, &[&address(n)])
    });
    let objects = clients.chain([server.clone()]).map(Change::Pod);
    let state: Cluster = objects.collect();
    let indexes = [RuleIndex::new(Arc::new(policy))];
    let indexes: Vec<_> = indexes.iter().collect();
    for n in 0..RULES {
        let flow = PodFlow {
            pod: &server,
            direction: Direction::Ingress,
            remote: ip(&address(n)),
            protocol: IpProtocol::TCP,
            port: 80,
        };
        let allowed = Allowing::new(&state).rules(&indexes, flow, |_| None);
        assert_eq!(allowed.rules, [(0, n)]);
        let compared = allowed.compared;
        assert!(compared < 10, "{compared} compared for one of {RULES} rules");
    }
}
