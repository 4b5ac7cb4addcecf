//! Evictions from the flow table, and their counters.

use aya::{
    Pod,
    maps::{Array, MapData},
};
use netpold_ebpf::{
    flow::control::Control,
    layout::{Ct4Bucket, Ct6Bucket},
    reason::{Reason, evictions},
};

use netpold_testkit::frames::{FAMILIES, IpVersion, SYN, TCP, UDP, Who, frame, ip, tcp, udp};

use super::{world, world::World, world_of};

/// Number of flows, more than fit into 1,024 buckets of four.
const FLOWS: u64 = 6_000;

/// Returns the control words of a table.
fn controls<T: Pod>(world: &World, table: &str, controls: fn(&T) -> Vec<u64>) -> Vec<u64> {
    let map: Array<&MapData, T> = Array::try_from(world.bpf.map(table).expect(table)).expect(table);
    (0..map.len()).flat_map(|index| controls(&map.get(&index, 0).expect(table))).collect()
}

/// Returns the control words of a family's flow table.
pub(crate) fn controls_of(world: &World, family: IpVersion) -> Vec<u64> {
    match family {
        IpVersion::V4 => controls(world, "CT4", |b: &Ct4Bucket| b.map(|way| way.control).into()),
        IpVersion::V6 => controls(world, "CT6", |b: &Ct6Bucket| b.map(|way| way.control).into()),
    }
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
        let controls = controls_of(&world, family);
        let there = controls.iter().filter(|control| Control(**control).is_valid()).count() as u64;
        let evicted = world.counted(evictions(family == IpVersion::V6, false));
        assert!(evicted > 0 && evicted < FLOWS / 2, "{family:?}: {evicted}");
        assert_eq!(there + evicted, FLOWS, "{family:?}");
    }
}

/// Sends a request to the pod from a port, and the pod's answer. Returns whether the table had room for the flow.
fn asks(world: &mut World, family: IpVersion, port: u16) -> bool {
    let request = frame(&ip(family, Who::Client, Who::Pod, UDP, &udp(port, 53, b"?")));
    let reason = world.ingress(&request);
    if reason == Reason::ConntrackFull {
        return false;
    }
    assert_eq!(reason, Reason::Allowed, "{family:?} {port}");
    let answer = frame(&ip(family, Who::Pod, Who::Client, UDP, &udp(53, port, b"!")));
    assert_eq!(world.egress(&answer), Reason::Reply, "{family:?} {port}");
    true
}

#[test]
fn a_pod_that_fills_the_table_keeps_no_other_out() {
    let Some(mut world) = world() else { return };
    for family in FAMILIES {
        world.next_pod();
        let ports = 1..=FLOWS as u16 * 2;
        let refused = ports.filter(|port| !asks(&mut world, family, *port)).count();
        assert!(refused > FLOWS as usize, "{family:?}: the table is full, {refused} were refused");
        let established = evictions(family == IpVersion::V6, true);
        assert_eq!(world.counted(established), 0, "{family:?}: nobody makes room for itself");
        world.next_pod();
        // Few enough that collisions are rare: in a collision, the clock decides which flow is evicted, and the host
        // has its own clock.
        const OTHERS: u16 = 20;
        let given = (1..=OTHERS).filter(|port| asks(&mut world, family, *port)).count();
        assert_eq!(given, usize::from(OTHERS), "{family:?}: another pod's");
        let evicted = world.counted(established);
        assert!(evicted > 15 && evicted <= u64::from(OTHERS), "{family:?}: {evicted}");
    }
}

/// Fills three quarters of the table with established flows of several pods. Then adds flows of the pod with the most
/// flows, and of a pod without flows.
#[test]
fn a_table_filled_to_three_quarters_refuses_nothing() {
    for (family, buckets, more) in [(IpVersion::V4, 1 << 13, 500), (IpVersion::V6, 1 << 11, 100)] {
        let Some(mut world) = world_of(buckets) else { return };
        let (mut left, each) = (buckets * 3, 30_000);
        while left > 0 {
            world.next_pod();
            for port in 1..=left.min(each) {
                assert!(asks(&mut world, family, port as u16), "{family:?}: {left} {port}");
            }
            left -= left.min(each);
        }
        for _ in 0..2 {
            let refused =
                (0..more / 2).filter(|more| !asks(&mut world, family, 40_000 + more)).count();
            assert_eq!(refused, 0, "{family:?}");
            world.next_pod();
        }
        for established in [false, true] {
            let made_room = world.counted(evictions(family == IpVersion::V6, established));
            assert_eq!(made_room, 0, "{family:?}: nobody had to go");
        }
    }
}
