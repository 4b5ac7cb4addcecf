//! Services with a resolver's address, or with addresses near it.

use std::net::{IpAddr, Ipv4Addr};

use netpold_core::budget::NAMESPACE_FRONTENDS;
use netpold_core::model::{Change, Key, Service};
use netpold_testkit::names::{answer, query, wire};
use netpold_testkit::objects::{self, ip};

use super::net::{API, BACKEND, FOUND, Net, found};

/// Whether an answer of the resolver opens its address.
fn opens(net: &Net, id: u16) -> bool {
    net.send(1, BACKEND, 5000, &query(id, &wire(API)));
    net.deliver(1, BACKEND, 5000, &answer(id, &wire(API), &found(API, 300)));
    net.reaches(1, FOUND, 443)
}

/// Packets to an external address of a Service may be answered by any server.
#[test]
fn an_external_address_of_a_service_is_no_resolver() {
    let mut net = Net::of_api();
    let claimed = Service {
        addresses: vec![ip(BACKEND), ip("10.96.0.99")],
        ..objects::service(("a", "mine"), &["10.96.0.99"], &[("", 53, None)])
    };
    net.world.apply([Change::Service(claimed)]);
    assert!(!opens(&net, 1));
    net.world.apply([Change::ServiceGone(Key::new("a", "mine"))]);
    assert!(opens(&net, 2));
}

/// A Service with too many addresses for entries of their own ends trust in the resolvers among them, not in those near
/// them.
#[test]
fn a_service_with_addresses_near_a_resolver_leaves_it_trusted() {
    let mut net = Net::of_api();
    let claimed = |with_resolver: bool| {
        let service = objects::service(("a", "mine"), &["10.96.0.99"], &[("", 53, None)]);
        let IpAddr::V4(resolver) = ip(BACKEND) else { unreachable!() };
        let near = (1..=NAMESPACE_FRONTENDS as u32 + 1)
            .map(|n| IpAddr::V4(Ipv4Addr::from_bits(resolver.to_bits() ^ n)));
        let mut addresses: Vec<IpAddr> = near.collect();
        addresses.extend(service.cluster.iter().copied());
        addresses.extend(with_resolver.then(|| ip(BACKEND)));
        addresses.sort_unstable();
        addresses.dedup();
        Change::Service(Service { addresses, ..service })
    };
    net.world.apply([claimed(true)]);
    assert!(!opens(&net, 1));
    net.world.apply([claimed(false)]);
    assert!(opens(&net, 2));
}
