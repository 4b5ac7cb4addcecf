//! Places where a checksum may be written after the judgement of its packet.

use netpold_ebpf::judge::checksum::is_harmless;
use netpold_ebpf::packet::parse;
use netpold_testkit::frames::{Who, frame, ipv4_between, ipv6_between};

const V4: [[u8; 4]; 2] = [Who::Pod.v4(), Who::Server.v4()];
const V6: [[u8; 16]; 2] = [Who::Pod.v6(), Who::Server.v6()];

fn harmless(frame: &[u8], start: u32, field: u32) -> bool {
    is_harmless(&frame, parse::link(&frame), start, field)
}

/// For each protocol: the checksum's field, and the number of judged bytes of its message. 16 bits written anywhere in
/// these change another port, type, chunk or quoted packet; before them, an address.
#[test]
fn a_checksum_is_written_where_it_belongs_or_where_nobody_looks() {
    for (protocol, field, judged) in
        [(6, 16, 20), (17, 6, 8), (132, 8, 16), (1, 2, 60), (58, 2, 60), (47, 0, 0), (253, 0, 0)]
    {
        let payload = [0; 60];
        let options =
            [&[60, 0, 1, 4, 0, 0, 0, 0, protocol, 0, 1, 4, 0, 0, 0, 0][..], &payload].concat();
        let tagged = |mut frame: Vec<u8>| {
            frame.splice(12..12, [0x81, 0, 0, 7]);
            frame
        };
        for (frame, payload) in [
            (frame(&ipv4_between(V4, protocol, &[], 0, &payload)), 34),
            (frame(&ipv4_between(V4, protocol, &[148, 4, 0, 0], 0, &payload)), 38),
            (tagged(frame(&ipv4_between(V4, protocol, &[], 0, &payload))), 38),
            (frame(&ipv6_between(V6, protocol, 64, &payload)), 54),
            (frame(&ipv6_between(V6, 60, 64, &options)), 70),
        ] {
            for start in 0..frame.len() as u32 {
                for at in 0..frame.len() as u32 {
                    let place = start + at;
                    let own = start == payload && at == field && judged > 0;
                    let behind = start >= payload && place >= payload + judged;
                    assert_eq!(
                        harmless(&frame, start, at),
                        own || behind && judged < 60,
                        "protocol {protocol} at {payload}: from {start}, at {place}"
                    );
                }
            }
            // Offsets before the frame, and the largest numbers.
            for start in [0_u32.wrapping_sub(2), 0_u32.wrapping_sub(0xffff), 0xffff] {
                for at in [0, 2, 36, 0xffff] {
                    assert!(!harmless(&frame, start, at), "{start}, {at}");
                }
            }
        }
    }
}

#[test]
fn what_is_summed_up_is_a_whole_packet_of_ip() {
    let part = frame(&ipv4_between(V4, 17, &[], 0x2000, &[0; 40]));
    let later = frame(&ipv4_between(V4, 17, &[], 5, &[0; 40]));
    let part6 =
        frame(&ipv6_between(V6, 44, 64, &[&[17, 0, 0, 1, 0, 0, 0, 1][..], &[0; 40]].concat()));
    let arp = [&[0; 12][..], &[8, 6], &[0; 46]].concat();
    let mut tags = frame(&ipv4_between(V4, 17, &[], 0, &[0; 40]));
    (0..3).for_each(|_| _ = tags.splice(12..12, [0x81, 0, 0, 0]));
    for frame in [&part, &later, &part6, &arp, &tags] {
        for start in 0..60 {
            for at in 0..60 {
                assert!(!harmless(frame, start, at), "{start}, {at}: {frame:02x?}");
            }
        }
    }
}
