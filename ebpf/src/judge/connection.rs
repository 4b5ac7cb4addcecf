//! Course of a packet: its direction and translation in the node's own conntrack, see [`Course`].
//!
//! For each direction of a connection, the kernel keeps one tuple, with the ends of its packets before the node
//! translates them. A packet that has the other tuple's ends reversed was not translated. A packet in the reply
//! direction goes back through the translation of its connection: it is a reply of the host that received the original
//! packets, regardless of its address.

use crate::{
    endpoint::EndpointRef,
    judge::opaque::Opaque,
    layout::{ROW_NOT_ISOLATED, untranslated},
    packet::{
        family::{Family, V4, V6},
        protocol::has_ports,
        rejection::Ends,
    },
    tables::{TableFamily as _, Tables},
};

/// One direction of a connection: `struct nf_conntrack_tuple_hash`, the same in all kernels since 2.6.20. Addresses
/// and ports in network byte order, IPv4 in the first word.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuple {
    /// List node of the kernel.
    pub list: [u64; 2],
    /// Source address.
    pub source: [u32; 4],
    /// Source port; for ICMP the identifier.
    pub source_port: u16,
    /// `AF_INET` or `AF_INET6`.
    pub family: u16,
    /// Destination address.
    pub destination: [u32; 4],
    /// Destination port; for ICMP type and code.
    pub destination_port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// 0 original direction, 1 reply direction.
    pub direction: u8,
}

const _: () = assert!(size_of::<Tuple>() == 56);

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// An IP version, for reading tuples.
pub trait Tracked: Family {
    /// [`Tuple::family`]
    const NUMBER: u16;
    /// An address of a tuple.
    fn address(words: [u32; 4]) -> Self::Address;
}

impl Tracked for V4 {
    const NUMBER: u16 = AF_INET;

    #[inline(always)]
    fn address([address, ..]: [u32; 4]) -> u32 {
        u32::from_be(address)
    }
}

impl Tracked for V6 {
    const NUMBER: u16 = AF_INET6;

    #[inline(always)]
    fn address([a, b, c, d]: [u32; 4]) -> [u64; 2] {
        [u64::from(a) | u64::from(b) << 32, u64::from(c) | u64::from(d) << 32]
    }
}
/// `IP_CT_IS_REPLY`: from here on values of `enum ip_conntrack_info` are of the reply direction.
const IS_REPLY: u32 = 3;
/// `IP_CT_NUMBER`: from here on values are of packets without a connection.
const UNTRACKED: u32 = 5;

/// Direction and translation of a packet in the node's conntrack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Course(pub u32);

impl Course {
    /// Course of a packet without a connection, which is not translated, or with one that cannot be read.
    pub const UNKNOWN: Self = Self(0);
    /// The packet has a connection.
    const KNOWN: u32 = 1 << 0;
    /// The packet is in the reply direction.
    const REPLY: u32 = 1 << 1;
    /// The packet's source is translated.
    const SOURCE: u32 = 1 << 2;
    /// The packet's destination is translated.
    const DESTINATION: u32 = 1 << 3;

    /// Course by a connection's tuples and the packet's `enum ip_conntrack_info`. Memory that does not look like two
    /// tuples gives [`Course::UNKNOWN`].
    #[must_use]
    #[inline(always)]
    pub fn new(tuples: &[Tuple; 2], info: u32) -> Self {
        let [original, reply] = tuples;
        let paired = original.direction == 0
            && reply.direction == 1
            && original.family == reply.family
            && matches!(original.family, AF_INET | AF_INET6);
        if info >= UNTRACKED || !paired {
            return Self::UNKNOWN;
        }
        let ports = has_ports(original.protocol);
        let source_changed = original.source != reply.destination
            || ports && original.source_port != reply.destination_port;
        let destination_changed = original.destination != reply.source
            || ports && original.destination_port != reply.source_port;
        let mut course = Self::KNOWN;
        if info >= IS_REPLY {
            course |= Self::REPLY;
            course |= if source_changed { Self::DESTINATION } else { 0 };
            course |= if destination_changed { Self::SOURCE } else { 0 };
        } else {
            course |= if source_changed { Self::SOURCE } else { 0 };
            course |= if destination_changed { Self::DESTINATION } else { 0 };
        }
        Self(course)
    }

    /// Whether the packet has a connection.
    #[must_use]
    #[inline(always)]
    pub const fn is_known(self) -> bool {
        self.0 & Self::KNOWN != 0
    }

    /// Whether a packet sent as a reply is one in conntrack too, or keeps its destination.
    #[must_use]
    #[inline(always)]
    pub const fn confirms_reply(self) -> bool {
        self.is_known() && (self.0 & Self::REPLY != 0 || self.0 & Self::DESTINATION == 0)
    }

    /// Ends of a packet before the node translated it. `None`: it is in the reply direction, or `tuples` are not those
    /// of its connection. `ends`: the packet's own.
    #[inline(always)]
    pub fn original_ends<F: Tracked>(
        self,
        tuples: &[Tuple; 2],
        protocol: u8,
        ends: &Ends<F::Address>,
    ) -> Option<Ends<F::Address>> {
        let [original, reply] = tuples;
        let ports = |tuple: &Tuple| {
            let ports = [tuple.source_port, tuple.destination_port].map(u16::from_be);
            if has_ports(protocol) { ports } else { [0; 2] }
        };
        let [to, from] = ports(reply);
        let is_of_packet = self.is_known()
            && self.0 & Self::REPLY == 0
            && original.protocol == protocol
            && reply.protocol == protocol
            && reply.family == F::NUMBER
            && F::same(F::address(reply.destination), ends.addresses[0])
            && F::same(F::address(reply.source), ends.addresses[1])
            && [from, to] == ends.ports;
        let addresses = [original.source, original.destination].map(F::address);
        is_of_packet.then(|| Ends { addresses, ports: ports(original) })
    }

    /// Whether a reply to an endpoint comes from a host that the endpoint may send to. `tuples`: those of its
    /// connection.
    ///
    /// In the reply direction, that host received the endpoint's packets. In the original direction, conntrack has no
    /// flow that the packet could answer, and has not translated its source. A Service's address as source is then the
    /// translation of another node, which a host can cause with a forged flow; only literal grants of the address
    /// count.
    #[inline(always)]
    pub fn is_from_allowed_host<T: Tables>(
        self,
        tables: &T,
        endpoint: EndpointRef,
        tuples: &[Tuple; 2],
    ) -> bool {
        let reply = self.0 & Self::REPLY != 0;
        let translated = self.0 & Self::SOURCE != 0;
        if !self.is_known() || reply && !translated {
            return true;
        }
        // A masqueraded packet that only looks like a reply.
        if !reply && translated {
            return false;
        }
        let row = endpoint.rows().egress();
        if row == ROW_NOT_ISOLATED {
            return true;
        }
        let Tuple { source, source_port, family, protocol, .. } = tuples[usize::from(reply)];
        let class = if family == AF_INET6 {
            V6::class(tables, V6::address(source))
        } else {
            V4::class(tables, V4::address(source))
        };
        let class = Opaque::new(tables, row.into()).class(untranslated(class));
        tables.row_allows(row, class, protocol, u16::from_be(source_port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::protocol::UDP;

    fn tuple(source: (u32, u16), destination: (u32, u16), direction: u8) -> Tuple {
        let address = |address: u32| [address.to_be(), 0, 0, 0];
        Tuple {
            source: address(source.0),
            source_port: source.1.to_be(),
            family: AF_INET,
            destination: address(destination.0),
            destination_port: destination.1.to_be(),
            protocol: UDP,
            direction,
            ..Tuple::default()
        }
    }

    #[test]
    fn answers_go_back_and_nothing_else_is_translated() {
        let (pod, service, backend, node) = ((1, 5000), (2, 80), (3, 8080), (4, 6000));
        let plain = [tuple(pod, backend, 0), tuple(backend, pod, 1)];
        let to_service = [tuple(pod, service, 0), tuple(backend, pod, 1)];
        let port = [tuple(pod, service, 0), tuple((service.0, 81), pod, 1)];
        let masqueraded = [tuple(pod, backend, 0), tuple(backend, node, 1)];
        for (tuples, there, back) in [
            (plain, (true, false), (true, false)),
            (to_service, (false, false), (true, true)),
            (port, (false, false), (true, true)),
            (masqueraded, (true, true), (true, false)),
        ] {
            for info in 0..IS_REPLY {
                let course = Course::new(&tuples, info);
                assert!(course.is_known());
                assert_eq!(
                    (course.confirms_reply(), course.0 & Course::SOURCE != 0),
                    there,
                    "{tuples:?}"
                );
            }
            for info in IS_REPLY..UNTRACKED {
                let course = Course::new(&tuples, info);
                assert_eq!(
                    (course.confirms_reply(), course.0 & Course::SOURCE != 0),
                    back,
                    "{tuples:?}"
                );
            }
            assert_eq!(Course::new(&tuples, 7), Course::UNKNOWN);
        }
    }

    /// The ends before translation are found for a packet that fits the translation of its connection, and for no other
    /// packet.
    #[test]
    fn ends_before_the_translation_are_those_of_the_packets_own_connection() {
        let (pod, service, backend, node) = ((1, 5000), (2, 80), (3, 8080), (4, 6000));
        let ends = |from: (u32, u16), to: (u32, u16)| Ends {
            addresses: [from.0, to.0],
            ports: [from.1, to.1],
        };
        let to_service = [tuple(pod, service, 0), tuple(backend, pod, 1)];
        let masqueraded = [tuple(pod, service, 0), tuple(backend, node, 1)];
        for (tuples, now) in [(to_service, ends(pod, backend)), (masqueraded, ends(node, backend))]
        {
            let before = |tuples: &[Tuple; 2], info, protocol, now: &Ends<u32>| {
                Course::new(tuples, info).original_ends::<V4>(tuples, protocol, now)
            };
            for info in 0..IS_REPLY {
                assert_eq!(before(&tuples, info, UDP, &now), Some(ends(pod, service)));
                assert_eq!(before(&tuples, info, 6, &now), None, "another protocol's");
            }
            for info in IS_REPLY..8 {
                assert_eq!(before(&tuples, info, UDP, &now), None, "a reply, or no connection");
            }
            for place in 0..2 {
                let (mut address, mut port) = (now, now);
                address.addresses[place] += 1;
                port.ports[place] += 1;
                assert_eq!(before(&tuples, 0, UDP, &address), None);
                assert_eq!(before(&tuples, 0, UDP, &port), None);
            }
            let six = tuples.map(|tuple| Tuple { family: AF_INET6, ..tuple });
            assert_eq!(before(&six, 0, UDP, &now), None);
            assert_eq!(before(&[tuples[1], tuples[0]], 0, UDP, &now), None);
        }
    }

    #[test]
    fn what_are_no_tuples_says_nothing() {
        let tuples = [tuple((1, 1), (2, 2), 0), tuple((2, 2), (1, 1), 1)];
        let [original, reply] = tuples;
        for tuples in [
            [original, original],
            [reply, original],
            [Tuple { family: 0, ..original }, Tuple { family: 0, ..reply }],
            [original, Tuple { family: AF_INET6, ..reply }],
        ] {
            assert_eq!(Course::new(&tuples, 0), Course::UNKNOWN);
        }
        assert!(!Course::UNKNOWN.confirms_reply());
    }

    /// An echo reply has its type where its request has an identifier.
    #[test]
    fn addresses_alone_tell_of_protocols_without_ports() {
        let echo = |from, to, direction| Tuple { protocol: 1, ..tuple(from, to, direction) };
        let tuples = [echo((1, 77), (2, 0x800), 0), echo((2, 77), (1, 0), 1)];
        assert_eq!(Course::new(&tuples, 3), Course(Course::KNOWN | Course::REPLY));
    }
}
