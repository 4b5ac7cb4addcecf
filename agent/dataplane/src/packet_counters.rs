//! Packet counters of the programs: one map, which outlives generations and agents.

use std::borrow::Borrow;

use aya::maps::{Map, MapData, PerCpuArray};
use netpold_ebpf::layout::Counters;
use netpold_ebpf::reason::COUNTERS;

use crate::bpffs::PinRoot;

/// Pin name of the map.
pub(crate) const NAME: &str = "COUNTERS";

/// Packets by counter, summed over the CPUs.
pub(crate) type PacketCounts = [u64; COUNTERS as usize];

/// Reads the pinned counters; zeros without a pin, as before the first agent of a node.
pub(crate) fn pinned(pins: &PinRoot) -> PacketCounts {
    let map = MapData::from_pin(pins.map(NAME)).and_then(Map::from_map_data).ok();
    let counters = map.and_then(|map| PerCpuArray::try_from(map).ok());
    counters.map_or([0; COUNTERS as usize], |counters| sum(&counters))
}

/// Sums the counters over the CPUs; zeros if they cannot be read.
pub(crate) fn sum<T: Borrow<MapData>>(counters: &PerCpuArray<T, Counters>) -> PacketCounts {
    let values = counters.get(&0, 0).ok();
    let mut sums = [0; COUNTERS as usize];
    for cpu in values.iter().flat_map(|values| values.iter()) {
        for (sum, packets) in sums.iter_mut().zip(cpu.packets) {
            *sum += packets;
        }
    }
    sums
}
