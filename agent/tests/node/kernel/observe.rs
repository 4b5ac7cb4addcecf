//! Records of the flows of pods that no policy selects, by the kernel's programs.

use aya::{
    Pod,
    maps::{Array, MapData},
};
use netpold_ebpf::{
    flow::control::Control,
    layout::{
        CT_EGRESS, CT_INGRESS, CT_NODE, CT_REPLIED, CT_SYN, CT_SYN_ACK, CT_VALID, Ct4Bucket,
        Ct6Bucket, EP_OBSERVE,
    },
    reason::{Reason, unrecorded},
};
use netpold_testkit::frames::{
    ACK, FAMILIES, IpVersion, SCTP, SYN, TCP, UDP, Who, frame, icmp, ip, sctp, tcp, udp, vlan,
};

use super::{
    world,
    world::{Direction, EGRESS_ROW, IFINDEX, INGRESS_ROW, World},
};

/// Returns the control words of a table.
fn controls<T: Pod>(world: &World, table: &str, controls: fn(&T) -> Vec<u64>) -> Vec<u64> {
    let map: Array<&MapData, T> = Array::try_from(world.bpf.map(table).expect(table)).expect(table);
    (0..map.len()).flat_map(|index| controls(&map.get(&index, 0).expect(table))).collect()
}

/// Returns the flags of all records.
fn records(world: &World, family: IpVersion) -> Vec<u16> {
    let controls = match family {
        IpVersion::V4 => {
            controls(world, "OBSERVED4", |b: &Ct4Bucket| b.map(|way| way.control).into())
        }
        IpVersion::V6 => {
            controls(world, "OBSERVED6", |b: &Ct6Bucket| b.map(|way| way.control).into())
        }
    };
    let valid = controls.into_iter().map(Control).filter(|control| control.is_valid());
    valid.map(|control| control.flags() & !CT_VALID).collect()
}

/// Turns the pod into another one, with the flag and these rows.
fn observe(world: &mut World, ingress: u32, egress: u32) {
    world.next_pod();
    world.host.endpoint_mut(IFINDEX).flags |= EP_OBSERVE;
    world.set_rows(ingress, egress);
}

#[test]
fn the_programs_record_flows_of_every_form() {
    for family in FAMILIES {
        let Some(mut world) = world() else { return };
        observe(&mut world, 0, 0);
        let (client, pod) = (Who::Stranger, Who::Pod);
        let segment = |from, to, ports: (u16, u16), flags| {
            frame(&ip(family, from, to, TCP, &tcp(ports.0, ports.1, flags)))
        };
        assert_eq!(world.ingress(&segment(client, pod, (4000, 80), SYN)), Reason::NotIsolated);
        assert_eq!(world.egress(&segment(pod, client, (80, 4000), SYN | ACK)), Reason::NotIsolated);
        assert_eq!(world.ingress(&segment(client, pod, (4000, 80), ACK)), Reason::NotIsolated);
        let open = CT_INGRESS | CT_SYN | CT_SYN_ACK | CT_REPLIED;
        assert_eq!(records(&world, family), [open], "{family:?}");
        // Packets that the program parses from a copy: SCTP, echo, a tag.
        let to = |protocol, data: &[u8]| frame(&ip(family, pod, Who::Server, protocol, data));
        let echo = icmp(family.echo_request(), 0, [0, 5, 0, 1], b"ping");
        let query = to(UDP, &udp(40_000, 53, b"?"));
        for packet in [
            to(SCTP, &sctp(5000, 5001, 1)),
            to(family.icmp(), &echo),
            query.clone(),
            vlan(&[0x8100], &to(UDP, &udp(40_001, 53, b"?"))),
        ] {
            assert_eq!(world.egress(&packet), Reason::NotIsolated, "{family:?}");
        }
        let sent = records(&world, family);
        assert_eq!(sent.iter().filter(|flags| **flags & CT_EGRESS != 0).count(), 4, "{family:?}");
        // Packets of a known flow add nothing.
        assert_eq!(world.egress(&query), Reason::NotIsolated);
        assert_eq!(records(&world, family), sent, "{family:?}");
        assert_eq!(world.counted(unrecorded()), 0);
    }
}

#[test]
fn pods_under_policy_or_without_the_flag_have_no_records() {
    let Some(mut world) = world() else { return };
    for family in FAMILIES {
        let syn = frame(&ip(family, Who::Client, Who::Pod, TCP, &tcp(4000, 80, SYN)));
        let out = frame(&ip(family, Who::Pod, Who::Server, TCP, &tcp(4000, 443, SYN)));
        for (ingress, egress) in [(INGRESS_ROW, 0), (0, EGRESS_ROW), (INGRESS_ROW, EGRESS_ROW)] {
            observe(&mut world, ingress, egress);
            world.ingress(&syn);
            world.egress(&out);
        }
        world.host.endpoint_mut(IFINDEX).flags &= !EP_OBSERVE;
        world.set_rows(0, 0);
        assert_eq!(world.ingress(&syn), Reason::NotIsolated);
        assert_eq!(world.egress(&out), Reason::NotIsolated);
        assert_eq!(records(&world, family), [0; 0], "{family:?}");
    }
}

/// Every flow of a flood has a record or is counted.
#[test]
fn a_flood_of_flows_is_recorded_or_counted() {
    const FLOWS: u16 = 1_100;
    for family in FAMILIES {
        let Some(mut world) = world() else { return };
        observe(&mut world, 0, 0);
        for port in 1..=FLOWS {
            let syn = frame(&ip(family, Who::Pod, Who::Server, TCP, &tcp(port, 443, SYN)));
            assert_eq!(world.egress(&syn), Reason::NotIsolated, "{family:?} {port}");
        }
        let there = records(&world, family).len() as u64;
        assert_eq!(there + world.counted(unrecorded()), u64::from(FLOWS), "{family:?}");
    }
}

#[test]
fn packets_of_the_node_are_recorded_as_such() {
    let Some(mut world) = world() else { return };
    observe(&mut world, 0, 0);
    let probe = frame(&ip(IpVersion::V4, Who::Server, Who::Pod, TCP, &tcp(50_000, 8080, SYN)));
    // A test run has no socket, so the packet is not proved to be the node's.
    world.judge(Direction::Ingress, 0, &probe);
    let flags = records(&world, IpVersion::V4);
    assert_eq!((flags.len(), flags[0] & CT_INGRESS), (1, CT_INGRESS));
    assert_eq!(flags[0] & !(CT_INGRESS | CT_SYN | CT_NODE), 0);
}
