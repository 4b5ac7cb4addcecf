//! A hundred thousand addresses of a node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netpold_testkit::names::{Record, answer, query, wire};

use super::net::{DNS, Net, accept, domain, pointer};

const ADDRESSES: u32 = 100_000;
/// Records of an answer.
const EACH: u32 = 50;

fn address(number: u32) -> IpAddr {
    if number.is_multiple_of(2) {
        Ipv4Addr::from_bits(0xc612_0000 + number / 2).into()
    } else {
        Ipv6Addr::from_bits((0x2001_0db8 << 96) + u128::from(number)).into()
    }
}

/// Of all addresses, each of one of two pods, at most one in 10,000 finds no place.
#[test]
fn a_hundred_thousand_addresses_are_open() {
    let net = Net::new(vec![accept(vec![domain("*.room.example")], None)]);
    let pod = |number: u32| 1 + number / EACH % 2;
    for first in (0..ADDRESSES).step_by(EACH as usize) {
        let name = wire(&format!("n{first}.room.example"));
        let record = |number| Record::address(pointer(), address(number), 3600);
        let records: Vec<Record> = (first..first + EACH).map(record).collect();
        let pod = pod(first);
        assert!(!net.send(pod, DNS, 5000, &query(7, &name)).is_drop());
        assert!(!net.deliver(pod, DNS, 5000, &answer(7, &name, &records)).is_drop());
    }
    let reaches = |pod, number| net.reaches(pod, &address(number).to_string(), 443);
    let closed = (0..ADDRESSES).filter(|number| !reaches(pod(*number), *number)).count();
    println!("{closed} of {ADDRESSES} addresses are closed");
    assert!(closed <= 10, "{closed}");
    let others = (0..ADDRESSES).step_by(100).filter(|number| reaches(3 - pod(*number), *number));
    assert_eq!(others.count(), 0, "another pod");
}
