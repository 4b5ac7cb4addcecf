//! Number of map lookups per packet: the packet path over counting tables.

use std::cell::Cell;
use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use netpold_core::compile::Compiler;
use netpold_core::model::Direction;
use netpold_core::ops::TableWriter as _;
use netpold_core::options::Options;
use netpold_ebpf::direction::{Egress, Ingress};
use netpold_ebpf::endpoint::EndpointRef;
use netpold_ebpf::flow::control::Timeouts;
use netpold_ebpf::flow::memory::Memory;
use netpold_ebpf::judge::decide::decide;
use netpold_ebpf::judge::hook::PacketHook;
use netpold_ebpf::layout::{ClassId, FragmentKey, FragmentPorts, PortWord, Settings};
use netpold_ebpf::packet::protocol::{TCP_ACK, TCP_SYN};
use netpold_ebpf::tables::Tables;
use netpold_ebpf::tables::policy::PolicyTables;
use netpold_engine::compile_with_room;
use netpold_testkit::flows::MemoryFlowTables;
use netpold_testkit::memory::MemoryTables;
use netpold_testkit::node::{NodeTables, Plain};
use serde::Serialize;

use crate::cluster::{FlowCluster, Local, NODE, PORT, Size};
use crate::figures::{say, table};
use crate::frame::tcp;

/// Interface on which packets to pods arrive.
const UPLINK: u32 = 2;
/// Buckets of the flow table, enough that no bucket is full.
const BUCKETS: u32 = 64;

/// Lookups of one packet. Tables at fixed addresses need none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Lookups {
    /// In array maps, including conntrack buckets.
    pub(crate) arrays: u32,
    /// In conntrack buckets alone.
    pub(crate) conntrack: u32,
    /// In the kernel's hash maps and in the tree of IPv6 blocks.
    pub(crate) hashes: u32,
}

/// The lookups of one case in one cluster.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct CaseLookups {
    #[serde(flatten)]
    pub(crate) size: Size,
    /// 4 or 6.
    pub(crate) family: u8,
    pub(crate) case: &'static str,
    #[serde(flatten)]
    pub(crate) lookups: Lookups,
}

/// Counts the lookups of all cases in one cluster.
///
/// # Errors
/// The cluster does not compile, or a verdict differs from the case's.
pub(crate) fn count(size: Size, locals: [Local; 2]) -> Result<Vec<CaseLookups>> {
    let cluster = FlowCluster::new(size, locals);
    let options = Options { node: NODE.into(), ..Options::default() };
    let capacity = options.capacity;
    let mut compiler = Compiler::new(options);
    cluster.changes().into_iter().for_each(|change| compiler.ingest(change));
    let mut memory = MemoryTables::new();
    for op in compile_with_room(&mut compiler, capacity, &BTreeSet::new())? {
        memory.write(&op)?;
    }
    let flows = MemoryFlowTables::new(BUCKETS);
    let node = NodeTables { policy: &memory, flows: &flows };
    let tables = Counting { node, blocks: size.cidrs > 0, counted: Cell::default() };
    [false, true].into_iter().try_fold(Vec::new(), |mut all, v6| {
        for (case, lookups) in tables.cases(&cluster, locals, v6)? {
            let family = if v6 { 6 } else { 4 };
            all.push(CaseLookups { size, family, case, lookups });
        }
        Ok(all)
    })
}

/// A node's tables that count lookups.
struct Counting<'a> {
    node: NodeTables<&'a MemoryTables, &'a MemoryFlowTables>,
    /// Whether there are IPv6 blocks.
    blocks: bool,
    counted: Cell<Lookups>,
}

impl Counting<'_> {
    /// The cases of the packet part, in an order in which each finds the state that it needs.
    fn cases(
        &self,
        cluster: &FlowCluster,
        [isolated, open]: [Local; 2],
        v6: bool,
    ) -> Result<Vec<(&'static str, Lookups)>> {
        let client = cluster.allowed(v6, 1)[0];
        let stranger = cluster.denied(v6, 1)[0];
        let pod = (isolated.address(v6), PORT);
        let to_pod = |flags| tcp(client, pod, flags);
        let from_pod = tcp(pod, client, TCP_ACK);
        let into = |local: Local, frame: &[u8]| self.judge(local, Direction::Ingress, frame);
        let out = |frame: &[u8]| self.judge(isolated, Direction::Egress, frame);
        let allowed = [
            ("not isolated", into(open, &to_pod(TCP_ACK))),
            ("new allowed", into(isolated, &to_pod(TCP_SYN))),
            ("first reply", out(&from_pod)),
            ("judged again", into(isolated, &to_pod(TCP_ACK))),
            ("forward", into(isolated, &to_pod(TCP_ACK))),
            ("reply, judged again", out(&from_pod)),
            ("reply", out(&from_pod)),
        ];
        let (passes, lookups) = into(isolated, &tcp(stranger, pod, TCP_SYN));
        ensure!(!passes, "what no rule allows passes");
        let mut cases = vec![("denied", lookups)];
        for (case, (passes, lookups)) in allowed {
            ensure!(passes, "{case}: the packet is dropped");
            cases.push((case, lookups));
        }
        Ok(cases)
    }

    /// Whether a packet passes, and its lookups.
    fn judge(&self, local: Local, direction: Direction, frame: &[u8]) -> (bool, Lookups) {
        self.counted.take();
        let ifindex = local.ifindex;
        let frame = Plain(frame);
        let verdict = match direction {
            Direction::Ingress => decide::<Ingress, _, _>(
                &frame,
                self,
                PacketHook { ifindex, ingress_ifindex: UPLINK },
            ),
            Direction::Egress => decide::<Egress, _, _>(
                &frame,
                self,
                PacketHook { ifindex, ingress_ifindex: ifindex },
            ),
        };
        (verdict.passes(), self.counted.take())
    }

    fn array(&self) {
        let counted = self.counted.get();
        self.counted.set(Lookups { arrays: counted.arrays + 1, ..counted });
    }

    fn bucket(&self) {
        self.array();
        let counted = self.counted.get();
        self.counted.set(Lookups { conntrack: counted.conntrack + 1, ..counted });
    }

    fn hash(&self) {
        let counted = self.counted.get();
        self.counted.set(Lookups { hashes: counted.hashes + 1, ..counted });
    }
}

impl PolicyTables for Counting<'_> {
    fn trie_root(&self, index: u16) -> u32 {
        self.node.trie_root(index)
    }

    fn trie_block(&self, block: u32, index: u8) -> u32 {
        self.array();
        self.node.trie_block(block, index)
    }

    fn host6(&self, address: &[u8; 16]) -> Option<ClassId> {
        // Stored in one of two buckets.
        let found = self.node.host6(address);
        (0..if found.is_some() { 1 } else { 2 }).for_each(|_| self.array());
        found
    }

    fn block6(&self, address: &[u8; 16]) -> Option<ClassId> {
        self.blocks.then(|| self.hash());
        self.node.block6(address)
    }

    fn row_first(&self, row: u32, class: u8) -> PortWord {
        self.array();
        self.node.row_first(row, class)
    }

    fn row_blocks(&self, row: u32, index: u8) -> u32 {
        self.array();
        self.node.row_blocks(row, index)
    }

    fn row_block(&self, block: u32, index: u8) -> PortWord {
        self.array();
        self.node.row_block(block, index)
    }

    fn bitmap(&self, bitmap: u32, word: u16) -> u64 {
        self.array();
        self.node.bitmap(bitmap, word)
    }
}

impl Timeouts for Counting<'_> {}

impl Memory for Counting<'_> {
    unsafe fn load(&self, word: *const u64) -> u64 {
        // SAFETY: as the caller promises.
        unsafe { self.node.load(word) }
    }

    unsafe fn store(&self, word: *mut u64, value: u64) {
        // SAFETY: as the caller promises.
        unsafe { self.node.store(word, value) }
    }

    unsafe fn swap(&self, word: *mut u64, old: u64, new: u64) -> u64 {
        // SAFETY: as the caller promises.
        unsafe { self.node.swap(word, old, new) }
    }
}

impl Tables for Counting<'_> {
    fn settings(&self) -> Option<&Settings> {
        self.node.settings()
    }

    fn endpoint(&self, slot: u32) -> Option<EndpointRef> {
        self.node.endpoint(slot)
    }

    fn bucket4(&self, index: u32) -> Option<*mut u64> {
        self.bucket();
        self.node.bucket4(index)
    }

    fn bucket6(&self, index: u32) -> Option<*mut u64> {
        self.bucket();
        self.node.bucket6(index)
    }

    fn now(&self) -> u32 {
        self.node.now()
    }

    fn revision(&self) -> u32 {
        self.node.revision()
    }

    fn fragment(&self, key: &FragmentKey) -> Option<FragmentPorts> {
        self.hash();
        self.node.fragment(key)
    }

    fn remember_fragment(&self, key: &FragmentKey, ports: &FragmentPorts) {
        self.hash();
        self.node.remember_fragment(key, ports);
    }
}

/// Prints the lookups: sizes in rows, cases in columns.
pub(crate) fn print(all: &[CaseLookups]) {
    for family in [4, 6] {
        let shown = || all.iter().filter(|it| it.family == family);
        let Some(first) = shown().next() else { continue };
        let cases: Vec<&str> =
            shown().filter(|it| it.size == first.size).map(|it| it.case).collect();
        let header: Vec<&str> = std::iter::once("cluster").chain(cases.iter().copied()).collect();
        let sizes = shown().filter(|it| it.case == first.case).map(|it| it.size);
        let rows = sizes.map(|size| {
            let cells = shown().filter(|it| it.size == size).map(|it| {
                let Lookups { arrays, conntrack, hashes } = it.lookups;
                format!("{arrays} ({conntrack}) + {hashes}")
            });
            std::iter::once(size.to_string()).chain(cells).collect()
        });
        say(&format!(
            "\nIPv{family}: lookups per packet, in arrays (of those in conntrack) + in hashes and the tree of IPv6 blocks"
        ));
        table(&header, rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fast path is fast because most packets look up one bucket and nothing else.
    #[test]
    fn an_open_connections_packets_take_one_lookup() {
        let locals = [Local::isolated(101), Local::open(100)];
        let sizes = [Size::BASE, Size { pods: 10, cidrs: 50, ranges: 40, ..Size::BASE }];
        for all in sizes.map(|size| count(size, locals).expect("counts")) {
            for family in [4, 6] {
                let of = |case: &str| {
                    let found = all.iter().find(|it| it.family == family && it.case == case);
                    found.map(|it| it.lookups).expect("the case")
                };
                assert_eq!(of("not isolated"), Lookups::default());
                let one = Lookups { arrays: 1, conntrack: 1, hashes: 0 };
                assert_eq!((of("forward"), of("reply")), (one, one));
                assert_eq!(of("denied").conntrack, 0, "what opens a connection answers nothing");
                assert!(of("judged again").arrays > 1 && of("new allowed").conntrack >= 2);
                let hashed = all.iter().filter(|it| it.lookups.hashes > 0);
                assert!(hashed.clone().all(|it| it.family == 6 && it.size.cidrs > 0));
            }
        }
    }
}
