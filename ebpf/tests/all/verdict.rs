//! Verdicts on the host, without root: packets that `BPF_PROG_TEST_RUN` does not accept.

use netpold_ebpf::{
    judge::hook::PacketHook,
    packet::parse::{self, Transport},
    reason::Reason,
};
use netpold_testkit::frames::{ACK, SYN, TCP, Who, frame, ipv4, tcp};
use netpold_testkit::one_pod::{
    DENY_ROW, Direction, IFINDEX, INGRESS_ROW, UPLINK, egress, ingress, with_rows,
};

/// A SYN from a friend's port 4000 to the pod's port 80, with IPv4 options.
fn syn(options: &[u8]) -> Vec<u8> {
    frame(&ipv4(Who::Friend, Who::Pod, TCP, options, 0, &tcp(4000, 80, SYN)))
}

#[test]
fn every_truncation_drops_where_ingress_is_isolated() {
    let tables = with_rows(INGRESS_ROW, DENY_ROW);
    for options in [&[][..], &[1; 4], &[1; 40]] {
        let whole = syn(options);
        for length in 0..whole.len() {
            let reason = ingress(&tables, &whole[..length]);
            assert_eq!(reason, Reason::Truncated, "{length} of {}", whole.len());
        }
        assert_eq!(ingress(&tables, &whole), Reason::Allowed);
        let elsewhere = PacketHook { ifindex: IFINDEX + 1, ingress_ifindex: UPLINK };
        let verdict = tables.judge(Direction::Ingress, elsewhere, &whole[..20]);
        assert_eq!(verdict.reason(), Reason::NotEndpoint);
    }
}

#[test]
fn header_fields_that_contradict_each_other_drop() {
    let tables = with_rows(INGRESS_ROW, DENY_ROW);
    for (at, value) in [(14, 0x44), (14, 0x65), (17, 19)] {
        let mut frame = syn(&[]);
        frame[at] = value;
        assert_eq!(ingress(&tables, &frame), Reason::Malformed, "byte {at}");
    }
    let mut frame = syn(&[]);
    frame[17] += 1;
    assert_eq!(ingress(&tables, &frame), Reason::Truncated);
}

#[test]
fn padding_behind_the_packet_is_not_read() {
    let mut frame = syn(&[]);
    frame[17] = 30;
    frame.extend([0; 20]);
    assert_eq!(ingress(&with_rows(INGRESS_ROW, DENY_ROW), &frame), Reason::Truncated);
}

#[test]
fn an_answer_passes_until_its_flow_has_been_idle_too_long() {
    let tables = with_rows(INGRESS_ROW, DENY_ROW);
    let answer = ipv4(Who::Pod, Who::Friend, TCP, &[], 0, &tcp(80, 4000, SYN | ACK));
    let egress = || egress(&tables, &frame(&answer));
    assert_eq!(egress(), Reason::Policy);
    assert_eq!(ingress(&tables, &syn(&[])), Reason::Allowed);
    assert_eq!(egress(), Reason::Reply);
    // At this point the SYN may still be forged.
    tables.flows.later(tables.flows.settings.timeouts[0]);
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
