//! The verdict on the host: what `BPF_PROG_TEST_RUN` cannot be given, and needs no root.

mod common;

use netpold_ebpf::{
    direction::{Egress, Ingress},
    judge::{decide::decide, hook::Hook},
    layout::Endpoint,
    packet::parse::{self, Transport},
    reason::Reason,
};
use netpold_testkit::node::NodeTables;

const IFINDEX: u32 = 5;

/// A pod 10.0.0.2 that admits 10.0.1.0/24 on every port and sends to nobody.
fn tables() -> NodeTables {
    let mut tables = common::tables();
    let mut endpoint = Endpoint {
        ifindex: IFINDEX,
        id: 1,
        rows: Endpoint::pack_rows(common::CLIENTS, common::NOBODY),
        flags: 1,
        ..Endpoint::default()
    };
    endpoint.addr4[0] = 0x0a00_0002;
    tables.set_endpoint(endpoint);
    tables
}

/// A SYN from 10.0.1.7:4000 to 10.0.0.2:80, with IPv4 options.
fn syn(options: &[u8]) -> Vec<u8> {
    let length = 20 + options.len();
    let mut frame = vec![0; 12];
    frame.extend([8, 0, 0x40 | (length / 4) as u8, 0, 0, (length + 20) as u8]);
    frame.extend([0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 1, 7, 10, 0, 0, 2]);
    frame.extend(options);
    frame.extend([0x0f, 0xa0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 1, 0, 0, 0, 0, 0]);
    frame
}

fn ingress(tables: &NodeTables, ifindex: u32, frame: &[u8]) -> Reason {
    let hook = Hook { ifindex, ingress_ifindex: 9 };
    decide::<Ingress, _, _>(&frame, tables, hook).reason()
}

#[test]
fn every_truncation_drops_where_ingress_is_isolated() {
    let tables = tables();
    for options in [&[][..], &[1; 4], &[1; 40]] {
        let whole = syn(options);
        for length in 0..whole.len() {
            let reason = ingress(&tables, IFINDEX, &whole[..length]);
            assert_eq!(reason, Reason::Truncated, "{length} of {}", whole.len());
        }
        assert_eq!(ingress(&tables, IFINDEX, &whole), Reason::Allowed);
        assert_eq!(ingress(&tables, IFINDEX + 1, &whole[..20]), Reason::NotEndpoint);
    }
}

#[test]
fn header_fields_that_contradict_each_other_drop() {
    let tables = tables();
    for (at, value) in [(14, 0x44), (14, 0x65), (17, 19)] {
        let mut frame = syn(&[]);
        frame[at] = value;
        assert_eq!(ingress(&tables, IFINDEX, &frame), Reason::Malformed, "byte {at}");
    }
    let mut frame = syn(&[]);
    frame[17] += 1;
    assert_eq!(ingress(&tables, IFINDEX, &frame), Reason::Truncated);
}

#[test]
fn padding_behind_the_packet_is_not_read() {
    let mut frame = syn(&[]);
    frame[17] = 30;
    frame.extend([0; 20]);
    assert_eq!(ingress(&tables(), IFINDEX, &frame), Reason::Truncated);
}

#[test]
fn an_answer_passes_until_its_flow_has_been_idle_too_long() {
    let tables = tables();
    let mut answer = syn(&[]);
    answer[26..34].copy_from_slice(&[10, 0, 0, 2, 10, 0, 1, 7]);
    answer[34..38].copy_from_slice(&[0, 80, 0x0f, 0xa0]);
    answer[47] = 0x12;
    let hook = Hook { ifindex: IFINDEX, ingress_ifindex: IFINDEX };
    let egress = || decide::<Egress, _, _>(&answer.as_slice(), &tables, hook).reason();
    assert_eq!(egress(), Reason::Policy);
    assert_eq!(ingress(&tables, IFINDEX, &syn(&[])), Reason::Allowed);
    assert_eq!(egress(), Reason::Reply);
    // So far anyone could have forged the SYN.
    let idle = tables.flows.settings.timeouts[0];
    tables.flows.now.fetch_add(idle, std::sync::atomic::Ordering::AcqRel);
    assert_eq!(egress(), Reason::Policy);
}

#[test]
fn the_parser_reads_ports_behind_options() {
    let frame = syn(&[1; 12]);
    let bytes = frame.as_slice();
    let (_, offset) = parse::link(&bytes).expect("Ethernet");
    let network = parse::ipv4(&bytes, offset, false).expect("IPv4");
    let transport = parse::transport(&bytes, &network, false);
    let expected = Transport { protocol: 6, flags: 2, source: 4000, destination: 80 };
    assert_eq!(transport, Ok(expected));
}
