//! ClusterNetworkPolicies of small clusters.

use netpold_core::model::{
    Action, ClusterPolicy, ClusterRule, NamespacedPods, Peer, PortMatch, PortRule, Protocol, Rule,
    Selector, Tier,
};
use netpold_testkit::objects::{self, block, cluster_rule, pods};
use proptest::prelude::*;
use proptest::sample::select as one_of;

use super::{CIDRS, any_enforcement, any_port_rule, any_selector};

/// None in half of the clusters; else few, of few priorities.
pub(super) fn any_cluster_policies() -> impl Strategy<Value = Vec<ClusterPolicy>> {
    prop_oneof![Just(Vec::new()), prop::collection::vec(any_cluster_policy(), 1..5)]
}

fn any_cluster_policy() -> impl Strategy<Value = ClusterPolicy> {
    let at = (one_of(vec![Tier::Admin, Tier::Baseline]), one_of(vec![0u16, 10, 1000]));
    let subject =
        (wide(), wide()).prop_map(|(namespaces, pods)| NamespacedPods { namespaces, pods });
    let ingress = any_rules(any_pods().boxed());
    let egress = any_rules(prop_oneof![any_pods(), any_others()].boxed());
    (0..4u8, at, subject, (ingress, egress), any_enforcement()).prop_map(
        |(name, at, subject, (ingress, egress), enforcement)| ClusterPolicy {
            subject,
            enforcement,
            ..objects::cluster_policy(&format!("c{name}"), at, ingress, egress)
        },
    )
}

/// A selector that often selects everything.
fn wide() -> impl Strategy<Value = Selector> {
    prop_oneof![Just(Selector::default()), any_selector()]
}

fn any_pods() -> impl Strategy<Value = Peer> {
    (wide(), wide()).prop_map(|(namespaces, selector)| pods(Some(namespaces), selector))
}

/// What only egress rules name.
fn any_others() -> impl Strategy<Value = Peer> {
    let network = (0..CIDRS.len()).prop_map(|index| block(CIDRS[index].0, &[]));
    prop_oneof![network, wide().prop_map(Peer::Nodes)]
}

fn any_rules(peer: BoxedStrategy<Peer>) -> impl Strategy<Value = Vec<ClusterRule>> {
    let action = one_of(vec![Action::Accept, Action::Deny, Action::Pass]);
    let ports = prop::option::weighted(0.7, prop::collection::vec(any_ports(), 1..3));
    let ports = ports.prop_map(|ports| ports.map(|ports| ports.concat()));
    let understood = (action, prop::collection::vec(peer, 1..3), ports)
        .prop_map(|(action, peers, ports)| cluster_rule(action, peers, ports));
    let fails = one_of(vec![Action::Accept, Action::Deny]).prop_map(|action| ClusterRule {
        matches: Rule { peers: (action == Action::Accept).then(Vec::new), ports: None },
        ..cluster_rule(action, Vec::new(), None)
    });
    prop::collection::vec(prop_oneof![15 => understood, 1 => fails], 0..4)
}

/// A name is that of ports of each protocol.
fn any_ports() -> impl Strategy<Value = Vec<PortRule>> {
    any_port_rule().prop_map(|rule| match &rule.port {
        PortMatch::Named(name) => [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .map(|protocol| objects::port_name(protocol, name))
            .to_vec(),
        PortMatch::Any | PortMatch::Range(..) => vec![rule],
    })
}
