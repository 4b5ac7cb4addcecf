//! Small generated clusters over a universe narrow enough that everything collides.

mod tiers;

use std::collections::BTreeMap;

use netpold_core::model::{
    Change, ClusterPolicy, EndpointSlice, Enforcement, Interface, Key, NamedPort, Namespace, Node,
    Peer, Pod, Policy, PortMatch, PortRule, Protocol, Requirement, Rule, Selector, Service,
    ServicePort, SlicePort,
};
use netpold_testkit::objects::{self, NODE, block, ip, labels, namespace, node, pods};
use proptest::prelude::*;
use proptest::sample::{select as one_of, subsequence};
use tiers::any_cluster_policies;

pub(crate) const NAMESPACES: [&str; 3] = ["a", "b", "c"];
const VALUES: [&str; 3] = ["x", "y", "z"];
pub(crate) const ADDRESSES: [&str; 14] = [
    "10.0.0.1",
    "10.0.0.2",
    "10.0.0.3",
    "10.0.0.200",
    "10.0.1.1",
    "10.0.1.2",
    "10.7.0.1",
    "192.0.2.1",
    "fd00::1",
    "fd00::2",
    "fd00::3",
    "fd00::101",
    "fd00:0:0:1::1",
    "fd00:7::1",
];
/// Addresses of Services, beside those of others that they share.
pub(crate) const SERVICES: [&str; 4] = ["10.9.0.1", "10.9.0.2", "fd00:9::1", "fd00:9::2"];
/// Addresses that are never anybody's.
pub(crate) const OUTSIDE: [&str; 8] = [
    "10.0.0.9",
    "10.0.2.9",
    "10.9.0.9",
    "203.0.113.9",
    "fd00::9",
    "fd00::909",
    "fd00:9::9",
    "2001:db8::9",
];
const CIDRS: [(&str, &[&str]); 12] = [
    ("0.0.0.0/0", &["10.0.0.0/8", "10.0.0.0/24", "10.0.0.1/32"]),
    ("10.0.0.0/8", &["10.0.0.0/16", "10.0.0.0/30", "10.0.1.0/24"]),
    ("10.0.0.0/16", &["10.0.0.0/24", "10.0.0.128/25", "10.0.1.1/32"]),
    ("10.0.0.0/24", &["10.0.0.0/31", "10.0.0.2/32", "10.0.0.128/25"]),
    ("10.0.0.0/30", &["10.0.0.2/32"]),
    ("10.0.1.0/24", &["10.0.1.0/30"]),
    ("10.0.0.1/32", &[]),
    ("::/0", &["fd00::/16", "fd00::/64"]),
    ("fd00::/16", &["fd00::/64", "fd00::1/128"]),
    ("fd00::/64", &["fd00::/126", "fd00::2/128"]),
    ("fd00::/126", &["fd00::2/128"]),
    ("fd00::2/128", &[]),
];

/// A whole cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) namespaces: BTreeMap<String, Namespace>,
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) pods: BTreeMap<Key, Pod>,
    pub(crate) policies: BTreeMap<Key, Policy>,
    pub(crate) cluster_policies: BTreeMap<String, ClusterPolicy>,
    pub(crate) interfaces: BTreeMap<u32, Interface>,
    pub(crate) services: BTreeMap<Key, Service>,
    pub(crate) slices: BTreeMap<Key, EndpointSlice>,
}

impl State {
    /// What leads from here to there.
    pub(crate) fn changes_to(&self, other: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        diff(
            &self.namespaces,
            &other.namespaces,
            &mut changes,
            Change::Namespace,
            Change::NamespaceGone,
        );
        diff(&self.nodes, &other.nodes, &mut changes, Change::Node, Change::NodeGone);
        diff(&self.pods, &other.pods, &mut changes, Change::Pod, Change::PodGone);
        diff(&self.policies, &other.policies, &mut changes, Change::Policy, Change::PolicyGone);
        diff(
            &self.cluster_policies,
            &other.cluster_policies,
            &mut changes,
            Change::ClusterPolicy,
            Change::ClusterPolicyGone,
        );
        diff(
            &self.interfaces,
            &other.interfaces,
            &mut changes,
            Change::Interface,
            Change::InterfaceGone,
        );
        diff(&self.services, &other.services, &mut changes, Change::Service, Change::ServiceGone);
        diff(
            &self.slices,
            &other.slices,
            &mut changes,
            Change::EndpointSlice,
            Change::EndpointSliceGone,
        );
        changes
    }
}

fn diff<K: Ord + Clone, V: PartialEq + Clone>(
    from: &BTreeMap<K, V>,
    to: &BTreeMap<K, V>,
    changes: &mut Vec<Change>,
    now: fn(V) -> Change,
    gone: fn(K) -> Change,
) {
    changes.extend(from.keys().filter(|key| !to.contains_key(key)).cloned().map(gone));
    let new = to.iter().filter(|(key, value)| from.get(key) != Some(value));
    changes.extend(new.map(|(_, value)| now(value.clone())));
}

fn any_labels() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    (prop::option::of(one_of(&VALUES[..])), prop::option::of(one_of(&VALUES[..]))).prop_map(
        |(app, tier)| {
            app.map(|v| ("app", v)).into_iter().chain(tier.map(|v| ("tier", v))).collect()
        },
    )
}

fn any_selector() -> impl Strategy<Value = Selector> {
    let requirement = (one_of(vec!["app", "tier"]), 0..4u8, subsequence(VALUES.to_vec(), 1..3))
        .prop_map(|(key, operator, values)| {
            let values = values.into_iter().map(str::to_owned).collect();
            match operator {
                0 => Requirement::In(key.into(), values),
                1 => Requirement::NotIn(key.into(), values),
                2 => Requirement::Exists(key.into()),
                _ => Requirement::DoesNotExist(key.into()),
            }
        });
    prop::collection::vec(requirement, 0..2).prop_map(|requirements| Selector { requirements })
}

fn any_peer() -> impl Strategy<Value = Peer> {
    let of_pods = (prop::option::of(any_selector()), any_selector())
        .prop_map(|(namespaces, selector)| pods(namespaces, selector));
    let of_block = (0..CIDRS.len(), any::<[bool; 3]>()).prop_map(|(index, use_except)| {
        let (cidr, except) = CIDRS[index];
        let used: Vec<_> =
            except.iter().zip(use_except).filter(|(_, u)| *u).map(|(e, _)| *e).collect();
        block(cidr, &used)
    });
    prop_oneof![of_pods, of_block]
}

fn any_protocol() -> impl Strategy<Value = Protocol> {
    one_of(vec![Protocol::Tcp, Protocol::Udp])
}

fn any_port_rule() -> impl Strategy<Value = PortRule> {
    let port = prop_oneof![
        Just(PortMatch::Any),
        one_of(vec![(80, 80), (80, 90), (443, 443), (1, 65535)])
            .prop_map(|(first, last)| PortMatch::Range(first, last)),
        one_of(vec!["http", "dns"]).prop_map(|name| PortMatch::Named(name.into())),
    ];
    (any_protocol(), port).prop_map(|(protocol, port)| PortRule { protocol, port })
}

fn any_rules() -> impl Strategy<Value = Option<Vec<Rule>>> {
    let rule = (
        prop::option::weighted(0.85, prop::collection::vec(any_peer(), 1..3)),
        prop::option::weighted(0.7, prop::collection::vec(any_port_rule(), 1..3)),
    )
        .prop_map(|(peers, ports)| Rule { peers, ports });
    prop::option::weighted(0.75, prop::collection::vec(rule, 0..3))
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let key = (one_of(&NAMESPACES[..]), 0..3u8);
    (key, any_selector(), any_rules(), any_rules(), any_enforcement()).prop_map(
        |((namespace, name), selector, ingress, egress, enforcement)| {
            let name = format!("p{name}");
            let policy = objects::policy(namespace, &name, selector, ingress, egress);
            Policy { enforcement, ..policy }
        },
    )
}

/// One policy in eight is on trial.
fn any_enforcement() -> impl Strategy<Value = Enforcement> {
    prop_oneof![7 => Just(Enforcement::Enforce), 1 => Just(Enforcement::Audit)]
}

fn any_pod() -> impl Strategy<Value = Pod> {
    let port = (one_of(vec!["http", "dns"]), any_protocol(), one_of(vec![80u16, 85, 443, 8080]))
        .prop_map(|(name, protocol, port)| NamedPort { name: name.into(), protocol, port });
    let flags = (
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.07),
        prop::bool::weighted(0.07),
        prop::bool::weighted(0.1),
    );
    (
        (one_of(&NAMESPACES[..]), 0..4u8, 0..2u8),
        any_labels(),
        subsequence(ADDRESSES.to_vec(), 0..4),
        flags,
        0..3i64,
        prop::collection::vec(port, 0..3),
    )
        .prop_map(|((namespace, name, uid), pairs, addresses, flags, created, ports)| {
            let mut pod = objects::pod(namespace, &format!("n{name}"), &pairs, &addresses);
            pod.uid = format!("{namespace}/{name}/{uid}");
            let (local, host_network, finished, terminating) = flags;
            if !local {
                pod.node = "elsewhere".into();
            }
            Pod { host_network, finished, terminating, created, ports, ..pod }
        })
}

fn any_interface() -> impl Strategy<Value = Interface> {
    // 20 and 8212 share their slots.
    let index = one_of(vec![10u32, 20, 30, 8212]);
    (index, 1..3u64, subsequence(ADDRESSES.to_vec(), 1..4)).prop_map(
        |(index, incarnation, addresses)| Interface {
            index,
            incarnation,
            addresses: addresses.into_iter().map(ip).collect(),
            ..Interface::default()
        },
    )
}

fn any_service() -> impl Strategy<Value = Service> {
    let port = (one_of(vec!["", "web"]), any_protocol(), one_of(vec![80u16, 443])).prop_flat_map(
        |(name, protocol, port)| {
            let node_port = prop::option::weighted(0.3, one_of(vec![85u16, 8080]));
            node_port.prop_map(move |node_port| {
                let name = name.to_owned();
                ServicePort { name, protocol, port, node_port }
            })
        },
    );
    (
        (one_of(&NAMESPACES[..2]), 0..2u8),
        subsequence(SERVICES.to_vec(), 0..3),
        prop::option::weighted(0.2, one_of(&ADDRESSES[..])),
        prop::collection::vec(port, 0..3),
        prop::bool::weighted(0.1),
    )
        .prop_map(|((namespace, name), addresses, shared, ports, unserved)| Service {
            key: Key::new(namespace, format!("s{name}")),
            addresses: addresses.iter().copied().chain(shared).map(ip).collect(),
            cluster: addresses.into_iter().map(ip).collect(),
            ports,
            unserved,
        })
}

fn any_slice() -> impl Strategy<Value = EndpointSlice> {
    let port = (one_of(vec!["", "web"]), any_protocol(), one_of(vec![80u16, 85, 443]))
        .prop_map(|(name, protocol, port)| SlicePort { name: name.into(), protocol, port });
    (
        (one_of(&NAMESPACES[..2]), 0..4u8, 0..2u8),
        subsequence(ADDRESSES.to_vec(), 0..4),
        any::<bool>(),
        prop::collection::vec(port, 0..3),
    )
        .prop_map(|((namespace, name, service), addresses, v6, ports)| EndpointSlice {
            key: Key::new(namespace, format!("slice{name}")),
            service: format!("s{service}"),
            ports,
            addresses: addresses.into_iter().map(ip).filter(|a| a.is_ipv6() == v6).collect(),
            not_ready: vec![],
        })
}

/// A cluster of at most a few of everything.
pub(crate) fn any_state() -> impl Strategy<Value = State> {
    let namespaces = subsequence(NAMESPACES.to_vec(), 1..=3);
    let of_namespaces = prop::collection::vec(any_labels(), 3);
    (
        namespaces,
        of_namespaces,
        prop::collection::vec(any_pod(), 0..9),
        prop::collection::vec(any_policy(), 0..6),
        prop::collection::vec(any_interface(), 1..5),
        prop::collection::vec(
            prop::option::of((subsequence(ADDRESSES.to_vec(), 0..3), any_labels())),
            2,
        ),
        any_cluster_policies(),
        (prop::collection::vec(any_service(), 0..4), prop::collection::vec(any_slice(), 0..5)),
    )
        .prop_map(
            |(names, pairs, pods, policies, interfaces, nodes, tiers, (services, slices))| State {
                namespaces: names
                    .into_iter()
                    .zip(pairs)
                    .map(|(name, pairs)| (name.to_owned(), namespace(name, &pairs)))
                    .collect(),
                nodes: [NODE, "elsewhere"]
                    .into_iter()
                    .zip(nodes)
                    .filter_map(|(name, node)| Some((name, node?)))
                    .map(|(name, (addresses, pairs))| {
                        let labels = labels(&pairs);
                        (name.to_owned(), Node { labels, ..node(name, &addresses) })
                    })
                    .collect(),
                cluster_policies: tiers.into_iter().map(|p| (p.name.clone(), p)).collect(),
                services: services.into_iter().map(|s| (s.key.clone(), s)).collect(),
                slices: slices.into_iter().map(|s| (s.key.clone(), s)).collect(),
                pods: pods.into_iter().map(|pod| (pod.key.clone(), pod)).collect(),
                policies: policies.into_iter().map(|p| (p.key.clone(), p)).collect(),
                interfaces: interfaces.into_iter().map(|i| (i.index, i)).collect(),
            },
        )
}

/// A cluster that differs from another in some of its objects, up to all.
pub(crate) fn any_step() -> impl Strategy<Value = (State, State)> {
    (any_state(), any_state(), any::<u64>(), 1..5u32).prop_map(|(from, to, bits, share)| {
        // Keep most objects, so that several changes meet objects that stay.
        let mut mixed = from.clone();
        let take = |index: usize| (bits >> (index % 64)) & 1 == 1 || share == 1;
        mix(&mut mixed.namespaces, &to.namespaces, 0, take);
        mix(&mut mixed.nodes, &to.nodes, 7, take);
        mix(&mut mixed.pods, &to.pods, 11, take);
        mix(&mut mixed.policies, &to.policies, 29, take);
        mix(&mut mixed.cluster_policies, &to.cluster_policies, 37, take);
        mix(&mut mixed.interfaces, &to.interfaces, 47, take);
        mix(&mut mixed.services, &to.services, 5, take);
        mix(&mut mixed.slices, &to.slices, 23, take);
        (from, mixed)
    })
}

fn mix<K: Ord + Clone, V: Clone>(
    state: &mut BTreeMap<K, V>,
    to: &BTreeMap<K, V>,
    first: usize,
    take: impl Fn(usize) -> bool,
) {
    let keys: std::collections::BTreeSet<K> = state.keys().chain(to.keys()).cloned().collect();
    for (index, key) in keys.into_iter().enumerate() {
        if take(first + index) {
            match to.get(&key) {
                Some(value) => state.insert(key, value.clone()),
                None => state.remove(&key),
            };
        }
    }
}
