//! Endpoint numbers in the flow tables of earlier agents. Flows outlive their endpoint until the next sweep, so a new
//! agent gives none of these numbers to another one.

use std::sync::atomic::{AtomicU64, Ordering};

use aya::Pod;
use aya::maps::MapData;
use netpold_ebpf::flow::control::Control;
use netpold_ebpf::flow::key::FlowTableKey;
use netpold_ebpf::layout::{Ct4Bucket, Ct6Bucket};

use super::bpffs::PinRoot;
use super::other_layout::OtherLayout;
use crate::bpf::mmap::MappedArray;
use crate::conntrack::FlowKey;

/// Returns the highest endpoint number in the pinned flow tables, of this layout version and of others; `None` without
/// a flow. Unreadable tables count as empty: nothing reads flows of theirs either, as the migration reports.
#[must_use]
pub fn highest_number(pins: &PinRoot) -> Option<u32> {
    let own =
        [pinned::<[u64; 2], Ct4Bucket>(pins, "CT4"), pinned::<[u64; 4], Ct6Bucket>(pins, "CT6")];
    let others = pins.other_tables().into_iter().map(|directory| {
        let mut highest = None;
        let flows = OtherLayout::open(&directory).ok()?;
        let _ = flows.flows(|flow| {
            highest = highest.max(Some(match flow.key {
                FlowKey::V4(key) => key.endpoint,
                FlowKey::V6(key) => key.endpoint,
            }));
        });
        highest
    });
    own.into_iter().chain(others).max().flatten()
}

fn pinned<K: FlowTableKey, B: Pod>(pins: &PinRoot, name: &str) -> Option<u32> {
    let map = MapData::from_pin(pins.map(name)).ok()?;
    highest::<K>(MappedArray::<B>::new(&map).ok()?.words()?)
}

/// Returns the highest endpoint number in the words of a table.
fn highest<K: FlowTableKey>(table: &[AtomicU64]) -> Option<u32> {
    let number = |way: &[AtomicU64]| {
        let control = Control(way[0].load(Ordering::Acquire));
        control.is_valid().then(|| K::endpoint(way[1].load(Ordering::Relaxed)))
    };
    table.chunks_exact(K::STRIDE).filter_map(number).max()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use netpold_ebpf::layout::{CT_BUSY, CT_EGRESS, CT_VALID, CT_WAYS, Ct4Key, Ct4Way};

    use super::*;
    use crate::bpf::test_objects;

    const BPF_F_MMAPABLE: u32 = 1 << 10;
    /// The largest IPv4 table of a node.
    const BUCKETS: u32 = 1 << 19;

    fn way(endpoint: u32, flags: u16) -> Ct4Way {
        let key = Ct4Key { endpoint, remote: 2, local_port: 3, remote_port: 4, protocol: 6 };
        Ct4Way { control: Control::new(1, 1, flags).0, key, judged: 0 }
    }

    #[test]
    fn the_highest_number_of_all_flows_is_found_in_the_largest_table() {
        let size = size_of::<Ct4Bucket>() as u32;
        let map = test_objects::array(size, BUCKETS, BPF_F_MMAPABLE);
        let map = MapData::from_fd(map).unwrap();
        let table = MappedArray::<Ct4Bucket>::new(&map).unwrap();
        let found = || highest::<[u64; 2]>(table.words().unwrap());
        assert_eq!(found(), None);
        let flow = CT_VALID | CT_EGRESS;
        // A way that a program is writing, or that is free again, has no flow.
        table
            .write_element(7, &[way(70, CT_BUSY), way(80, 0), way(9, flow), way(8, flow)])
            .unwrap();
        assert_eq!(found(), Some(9));
        table.write_element(BUCKETS - 1, &[way(u32::MAX, flow); CT_WAYS]).unwrap();
        let begin = Instant::now();
        assert_eq!(found(), Some(u32::MAX));
        println!("{BUCKETS} buckets were read in {:?}", begin.elapsed());
    }
}
