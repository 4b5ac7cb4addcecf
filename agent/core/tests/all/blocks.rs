//! Long lists of ipBlocks: one class per distinct grant, and edits that touch only the changed addresses.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};
use netpold_core::model::{Change, IpBlock, Peer, Policy, PortRule, Rule, Selector};
use netpold_core::ops::{Op, Table};
use netpold_testkit::objects::{block, interface, namespace, pod, policy, rule, tcp};
use netpold_testkit::world::World;
use prefix_trie::joint::JointPrefixMap;
use proptest::prelude::*;

/// More blocks than the maximum number of classes.
const BLOCKS: u32 = 75_000;

/// Block `number`: a separate /28; every third block has an exception for its last addresses.
fn nth_block(number: u32) -> Peer {
    let net = |offset: u32, length| {
        let address = Ipv4Addr::from_bits(0x1400_0000 + number * 16 + offset);
        IpNet::V4(Ipv4Net::new_assert(address, length))
    };
    let except = if number.is_multiple_of(3) { vec![net(12, 30)] } else { Vec::new() };
    Peer::Block(IpBlock { cidr: net(0, 28), except })
}

fn address(number: u32, offset: u32) -> String {
    Ipv4Addr::from_bits(0x1400_0000 + number * 16 + offset).to_string()
}

fn list(numbers: impl IntoIterator<Item = u32>, port: u16) -> Rule {
    let ports: Vec<PortRule> = vec![tcp(port)];
    rule(Some(numbers.into_iter().map(nth_block).collect()), Some(ports))
}

fn allow(rules: Vec<Rule>) -> Policy {
    policy("a", "blocks", Selector::default(), None, Some(rules))
}

fn cluster(rules: Vec<Rule>) -> World {
    World::new([
        Change::Namespace(namespace("a", &[])),
        Change::Pod(pod("a", "p", &[], &["10.0.0.1"])),
        Change::Interface(interface(1, &["10.0.0.1"])),
        Change::Policy(allow(rules)),
    ])
}

/// Number of classes in use, without the two of addresses that each node has: a class that may be translated counts twice.
fn classes(world: &World) -> u32 {
    world.compiler.fill().iter().find(|fill| fill.table == Table::Classes).unwrap().used - 2
}

#[test]
fn blocks_of_equal_grants_share_a_class() {
    // Two lists that overlap by a third.
    let (first, second) = (0..BLOCKS / 3 * 2, BLOCKS / 3..BLOCKS);
    let world = cluster(vec![list(first, 80), list(second, 81)]);
    assert_eq!(classes(&world), 4, "no set, one for each list, and one for both");
    for (number, ports) in
        [(5, [true, false]), (BLOCKS / 2, [true, true]), (BLOCKS - 1, [false, true])]
    {
        let allowed = [80, 81].map(|port| world.egress(1, &address(number, 3), port));
        assert_eq!(allowed, ports, "block {number}");
    }
    assert!(world.egress(1, &address(3, 11), 80) && !world.egress(1, &address(3, 12), 80));
    assert!(!world.egress(1, &address(BLOCKS, 0), 81));
}

#[test]
fn an_edit_of_a_long_list_moves_only_the_changed_addresses() {
    let mut world = cluster(vec![list(0..2000, 80)]);
    let trie_writes = |world: &mut World, rules: Vec<Rule>| {
        world.compiler.ingest(Change::Policy(allow(rules)));
        let is_trie = |op: &&Op| matches!(op, Op::TrieWord { .. } | Op::TrieRootWord { .. });
        world.update().iter().filter(is_trie).count()
    };
    assert_eq!(trie_writes(&mut world, vec![list(0..2000, 81)]), 0, "other ports, the same blocks");
    assert!(world.egress(1, &address(7, 0), 81) && !world.egress(1, &address(7, 0), 80));
    assert!(trie_writes(&mut world, vec![list(0..1999, 81)]) <= 16);
    assert!(!world.egress(1, &address(1999, 0), 81) && world.egress(1, &address(1998, 0), 81));
    assert!(trie_writes(&mut world, vec![list(0..1999, 81), list(5..7, 82)]) <= 32);
    assert!(world.egress(1, &address(5, 0), 82) && !world.egress(1, &address(7, 0), 82));
    assert!(trie_writes(&mut world, vec![list(0..1999, 81)]) <= 32);
    assert_eq!(classes(&world), 2);
}

#[test]
fn exceptions_cut_their_own_block_within_a_group_too() {
    let rules = vec![rule(
        Some(vec![block("20.0.0.0/8", &["20.1.0.0/16"]), block("20.1.2.0/24", &[])]),
        None,
    )];
    let world = cluster(rules);
    for (address, allowed) in [("20.0.0.1", true), ("20.1.0.1", false), ("20.1.2.1", true)] {
        assert_eq!(world.egress(1, address, 80), allowed, "{address}");
    }
    assert_eq!(classes(&world), 2);
}

/// Nested blocks in a part of each family's addresses.
fn nested_blocks() -> impl Strategy<Value = Vec<IpNet>> {
    let v4 = (any::<u16>(), 7..=32u8).prop_map(|(bits, len)| {
        let [high, low] = bits.to_be_bytes();
        IpNet::new([20, high & 1, high >> 7, low].into(), len).unwrap()
    });
    let v6 = (any::<u16>(), 16..=128u8).prop_map(|(bits, len)| {
        let bits = 0xfd00 << 112 | u128::from(bits & 255) << 64 | u128::from(bits >> 8);
        IpNet::new(Ipv6Addr::from_bits(bits).into(), len).unwrap()
    });
    prop::collection::vec(prop_oneof![v4, v6].prop_map(|net| net.trunc()), 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The allowed ports of an address are those of the blocks that contain it, according to `prefix-trie`.
    #[test]
    fn an_address_has_the_ports_of_the_blocks_that_hold_it(nets in nested_blocks()) {
        let reference: JointPrefixMap<IpNet, u16> = nets.iter().copied().zip(1000..).collect();
        let rules = reference.iter().map(|(cidr, port)| {
            let block = Peer::Block(IpBlock { cidr, except: Vec::new() });
            rule(Some(vec![block]), Some(vec![tcp(*port)]))
        });
        let world = cluster(rules.collect());
        for net in &nets {
            for address in [net.network(), net.broadcast()] {
                let holders: Vec<u16> =
                    reference.cover(&address.into()).map(|(_, port)| *port).collect();
                for (_, port) in &reference {
                    let allowed = world.egress(1, &address.to_string(), *port);
                    prop_assert_eq!(allowed, holders.contains(port), "{} port {}", address, port);
                }
            }
        }
    }
}
