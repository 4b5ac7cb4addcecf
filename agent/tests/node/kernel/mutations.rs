//! Randomly mutated packets: the program in the kernel and the host's code agree.

use netpold_testkit::frames::{
    ACK, FAMILIES, IpVersion, SYN, TCP, UDP, Who, frame, icmp, ip, ipv6, tcp, udp, vlan,
};
use netpold_testkit::random::Random;

use super::{world, world::Direction};

fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for family in FAMILIES {
        for (from, to) in [
            (Who::Client, Who::Pod),
            (Who::Pod, Who::Client),
            (Who::Pod, Who::Server),
            (Who::Server, Who::Pod),
        ] {
            let question = ip(family, from, to, UDP, &udp(5000, 53, b"question"));
            let error = icmp(family.unreachable(), 3, [0; 4], &question);
            seeds.push(frame(&ip(family, to, from, family.icmp(), &error)));
            seeds.push(frame(&question));
            seeds.push(frame(&ip(family, from, to, TCP, &tcp(4000, 80, SYN))));
            seeds.push(frame(&ip(family, from, to, TCP, &tcp(80, 4000, ACK))));
            seeds.push(vlan(&[0x8100], &frame(&ip(family, from, to, TCP, &tcp(443, 4000, ACK)))));
            seeds.push(family.fragment(from, to, 0, true, &udp(5000, 53, &[0; 8])));
            seeds.push(family.fragment(from, to, 2, false, &[0; 8]));
            if family == IpVersion::V6 {
                let mut data = vec![TCP, 0, 1, 4, 0, 0, 0, 0];
                data.extend(tcp(4000, 80, SYN));
                seeds.push(frame(&ipv6(from, to, 0, 64, &data)));
            }
        }
    }
    seeds
}

#[test]
fn kernel_and_host_agree_on_mutated_packets() {
    let Some(mut world) = world() else { return };
    let seeds = seeds();
    let mut random = Random(0x5eed);
    let mut passed = 0;
    for _ in 0..6000 {
        let mut packet = seeds[random.below(seeds.len())].clone();
        for _ in 0..random.below(4) {
            let at = 12 + random.below(packet.len() - 12);
            packet[at] = random.below(256) as u8;
        }
        if random.below(8) == 0 {
            packet.truncate(15 + random.below(packet.len() - 14));
        }
        // The test call itself rejects a frame shorter than an IP header.
        let least = match packet[12..14] {
            [0x08, 0x00] => 34,
            [0x86, 0xdd] => 54,
            _ => 15,
        };
        packet.resize(packet.len().max(least), 0);
        let direction = if random.below(2) == 0 { Direction::Ingress } else { Direction::Egress };
        let came_from = [0, 1, 2, 2, 2][random.below(5)];
        passed += usize::from(!world.judge(direction, came_from, &packet).is_drop());
    }
    println!("{passed} of 6000 passed");
    assert!((600..5400).contains(&passed), "the packets say little: {passed} of 6000 passed");
}
