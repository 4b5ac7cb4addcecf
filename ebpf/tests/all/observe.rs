//! Records of the flows of pods that no policy selects.

use std::net::Ipv4Addr;

use netpold_ebpf::{
    flow::control::Control,
    judge::hook::PacketHook,
    layout::{
        CT_EGRESS, CT_FIN_EGRESS, CT_FIN_INGRESS, CT_INGRESS, CT_NODE, CT_REPLIED, CT_SYN,
        CT_VALID, EP_OBSERVE, Endpoint, OBSERVED_PER_SECOND,
    },
    reason::Reason,
    verdict::PacketVerdict,
};
use netpold_testkit::{
    flows::HZ,
    frames::{
        ACK, FAMILIES, FIN, IpVersion, SCTP, SYN, TCP, UDP, Who, frame, icmp, ip, ip_between, sctp,
        tcp, udp, vlan,
    },
    node::NodeTables,
    one_pod::{self, Direction, IFINDEX, INGRESS_ROW, UPLINK, set_rows},
    random::Random,
};

/// Interface of another pod, whose records compete with those of the first.
const OTHER: u32 = 44;

fn observed() -> NodeTables {
    let mut tables = one_pod::with_rows(0, 0);
    tables.endpoint_mut(IFINDEX).flags |= EP_OBSERVE;
    let pod = *tables.endpoint_mut(IFINDEX);
    tables.set_endpoint(Endpoint { ifindex: OTHER, id: 8, ..pod });
    tables
}

fn receive(tables: &NodeTables, frame: &[u8]) -> Reason {
    let hook = PacketHook { ifindex: IFINDEX, ingress_ifindex: UPLINK };
    tables.judge_and_record(Direction::Ingress, hook, frame).reason()
}

fn send(tables: &NodeTables, frame: &[u8]) -> Reason {
    send_by(tables, IFINDEX, frame)
}

fn send_by(tables: &NodeTables, ifindex: u32, frame: &[u8]) -> Reason {
    let hook = PacketHook { ifindex, ingress_ifindex: ifindex };
    tables.judge_and_record(Direction::Egress, hook, frame).reason()
}

/// Flags of all records, with the number of their endpoint.
fn records(tables: &NodeTables) -> Vec<(u32, u16)> {
    let mut records = Vec::new();
    tables.flows.for_each_record(|_, control: Control, words| {
        let endpoint = words[1].load(std::sync::atomic::Ordering::Acquire) as u32;
        records.push((endpoint, control.flags() & !CT_VALID));
    });
    records
}

fn flags(tables: &NodeTables) -> Vec<u16> {
    records(tables).into_iter().map(|(_, flags)| flags).collect()
}

#[test]
fn a_record_names_the_direction_that_began_the_flow() {
    for family in FAMILIES {
        let tables = observed();
        let segment = |from, to, ports: (u16, u16), flags| {
            frame(&ip(family, from, to, TCP, &tcp(ports.0, ports.1, flags)))
        };
        let (client, pod) = (Who::Stranger, Who::Pod);
        assert_eq!(receive(&tables, &segment(client, pod, (4000, 80), SYN)), Reason::NotIsolated);
        assert_eq!(flags(&tables), [CT_INGRESS | CT_SYN], "{family:?}");
        send(&tables, &segment(pod, client, (80, 4000), SYN | ACK));
        receive(&tables, &segment(client, pod, (4000, 80), ACK));
        let open = CT_INGRESS | CT_SYN | CT_REPLIED;
        assert_eq!(flags(&tables)[0] & open, open, "{family:?}: the reply begins no flow");
        assert_eq!(flags(&tables)[0] & CT_EGRESS, 0, "{family:?}");
        receive(&tables, &segment(client, pod, (4000, 80), FIN | ACK));
        send(&tables, &segment(pod, client, (80, 4000), FIN | ACK));
        let fins = CT_FIN_INGRESS | CT_FIN_EGRESS;
        assert_eq!(flags(&tables)[0] & fins, fins, "{family:?}: closed");
        // The same ports again, from the other side.
        send(&tables, &segment(pod, client, (80, 4000), SYN));
        assert_eq!(flags(&tables), [CT_EGRESS | CT_SYN], "{family:?}: a new flow");
    }
}

#[test]
fn flows_of_every_protocol_are_recorded() {
    for family in FAMILIES {
        let tables = observed();
        let to = |protocol, data: &[u8]| frame(&ip(family, Who::Pod, Who::Server, protocol, data));
        send(&tables, &to(UDP, &udp(40_000, 53, b"?")));
        assert_eq!(flags(&tables), [CT_EGRESS], "{family:?}");
        let answer = ip(family, Who::Server, Who::Pod, UDP, &udp(53, 40_000, b"!"));
        receive(&tables, &frame(&answer));
        assert_eq!(flags(&tables), [CT_EGRESS | CT_REPLIED], "{family:?}");
        send(&tables, &to(SCTP, &sctp(5000, 5001, 1)));
        let echo = icmp(family.echo_request(), 0, [0, 5, 0, 1], b"ping");
        send(&tables, &to(family.icmp(), &echo));
        assert_eq!(flags(&tables).len(), 3, "{family:?}: SCTP and echo too");
        // Neither errors nor answers without a question have a record.
        let reply = icmp(family.echo_reply(), 0, [0, 6, 0, 1], b"ping");
        send(&tables, &to(family.icmp(), &reply));
        let error = icmp(family.unreachable(), 0, [0; 4], &[0; 28]);
        send(&tables, &to(family.icmp(), &error));
        assert_eq!(flags(&tables).len(), 3, "{family:?}");
        let tagged = vlan(&[0x8100], &to(UDP, &udp(40_001, 53, b"?")));
        send(&tables, &tagged);
        assert_eq!(flags(&tables).len(), 4, "{family:?}: with a tag");
    }
}

#[test]
fn a_connection_older_than_the_flag_is_recorded_by_its_ports() {
    let tables = observed();
    let segment = |from, to, ports: (u16, u16)| {
        frame(&ip(IpVersion::V4, from, to, TCP, &tcp(ports.0, ports.1, ACK)))
    };
    send(&tables, &segment(Who::Pod, Who::Client, (80, 40_000)));
    assert_eq!(flags(&tables), [0; 0], "a server's packet does not show the initiator");
    receive(&tables, &segment(Who::Client, Who::Pod, (40_000, 80)));
    assert_eq!(flags(&tables), [CT_INGRESS]);
}

#[test]
fn packets_of_the_node_are_known() {
    let tables = observed();
    let probe = frame(&ip(IpVersion::V4, Who::Server, Who::Pod, TCP, &tcp(50_000, 8080, SYN)));
    let hook = PacketHook { ifindex: IFINDEX, ingress_ifindex: 0 };
    let verdict = tables.judge_and_record(Direction::Ingress, hook, &probe);
    assert_eq!(verdict.reason(), Reason::NotIsolated);
    assert_eq!(flags(&tables), [CT_INGRESS | CT_NODE | CT_SYN]);
}

#[test]
fn only_pods_with_the_flag_and_without_policy_have_records() {
    let syn = frame(&ip(IpVersion::V4, Who::Friend, Who::Pod, TCP, &tcp(4000, 80, SYN)));
    let out = frame(&ip(IpVersion::V4, Who::Pod, Who::Server, TCP, &tcp(4000, 80, SYN)));
    let mut tables = observed();
    tables.endpoint_mut(IFINDEX).flags &= !EP_OBSERVE;
    assert_eq!((receive(&tables, &syn), send(&tables, &out)), [Reason::NotIsolated; 2].into());
    assert_eq!(records(&tables), [], "not observed");
    tables.endpoint_mut(IFINDEX).flags |= EP_OBSERVE;
    set_rows(&mut tables, INGRESS_ROW, 0);
    assert_eq!(
        (receive(&tables, &syn), send(&tables, &out)),
        (Reason::Allowed, Reason::NotIsolated)
    );
    assert_eq!(records(&tables), [], "conntrack has both flows");
    let mut tracked = 0;
    tables.flows.for_each(|_, _, _| tracked += 1);
    assert_eq!(tracked, 2);
    set_rows(&mut tables, 0, 0);
    // Neither a forged packet nor one for another pod's address is the pod's.
    let forged = frame(&ip(IpVersion::V4, Who::Stranger, Who::Server, TCP, &tcp(4000, 80, SYN)));
    assert_eq!(send(&tables, &forged), Reason::SpoofedSource);
    let flooded = frame(&ip(IpVersion::V4, Who::Friend, Who::Stranger, TCP, &tcp(4000, 80, SYN)));
    assert_eq!(receive(&tables, &flooded), Reason::NotIsolated);
    assert_eq!(records(&tables), []);
}

/// A frame of any length and content, mostly with valid headers.
fn random_frame(random: &mut Random) -> Vec<u8> {
    let who = [Who::Client, Who::Server, Who::Friend, Who::Stranger, Who::Pod];
    let mut any = |most: usize| random.below(most);
    let (from, to) = (who[any(who.len())], who[any(who.len())]);
    let family = FAMILIES[any(2)];
    let ports = (any(5) as u16 + 39_998, [53, 80, 443, 40_000][any(4)]);
    let data = match any(5) {
        0 | 1 => (TCP, tcp(ports.0, ports.1, any(256) as u8)),
        2 => (UDP, udp(ports.0, ports.1, b"data")),
        3 => (SCTP, sctp(ports.0, ports.1, any(16) as u8)),
        _ => (family.icmp(), icmp(any(256) as u8, 0, [0, 1, 0, any(3) as u8], &[0; 28])),
    };
    let mut frame = frame(&ip(family, from, to, data.0, &data.1));
    if any(4) == 0 {
        let at = any(frame.len());
        frame[at] ^= 1 << any(8);
    }
    if any(8) == 0 {
        frame.truncate(any(frame.len()) + 1);
    }
    frame
}

/// All packets get the same verdict with the flag and without it, regardless of the pod's policy, and the same
/// conntrack.
#[test]
fn no_verdict_depends_on_records() {
    let mut random = Random(39);
    for rows in
        [(0, 0), (INGRESS_ROW, 0), (0, one_pod::EGRESS_ROW), (INGRESS_ROW, one_pod::EGRESS_ROW)]
    {
        let mut with = observed();
        let mut without = observed();
        without.endpoint_mut(IFINDEX).flags &= !EP_OBSERVE;
        for tables in [&mut with, &mut without] {
            set_rows(tables, rows.0, rows.1);
        }
        for _ in 0..20_000 {
            let frame = random_frame(&mut random);
            let (direction, hook) = match random.below(3) {
                0 => (Direction::Ingress, PacketHook { ifindex: IFINDEX, ingress_ifindex: UPLINK }),
                1 => (Direction::Ingress, PacketHook { ifindex: IFINDEX, ingress_ifindex: 0 }),
                _ => (Direction::Egress, PacketHook { ifindex: IFINDEX, ingress_ifindex: IFINDEX }),
            };
            let verdicts =
                [&with, &without].map(|tables| tables.judge_and_record(direction, hook, &frame));
            let [one, other] = verdicts.map(PacketVerdict::reason);
            assert_eq!(one, other, "{rows:?} {direction:?} {frame:02x?}");
        }
        let tracked = [&with, &without].map(|tables| {
            let mut all = Vec::new();
            tables.flows.for_each(|way, control, _| all.push((way, control)));
            all
        });
        assert_eq!(tracked[0], tracked[1], "{rows:?}");
        assert_eq!(records(&without), [], "{rows:?}");
        assert_eq!(records(&with).is_empty(), rows != (0, 0), "{rows:?}: the test has records");
    }
}

/// Sends the opening of a connection to the address of a number.
fn begin(tables: &NodeTables, ifindex: u32, number: u32, port: u16) {
    let pod = Ipv4Addr::from(Who::Pod.v4());
    let to = Ipv4Addr::from(0x0b00_0000 + number);
    let packet = ip_between(pod.into(), to.into(), TCP, &tcp(port, 80, SYN));
    assert_eq!(send_by(tables, ifindex, &frame(&packet)), Reason::NotIsolated);
}

#[test]
fn an_interface_adds_a_bounded_number_of_records_a_second() {
    let tables = observed();
    for number in 0..3 * OBSERVED_PER_SECOND {
        begin(&tables, IFINDEX, number, 4000);
    }
    let added = u64::from(OBSERVED_PER_SECOND);
    assert_eq!((records(&tables).len() as u64, tables.flows.unrecorded()), (added, 2 * added));
    begin(&tables, OTHER, 0, 4000);
    assert_eq!(records(&tables).len() as u64, added + 1, "another pod has its own");
    tables.flows.later(HZ);
    begin(&tables, IFINDEX, 1_000_000, 4000);
    assert_eq!(records(&tables).len() as u64, added + 2, "a second later");
}

#[test]
fn a_pod_that_floods_replaces_its_own_records() {
    let tables = observed();
    let quiet = 500;
    for number in 0..quiet {
        begin(&tables, OTHER, number, 5000);
    }
    // Three times the table, each second as many as the interface may add.
    for number in 0..100 * OBSERVED_PER_SECOND {
        if number % OBSERVED_PER_SECOND == 0 {
            tables.flows.later(HZ);
        }
        begin(&tables, IFINDEX, number, (number % 60_000) as u16 + 1);
    }
    let records = records(&tables);
    let of = |endpoint| records.iter().filter(|(of, _)| *of == endpoint).count() as u32;
    assert_eq!(tables.flows.unrecorded(), 0);
    assert_eq!(of(8), quiet, "none of the other pod's was replaced");
    assert!(of(7) > 30_000, "the rest of the table is the pod's: {}", of(7));
}
