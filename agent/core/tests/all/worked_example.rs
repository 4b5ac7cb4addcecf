//! The worked example of the crate's documentation, which quotes the operations printed here.
#![expect(clippy::panic, reason = "helpers of tests")]

use netpold_core::model::{Change, Pod};
use netpold_core::ops::Op;
use netpold_ebpf::layout::{PORT_BITS, PORTS_ONE, PortWord, Row, TRIE_POINTER};
use netpold_testkit::objects::{
    block, interface, labels, namespace, pod, pods, policy, rule, select, tcp,
};
use netpold_testkit::world::World;

const DOCUMENTATION: &str = include_str!("../../src/lib.rs");

fn objects() -> Vec<Change> {
    let local = |name: &str, address: &str| pod("shop", name, &[("app", name)], &[address]);
    let probe = Pod { node: "there".into(), ..pod("ops", "probe", &[], &["10.0.1.1"]) };
    let from_net = rule(Some(vec![block("10.0.1.0/24", &[])]), Some(vec![tcp(80)]));
    let from_web = rule(Some(vec![pods(None, select(&[("app", "web")]))]), Some(vec![tcp(5432)]));
    vec![
        Change::Namespace(namespace("shop", &[])),
        Change::Namespace(namespace("ops", &[])),
        Change::Pod(local("web", "10.0.0.1")),
        Change::Pod(local("db", "10.0.0.2")),
        Change::Pod(probe),
        Change::Interface(interface(1, &["10.0.0.1"])),
        Change::Interface(interface(2, &["10.0.0.2"])),
        Change::Policy(policy(
            "shop",
            "web",
            select(&[("app", "web")]),
            Some(vec![from_net]),
            None,
        )),
        Change::Policy(policy("shop", "db", select(&[("app", "db")]), Some(vec![from_web]), None)),
    ]
}

/// A port set of at most one TCP port.
fn ports(word: PortWord) -> String {
    match word as u32 & ((1 << PORT_BITS) - 1) {
        0 => "nothing".to_owned(),
        tcp => format!("TCP {}", tcp & !PORTS_ONE),
    }
}

fn row(row: &Row) -> String {
    let columns = row.first.iter().enumerate().filter(|(_, word)| **word != 0);
    let columns: Vec<_> =
        columns.map(|(class, w)| format!("class {class} {}", ports(*w))).collect();
    columns.join(", ")
}

/// A word of the IPv4 trie.
fn word(word: u32) -> String {
    match word & TRIE_POINTER {
        0 => format!("class {word}"),
        _ => format!("block {}", word & !TRIE_POINTER),
    }
}

fn rows(rows: u64) -> String {
    format!("ingress row {}, egress row {}", rows as u32, rows >> 32)
}

/// An operation on one line.
#[expect(clippy::wildcard_enum_match_arm, reason = "the example has not all operations")]
fn line(op: &Op) -> String {
    match op {
        Op::Row(id, content) => format!("fill row {id}: {}", row(content)),
        Op::TrieBlock(id, words) => {
            let words = words.iter().enumerate().filter(|(_, word)| **word != 0);
            let words: Vec<_> = words.map(|(at, it)| format!("word {at} {}", word(*it))).collect();
            format!("fill trie block {id}: {}", words.join(", "))
        }
        Op::TrieWord { block: id, index: at, word: it } => {
            format!("trie block {id} word {at}: {}", word(*it))
        }
        Op::TrieRootWord { index: at, word: it } => format!("trie root word {at}: {}", word(*it)),
        Op::Endpoint(slot, it) => {
            format!("fill slot {slot}: interface {}, {}", it.ifindex, rows(it.rows))
        }
        Op::EndpointRows { slot, rows: it } => format!("slot {slot}: {}", rows(*it)),
        other => panic!("the example shows no {other:?}"),
    }
}

/// The operations of an update.
fn update(world: &mut World, changes: Vec<Change>) -> String {
    changes.into_iter().for_each(|change| world.compiler.ingest(change));
    world.update().iter().map(|op| format!("//! {}\n", line(op))).collect()
}

#[test]
fn the_documentation_says_what_happens() {
    let mut world = World::new([]);
    let first = update(&mut world, objects());
    let relabelled =
        Pod { labels: labels(&[("app", "db")]), ..pod("shop", "web", &[], &["10.0.0.1"]) };
    let second = update(&mut world, vec![Change::Pod(relabelled)]);
    for operations in [first, second] {
        let quoted = format!("//! ```text\n{operations}//! ```\n");
        assert!(DOCUMENTATION.contains(&quoted), "the documentation is to quote\n{quoted}");
    }
}
