//! Doubts about ports: there are none at first, regardless of the time since the boot; each pod and port has its own,
//! and none is lost.

use std::sync::atomic::Ordering;

use netpold_ebpf::layout::{DOUBT_BLOCKS, SHARES_NAMES};
use netpold_ebpf::names::doubt::{doubt_port, is_port_doubted};
use netpold_ebpf::packet::protocol::{TCP_ACK, TCP_PSH};
use netpold_ebpf::tables::Tables as _;
use netpold_testkit::flows::HZ;
use netpold_testkit::node::NodeTables;
use netpold_testkit::streams::DnsConnection;

use super::connections::{PORT, connection, good, questions};
use super::net::{FOUND, Net};

const fn asker(endpoint: u32, port: u16) -> u64 {
    (endpoint as u64) << 32 | port as u64
}

/// Times at which jiffies, or parts of them, are 0.
const TIMES: [u32; 6] = [0, 1, 29 * HZ, 1 << 26, (1 << 26) + 29 * HZ, u32::MAX - HZ];

#[test]
fn nothing_is_doubted_before_the_first_doubt() {
    for now in TIMES {
        let net = Net::of_api();
        net.flows.now.store(now, Ordering::Release);
        let it = net.asked();
        assert!(net.passes(&it.answers(0, &good())) && net.connects(FOUND), "at {now}");
    }
}

#[test]
fn a_doubt_lasts_for_half_a_minute_at_any_time() {
    for now in TIMES {
        for all in [false, true] {
            let net = Net::of_api();
            let tables = NodeTables { policy: &net.world.tables, flows: &net.flows };
            net.flows.now.store(now, Ordering::Release);
            if all {
                tables.doubt_endpoint(1);
            } else {
                doubt_port(&tables, asker(1, PORT));
            }
            // A host's clock has 32 bits.
            for (seconds, is_doubted) in [(0, true), (29, true), (46, false), (3600, false)] {
                let Some(later) = now.checked_add(seconds * HZ) else { continue };
                net.flows.now.store(later, Ordering::Release);
                assert_eq!(net.is_doubted(1, PORT), is_doubted, "{now} and {seconds} s, {all}");
            }
            assert!(!net.is_doubted(2, PORT), "another pod");
        }
    }
}

/// A pod that uses every port casts doubt on no port of another pod, for as many pods as there are blocks.
#[test]
fn a_pod_that_uses_every_port_ends_its_own_readings_alone() {
    let net = Net::of_api();
    let tables = NodeTables { policy: &net.world.tables, flows: &net.flows };
    for endpoint in [2, DOUBT_BLOCKS] {
        (0..=u16::MAX).for_each(|port| doubt_port(&tables, asker(endpoint, port)));
    }
    let of = |endpoint| (0..=u16::MAX).filter(|port| net.is_doubted(endpoint, *port)).count();
    assert_eq!([1, 2, 3, DOUBT_BLOCKS].map(of), [0, 1 << 16, 0, 1 << 16]);
    let it = net.asked();
    assert!(net.passes(&it.answers(0, &good())) && net.connects(FOUND));
}

/// Packets of neighbouring ports, on several processors, change one word.
#[test]
fn no_doubt_is_lost_to_another_one() {
    let net = Net::of_api();
    for base in (0..4_096_u16).step_by(16) {
        net.flows.later(7 * HZ / 10);
        std::thread::scope(|scope| {
            for first in 0..4 {
                let net = &net;
                scope.spawn(move || {
                    let tables = NodeTables { policy: &net.world.tables, flows: &net.flows };
                    (0..4).for_each(|n| doubt_port(&tables, asker(1, base + first + 4 * n)));
                });
            }
        });
        let tables = NodeTables { policy: &net.world.tables, flows: &net.flows };
        let is_doubted = |port: &u16| is_port_doubted(&tables, asker(1, *port));
        assert_eq!((base..base + 16).filter(is_doubted).count(), 16, "from port {base}");
    }
}

/// While flow tables grow, programs of two generations run at each hook, and have the same tables of names. The second
/// programs expect that those in front have read a packet; a segment that the pod sends twice ends the reading.
#[test]
fn a_packet_that_two_generations_read_ends_no_reading() {
    for sends_twice in [false, true] {
        let mut net = Net::of_api();
        let it = connection();
        let packets = it.handshake().into_iter().chain([it.asks(0, &questions())]);
        let mut packets: Vec<_> = packets.collect();
        if sends_twice {
            packets.push(it.asks(0, &questions()));
        }
        packets.extend([it.answers(0, &good()[..20]), it.answers(20, &good()[20..])]);
        for packet in &packets {
            for watch in [0, SHARES_NAMES] {
                net.flows.settings.handover = watch;
                assert!(net.passes(packet));
            }
        }
        assert_eq!(net.connects(FOUND), !sends_twice);
    }
}

/// The programs in front only watched such a packet, just before they began to read. The packet must not open another
/// connection of the resolver.
#[test]
fn a_packet_that_those_behind_read_twice_is_the_same_one() {
    const URG: u8 = 0x20;
    let same = [("the same", TCP_ACK, 0), ("pushed", TCP_ACK | TCP_PSH, 0)];
    let others = [
        ("acknowledges more", TCP_ACK, 1),
        ("acknowledges less", TCP_ACK, u32::MAX),
        ("without ACK", TCP_PSH, 0),
        ("urgent", TCP_ACK | URG, 0),
    ];
    let cases = same.map(|case| (case, true)).into_iter().chain(others.map(|case| (case, false)));
    for ((case, flags, further), is_same) in cases {
        let mut net = Net::of_api();
        let it = connection();
        assert!(it.handshake().iter().all(|packet| net.passes(packet)));
        assert!(net.passes(&it.asks(0, &questions())));
        net.flows.settings.handover = SHARES_NAMES;
        let again = DnsConnection { server: it.server.wrapping_add(further), ..it };
        assert!(net.passes(&again.sent(flags, 1, &questions())));
        assert!(net.passes(&it.answers(0, &good())));
        assert_eq!(net.connects(FOUND), is_same, "{case}");
    }
}
