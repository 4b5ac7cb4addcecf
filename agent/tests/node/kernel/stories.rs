//! Packet stories: sequences of a pod's packets and their verdicts.

use netpold_ebpf::layout::endpoint_slot;
use netpold_ebpf::reason::Reason;

use netpold_testkit::frames::{
    ACK, FAMILIES, FIN, IpVersion, RST, SCTP, SYN, TCP, UDP, Who, ether, frame, icmp, ip, ipv4,
    ipv6, sctp, tcp, udp, vlan,
};

use super::{
    world,
    world::{DENY_ROW, Direction, EGRESS_ROW, IFINDEX, INGRESS_ROW, UPLINK},
};

fn segment(family: IpVersion, from: Who, to: Who, ports: (u16, u16), flags: u8) -> Vec<u8> {
    frame(&ip(family, from, to, TCP, &tcp(ports.0, ports.1, flags)))
}

#[test]
fn connections_and_their_answers() {
    let Some(mut world) = world() else { return };
    for family in FAMILIES {
        world.next_pod();
        let (c, p, s) = (Who::Client, Who::Pod, Who::Server);
        // Packets that answer no earlier packet.
        assert_eq!(world.egress(&segment(family, p, c, (80, 4000), SYN | ACK)), Reason::Policy);
        assert_eq!(world.ingress(&segment(family, s, p, (443, 5000), ACK)), Reason::Policy);
        // Connection of a client.
        assert_eq!(world.ingress(&segment(family, c, p, (4000, 80), SYN)), Reason::Allowed);
        assert_eq!(world.egress(&segment(family, p, c, (80, 4000), SYN | ACK)), Reason::Reply);
        assert_eq!(world.ingress(&segment(family, c, p, (4000, 80), ACK)), Reason::Allowed);
        // A different port, a different peer, the opposite direction.
        assert_eq!(world.ingress(&segment(family, c, p, (4000, 81), SYN)), Reason::Policy);
        assert_eq!(
            world.ingress(&segment(family, Who::Stranger, p, (4000, 80), SYN)),
            Reason::Policy
        );
        assert_eq!(world.egress(&segment(family, p, c, (80, 4001), ACK)), Reason::Policy);
        // The server may not open a connection between the ports of an answer.
        assert_eq!(world.egress(&segment(family, p, c, (80, 4000), SYN)), Reason::Policy);
        // Connection of the pod itself.
        assert_eq!(world.egress(&segment(family, p, s, (5000, 443), SYN)), Reason::Allowed);
        assert_eq!(world.ingress(&segment(family, s, p, (443, 5000), SYN | ACK)), Reason::Reply);
        assert_eq!(world.ingress(&segment(family, s, p, (443, 5000), FIN | ACK)), Reason::Reply);
        assert_eq!(world.egress(&segment(family, p, s, (5000, 443), RST)), Reason::Allowed);
    }
}

#[test]
fn policy_changes_cut_and_keep_flows() {
    let Some(mut world) = world() else { return };
    for family in FAMILIES {
        world.next_pod();
        let (c, p) = (Who::Client, Who::Pod);
        let forward = segment(family, c, p, (4000, 80), ACK);
        let answer = segment(family, p, c, (80, 4000), ACK);
        assert_eq!(world.ingress(&segment(family, c, p, (4000, 80), SYN)), Reason::Allowed);
        assert_eq!(world.egress(&answer), Reason::Reply);
        world.set_rows(DENY_ROW, EGRESS_ROW);
        assert_eq!(world.egress(&answer), Reason::Policy);
        assert_eq!(world.ingress(&forward), Reason::Policy);
        world.set_rows(INGRESS_ROW, EGRESS_ROW);
        assert_eq!(world.ingress(&forward), Reason::Allowed);
        assert_eq!(world.egress(&answer), Reason::Reply);
        world.set_rows(0, EGRESS_ROW);
        assert_eq!(world.egress(&answer), Reason::Reply);
        // Answers of a pod with free egress do not make its client's flow the pod's own.
        world.next_pod();
        world.set_rows(INGRESS_ROW, 0);
        assert_eq!(world.ingress(&segment(family, c, p, (4000, 80), SYN)), Reason::Allowed);
        assert_eq!(world.egress(&answer), Reason::NotIsolated);
        world.set_rows(DENY_ROW, 0);
        assert_eq!(world.egress(&answer), Reason::NotIsolated);
        assert_eq!(world.ingress(&forward), Reason::Policy);
        // The pod's own connection stays open, though ingress is isolated.
        assert_eq!(world.egress(&segment(family, p, c, (5000, 22), SYN)), Reason::NotIsolated);
        assert_eq!(world.ingress(&segment(family, c, p, (22, 5000), SYN | ACK)), Reason::Reply);
    }
}

#[test]
fn echo_is_answered_and_not_reversed() {
    let Some(mut world) = world() else { return };
    for family in FAMILIES {
        world.next_pod();
        let echo = |from, to, kind, id| {
            frame(&ip(family, from, to, family.icmp(), &icmp(kind, 0, [0, id, 0, 1], b"ping")))
        };
        let (request, reply) = (family.echo_request(), family.echo_reply());
        let (p, s) = (Who::Pod, Who::Server);
        assert_eq!(world.ingress(&echo(s, p, reply, 5)), Reason::Policy);
        assert_eq!(world.egress(&echo(p, s, request, 5)), Reason::Allowed);
        assert_eq!(world.ingress(&echo(s, p, reply, 5)), Reason::Reply);
        assert_eq!(world.ingress(&echo(s, p, request, 5)), Reason::Policy);
        assert_eq!(world.ingress(&echo(s, p, reply, 6)), Reason::Policy);
    }
}

#[test]
fn icmp_errors_about_flows() {
    let Some(mut world) = world() else { return };
    for family in FAMILIES {
        world.next_pod();
        let (p, s, router) = (Who::Pod, Who::Server, Who::Stranger);
        let sent = ip(family, p, s, UDP, &udp(5000, 53, b"question"));
        let error = |quoted: &[u8]| {
            let data = icmp(family.unreachable(), 3, [0; 4], quoted);
            frame(&ip(family, router, p, family.icmp(), &data))
        };
        assert_eq!(world.ingress(&error(&sent)), Reason::Policy);
        assert_eq!(world.egress(&frame(&sent)), Reason::Allowed);
        assert_eq!(world.ingress(&error(&sent)), Reason::Related);
        // A quote that ends after the ports, as RFC 792 allows.
        let header = if family == IpVersion::V4 { 20 } else { 40 };
        assert_eq!(world.ingress(&error(&sent[..header + 8])), Reason::Related);
        assert_eq!(world.ingress(&error(&sent[..header + 4])), Reason::Policy);
        let other = ip(family, p, s, UDP, &udp(5001, 53, b"question"));
        assert_eq!(world.ingress(&error(&other)), Reason::Policy);
        let foreign = ip(family, router, s, UDP, &udp(5000, 53, b"question"));
        assert_eq!(world.ingress(&error(&foreign)), Reason::Policy);
        world.set_rows(INGRESS_ROW, DENY_ROW);
        assert_eq!(world.ingress(&error(&sent)), Reason::Policy);
    }
}

#[test]
fn fragments_follow_their_first() {
    let Some(mut world) = world() else { return };
    for family in FAMILIES {
        world.next_pod();
        let (p, s, friend) = (Who::Pod, Who::Server, Who::Friend);
        let first = family.fragment(p, s, 0, true, &udp(5000, 53, &[0; 8]));
        let later = family.fragment(p, s, 2, false, &[0; 8]);
        assert_eq!(world.egress(&later), Reason::FragmentWithoutFirst);
        assert_eq!(world.egress(&first), Reason::Allowed);
        assert_eq!(world.egress(&later), Reason::Allowed);
        // The answer is fragmented too; a denied first fragment records no ports.
        let answer = family.fragment(s, p, 0, true, &udp(53, 5000, &[0; 8]));
        let rest = family.fragment(s, p, 2, false, &[0; 8]);
        assert_eq!(world.ingress(&rest), Reason::FragmentWithoutFirst);
        assert_eq!(world.ingress(&answer), Reason::Reply);
        assert_eq!(world.ingress(&rest), Reason::Reply);
        // Where policy allows every port, a later fragment needs no ports.
        assert_eq!(world.ingress(&family.fragment(friend, p, 2, false, &[0; 8])), Reason::Allowed);
        let tiny = family.fragment(p, s, 0, true, &[0; 4]);
        assert_eq!(world.egress(&tiny), Reason::TinyFragment);
    }
    let overlap = frame(&ipv4(Who::Pod, Who::Server, TCP, &[], 1, &[0; 16]));
    assert_eq!(world.egress(&overlap), Reason::TinyFragment);
}

#[test]
fn headers_of_every_kind() {
    let Some(mut world) = world() else { return };
    let (c, p) = (Who::Client, Who::Pod);
    let syn = tcp(4000, 80, SYN);
    for options in [4, 12, 40] {
        let packet = frame(&ipv4(c, p, TCP, &vec![1; options], 0, &syn));
        assert_eq!(world.ingress(&packet), Reason::Allowed, "{options} bytes of options");
    }
    let extended = |headers: &[u8]| {
        let mut data = Vec::new();
        for (index, _) in headers.iter().enumerate() {
            data.push(headers.get(index + 1).copied().unwrap_or(TCP));
            data.extend([0, 1, 0, 0, 0, 0, 0]);
        }
        data.extend(&syn);
        frame(&ipv6(c, p, headers[0], 64, &data))
    };
    assert_eq!(world.ingress(&extended(&[0])), Reason::Allowed);
    assert_eq!(world.ingress(&extended(&[0, 43, 60])), Reason::Allowed);
    assert_eq!(world.ingress(&extended(&[60; 8])), Reason::Allowed);
    assert_eq!(world.ingress(&extended(&[60; 9])), Reason::TooManyHeaders);
    for tags in [&[0x8100_u16][..], &[0x88a8, 0x8100]] {
        for family in FAMILIES {
            let plain = frame(&ip(family, c, p, TCP, &syn));
            assert_eq!(world.ingress(&vlan(tags, &plain)), Reason::Allowed);
            let denied = frame(&ip(family, c, p, TCP, &tcp(4000, 81, SYN)));
            assert_eq!(world.ingress(&vlan(tags, &denied)), Reason::Policy);
            let sent = frame(&ip(family, p, Who::Server, TCP, &tcp(4000, 443, SYN)));
            assert_eq!(world.egress(&vlan(tags, &sent)), Reason::Allowed);
            let denied = frame(&ip(family, p, Who::Server, TCP, &tcp(4000, 444, SYN)));
            assert_eq!(world.egress(&vlan(tags, &denied)), Reason::Policy);
            let spoofed = frame(&ip(family, c, Who::Server, TCP, &tcp(4000, 443, SYN)));
            assert_eq!(world.egress(&vlan(tags, &spoofed)), Reason::SpoofedSource);
        }
    }
    assert_eq!(world.ingress(&ether(0x88cc, &[0; 50])), Reason::NotIp);
    // Neighbour discovery passes only if no router forwarded it (hop limit 255).
    let solicitation = icmp(135, 0, [0; 4], &p.v6());
    assert_eq!(
        world.ingress(&frame(&ipv6(Who::Stranger, p, 58, 255, &solicitation))),
        Reason::Neighbour
    );
    assert_eq!(
        world.ingress(&frame(&ipv6(Who::Stranger, p, 58, 254, &solicitation))),
        Reason::Policy
    );
}

#[test]
fn truncated_at_every_length() {
    let Some(mut world) = world() else { return };
    for family in FAMILIES {
        let whole = segment(family, Who::Client, Who::Pod, (4000, 80), SYN);
        // The test call itself rejects a frame with an IP Ethernet type that is shorter than an IP header.
        let least = if family == IpVersion::V4 { 34 } else { 54 };
        for length in least..whole.len() {
            let reason = world.ingress(&whole[..length]);
            assert_eq!(reason, Reason::Truncated, "{family:?} cut to {length}");
        }
        let tagged = vlan(&[0x8100], &whole);
        for length in 15..tagged.len() {
            let reason = world.ingress(&tagged[..length]);
            assert_eq!(reason, Reason::Truncated, "{family:?} with a tag cut to {length}");
        }
        assert_eq!(world.ingress(&whole), Reason::Allowed);
    }
}

#[test]
fn sources_the_node_and_the_pod_itself() {
    let Some(mut world) = world() else { return };
    for family in FAMILIES {
        world.next_pod();
        let (p, s, stranger) = (Who::Pod, Who::Server, Who::Stranger);
        let spoofed = segment(family, stranger, s, (5000, 443), SYN);
        assert_eq!(world.egress(&spoofed), Reason::SpoofedSource);
        world.set_rows(INGRESS_ROW, 0);
        assert_eq!(world.egress(&spoofed), Reason::SpoofedSource);
        world.set_rows(0, 0);
        assert_eq!(world.egress(&spoofed), Reason::SpoofedSource);
        assert_eq!(world.ingress(&spoofed), Reason::NotIsolated);
        world.set_rows(INGRESS_ROW, EGRESS_ROW);
        // A packet of the node itself, and the pod's answer to an address without an allow rule.
        let probe = segment(family, stranger, p, (6000, 8080), SYN);
        let answer = segment(family, p, stranger, (8080, 6000), SYN | ACK);
        assert_eq!(world.ingress(&probe), Reason::Policy);
        assert_eq!(world.egress(&answer), Reason::Policy);
        assert_eq!(world.judge(Direction::Ingress, 0, &probe), Reason::Node);
        assert_eq!(world.egress(&answer), Reason::Reply);
        // Packets of the pod to itself, directly and through its own Service.
        let own = segment(family, p, p, (7000, 9), SYN);
        assert_eq!(world.egress(&own), Reason::Loopback);
        assert_eq!(world.judge(Direction::Ingress, IFINDEX, &probe), Reason::Loopback);
        assert_eq!(world.judge(Direction::Ingress, UPLINK, &probe), Reason::Policy);
    }
}

#[test]
fn sctp_associations() {
    let Some(mut world) = world() else { return };
    let (init, data) = (1, 0);
    for family in FAMILIES {
        world.next_pod();
        let (p, s) = (Who::Pod, Who::Server);
        let chunk = |from, to, ports: (u16, u16), kind| {
            frame(&ip(family, from, to, SCTP, &sctp(ports.0, ports.1, kind)))
        };
        // Chunks that answer no earlier packet; an answer opens no association.
        assert_eq!(world.ingress(&chunk(s, p, (3868, 5000), data)), Reason::Policy);
        assert_eq!(world.egress(&chunk(p, s, (5000, 3868), init)), Reason::Allowed);
        assert_eq!(world.ingress(&chunk(s, p, (3868, 5000), data)), Reason::Reply);
        assert_eq!(world.ingress(&chunk(s, p, (3868, 5000), init)), Reason::Policy);
        assert_eq!(world.egress(&chunk(p, Who::Client, (5000, 3868), init)), Reason::Policy);
        let cut = chunk(p, s, (5000, 3868), init);
        assert_eq!(world.egress(&cut[..cut.len() - 1]), Reason::Truncated);
    }
}

#[test]
fn listener_discovery_before_the_pod_has_an_address() {
    let Some(mut world) = world() else { return };
    // A report (RFC 3810): after a router alert option, with hop limit 1, from the unspecified address.
    let report = |hop_limit, multicast: bool| {
        let mut data = vec![58, 0, 5, 2, 0, 0, 1, 0];
        let mut record = vec![4, 0, 0, 0, 0xff, 2];
        record.resize(20, 1);
        data.extend(icmp(143, 0, [0, 0, 0, 1], &record));
        let mut packet = ipv6(Who::Pod, Who::Server, 0, hop_limit, &data);
        packet[8..24].fill(0);
        if multicast {
            packet[24..40].copy_from_slice(&[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x16]);
        }
        frame(&packet)
    };
    assert_eq!(world.egress(&report(1, true)), Reason::Neighbour);
    assert_eq!(world.egress(&report(64, true)), Reason::SpoofedSource);
    assert_eq!(world.egress(&report(1, false)), Reason::SpoofedSource, "no tunnel to a host");
    assert_eq!(world.ingress(&report(64, true)), Reason::Policy);
}

/// Link-local control messages pass without a rule, but only in one exact form and with the pod's own address.
#[test]
fn the_links_own_messages() {
    let Some(mut world) = world() else { return };
    let arp = |from: [u8; 4], padding: usize| {
        let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2];
        packet.extend(from);
        packet.extend([0, 0, 0, 0, 0, 0, 10, 0, 3, 2]);
        packet.resize(28 + padding, 0);
        ether(0x0806, &packet)
    };
    // An ARP probe with an unspecified sender, for an address that the sender is about to use (RFC 5227 section
    // 2.1.1).
    let probe = |target: [u8; 4]| {
        let mut frame = arp([0; 4], 0);
        frame[14 + 24..14 + 28].copy_from_slice(&target);
        frame
    };
    let (own, other) = (Who::Pod.v4(), Who::Friend.v4());
    let long = arp(own, 1200);
    let mut odd = arp(own, 0);
    odd[14 + 4] = 8;
    let advertisement = |target: Who, to: Who, extra: &[u8]| {
        let rest = [&target.v6()[..], extra].concat();
        frame(&ipv6(Who::Pod, to, 58, 255, &icmp(136, 0, [0x60, 0, 0, 0], &rest)))
    };
    let option = [2, 1, 2, 0, 0, 0, 0, 2];
    let claim = advertisement(Who::Friend, Who::Client, &option);
    let hidden = {
        let mut data = vec![58, 0, 1, 4, 0, 0, 0, 0];
        data.extend(&claim[54..]);
        frame(&ipv6(Who::Pod, Who::Client, 60, 255, &data))
    };
    for (rows, forms) in
        [((INGRESS_ROW, EGRESS_ROW), true), ((INGRESS_ROW, 0), false), ((0, 0), false)]
    {
        world.set_rows(rows.0, rows.1);
        assert_eq!(world.egress(&arp(own, 18)), Reason::Neighbour);
        assert_eq!(world.egress(&probe(own)), Reason::Neighbour);
        assert_eq!(world.egress(&probe(other)), Reason::SpoofedSource);
        assert_eq!(world.egress(&arp(other, 0)), Reason::SpoofedSource);
        assert_eq!(world.egress(&vlan(&[0x8100], &arp(other, 0))), Reason::SpoofedSource);
        assert_eq!(world.egress(&vlan(&[0x88a8, 0x8100], &arp(own, 0))), Reason::Neighbour);
        assert_eq!(world.egress(&long), Reason::Malformed);
        assert_eq!(world.egress(&vlan(&[0x8100], &long)), Reason::Malformed);
        assert_eq!(world.egress(&odd), Reason::Malformed);
        assert_eq!(world.egress(&claim), Reason::SpoofedSource);
        assert_eq!(world.egress(&hidden), Reason::SpoofedSource);
        assert_eq!(world.egress(&vlan(&[0x8100], &claim)), Reason::SpoofedSource);
        let own = world.egress(&advertisement(Who::Pod, Who::Client, &option));
        assert_eq!(own, if forms { Reason::Translated } else { Reason::Neighbour });
        let more = world.egress(&advertisement(Who::Pod, Who::Client, &[1; 1000]));
        assert_eq!(more, if forms { Reason::Policy } else { Reason::NotIsolated });
    }
    world.next_pod();
    assert_eq!(world.ingress(&arp(other, 18)), Reason::Neighbour);
    assert_eq!(world.ingress(&long), Reason::Malformed);
    assert_eq!(world.ingress(&odd), Reason::Malformed);
}

/// A source route past the judged destination makes a packet malformed.
#[test]
fn routes_beyond_the_destination() {
    let Some(mut world) = world() else { return };
    let (p, s) = (Who::Pod, Who::Server);
    let question = udp(5000, 53, b"q");
    let routed = |left: u8| {
        let mut data = vec![UDP, 2, 0, left, 0, 0, 0, 0];
        data.extend(Who::Stranger.v6());
        data.extend(&question);
        frame(&ipv6(p, s, 43, 64, &data))
    };
    let options = |options: &[u8]| frame(&ipv4(p, s, UDP, options, 0, &question));
    let far = Who::Stranger.v4();
    let route = |kind: u8| [kind, 7, 4, far[0], far[1], far[2], far[3], 0];
    assert_eq!(world.egress(&routed(0)), Reason::Allowed);
    assert_eq!(world.egress(&routed(1)), Reason::Malformed);
    assert_eq!(world.egress(&options(&[1, 1, 7, 5, 4, 131, 137, 0])), Reason::Allowed, "recorded");
    for kind in [131, 137] {
        assert_eq!(world.egress(&options(&route(kind))), Reason::Malformed);
        let behind = [&[1, 1, 1, 7, 5, 4, 0, 0][..], &route(kind)].concat();
        assert_eq!(world.egress(&options(&behind)), Reason::Malformed);
    }
    world.set_rows(INGRESS_ROW, 0);
    assert_eq!(world.egress(&routed(1)), Reason::Malformed, "its source is checked");
    assert_eq!(world.egress(&options(&route(131))), Reason::NotIsolated);
    world.set_rows(0, 0);
    assert_eq!(world.egress(&options(&route(131))), Reason::NotIsolated);
}

/// Fragments with options after the Fragment header: only the first holds the transport header.
#[test]
fn fragments_with_options_behind_their_header() {
    let Some(mut world) = world() else { return };
    let part = |from, to, offset: u16, more: bool, data: &[u8]| {
        let mut payload = vec![60, 0];
        payload.extend((offset << 3 | u16::from(more)).to_be_bytes());
        payload.extend([0, 0, 0x12, 0x34]);
        payload.extend(data);
        frame(&ipv6(from, to, 44, 64, &payload))
    };
    let first = |port| {
        let mut data = vec![UDP, 0, 1, 4, 0, 0, 0, 0];
        data.extend(udp(5000, port, &[0; 8]));
        data
    };
    let (p, s, c) = (Who::Pod, Who::Server, Who::Client);
    assert_eq!(world.egress(&part(p, s, 3, false, &[0; 8])), Reason::FragmentWithoutFirst);
    assert_eq!(world.egress(&part(p, s, 0, true, &first(53))), Reason::Allowed);
    assert_eq!(world.egress(&part(p, s, 3, false, &[0; 8])), Reason::Allowed);
    assert_eq!(world.ingress(&part(c, p, 0, true, &first(54))), Reason::Policy);
    assert_eq!(world.ingress(&part(c, p, 3, false, &[0; 8])), Reason::FragmentWithoutFirst);
    assert_eq!(world.ingress(&part(c, p, 0, true, &first(53))), Reason::Allowed);
    assert_eq!(world.ingress(&part(c, p, 3, false, &[0; 8])), Reason::Allowed);
    // A fragment inside a fragment is malformed.
    let inner = [&[UDP, 0, 0, 1, 0, 0, 0, 9][..], &udp(5000, 53, &[0; 8])].concat();
    let mut payload = vec![44, 0, 0, 1, 0, 0, 0x12, 0x35];
    payload.extend(inner);
    assert_eq!(world.egress(&frame(&ipv6(p, s, 44, 64, &payload))), Reason::Malformed);
}

/// A bridge floods frames to unknown stations; such frames are not this pod's traffic, even if the tables allow their
/// addresses.
#[test]
fn frames_for_others_are_neither_tracked_nor_told_of() {
    let Some(mut world) = world() else { return };
    for family in FAMILIES {
        world.next_pod();
        let (c, p, other) = (Who::Client, Who::Pod, Who::Friend);
        let flooded = segment(family, c, other, (4000, 80), SYN);
        assert_eq!(world.ingress(&flooded), Reason::Allowed, "as it would be for the pod");
        assert_eq!(world.egress(&segment(family, p, c, (80, 4000), SYN | ACK)), Reason::Policy);
        assert_eq!(world.ingress(&segment(family, c, other, (4000, 81), SYN)), Reason::Flooded);
        let later = family.fragment(c, other, 2, false, &[0; 8]);
        assert_eq!(world.ingress(&later), Reason::Flooded);
        // An answer to another pod is not a reply for this pod, even if all other fields match.
        assert_eq!(
            world.egress(&segment(family, p, Who::Server, (5000, 443), SYN)),
            Reason::Allowed
        );
        let answer = segment(family, Who::Server, other, (443, 5000), SYN | ACK);
        assert_eq!(world.ingress(&answer), Reason::Flooded);
        let answer = segment(family, Who::Server, p, (443, 5000), SYN | ACK);
        assert_eq!(world.ingress(&answer), Reason::Reply);
        // A pod without a source check may own any address: all flooded frames count as its traffic.
        let flags = world.host.policy.slot(endpoint_slot(IFINDEX, 0)).flags;
        let free = netpold_ebpf::layout::Endpoint {
            flags: flags & !netpold_ebpf::layout::EP_CHECK_SOURCE,
            ..world.host.policy.slot(endpoint_slot(IFINDEX, 0))
        };
        world.set_endpoint(free);
        assert_eq!(world.ingress(&segment(family, c, other, (4001, 81), SYN)), Reason::Policy);
        assert_eq!(world.ingress(&segment(family, c, other, (4001, 80), SYN)), Reason::Allowed);
        assert_eq!(world.egress(&segment(family, p, c, (80, 4001), SYN | ACK)), Reason::Reply);
        world.set_endpoint(netpold_ebpf::layout::Endpoint { flags, ..free });
    }
}
