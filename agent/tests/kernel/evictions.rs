//! Half-open flows that make room in the flow table are counted.

use aya::{
    Pod,
    maps::{Array, MapData},
};
use netpold_ebpf::{
    conntrack::Control,
    layout::{Ct4Bucket, Ct6Bucket},
    reason::{Reason, evictions},
};

use super::{
    packets::{FAMILIES, Family, SYN, TCP, Who, frame, ip, tcp},
    world,
    world::World,
};

/// More than the table's 1,024 buckets of four hold.
const FLOWS: u64 = 6_000;

/// Control words of a table.
fn controls<T: Pod>(world: &World, table: &str, controls: fn(&T) -> Vec<u64>) -> Vec<u64> {
    let map: Array<&MapData, T> = Array::try_from(world.bpf.map(table).expect(table)).expect(table);
    (0..map.len()).flat_map(|index| controls(&map.get(&index, 0).expect(table))).collect()
}

#[test]
fn every_flow_is_in_the_table_or_counted_as_evicted() {
    let Some(mut world) = world() else { return };
    for family in FAMILIES {
        world.next_pod();
        for port in 1..=FLOWS as u16 {
            let segment = tcp(port, 80, SYN);
            let opening = frame(&ip(family, Who::Client, Who::Pod, TCP, &segment));
            assert_eq!(world.ingress(&opening), Reason::Allowed, "{family:?} {port}");
        }
        let controls = match family {
            Family::V4 => controls(&world, "CT4", |b: &Ct4Bucket| b.map(|way| way.control).into()),
            Family::V6 => controls(&world, "CT6", |b: &Ct6Bucket| b.map(|way| way.control).into()),
        };
        let there = controls.iter().filter(|control| Control(**control).is_valid()).count() as u64;
        let evicted = world.counted(evictions(family == Family::V6));
        assert!(evicted > 0 && evicted < FLOWS / 2, "{family:?}: {evicted}");
        assert_eq!(there + evicted, FLOWS, "{family:?}");
    }
}
