//! A pod that may reach backends of a Service, and its packets.

use netpold_ebpf::{
    judge::{
        connection::Course,
        hook::PacketHook,
        post_nat,
        proof::{Exit, Origin},
    },
    layout::{
        CLASS_TRANSLATED, Endpoint, PORTS_EVERY, PORTS_FIRST_BITMAP, PORTS_ONE, PortSet, Row,
        TRIE_POINTER, endpoint_slot, mark,
    },
    packet::{bytes::Bytes, parse},
    reason::Reason,
};
use netpold_testkit::frames::{self, UDP, ipv4_between};
pub(crate) use netpold_testkit::frames::{ACK, SYN, frame4, tcp4 as tcp};
use netpold_testkit::node::NodeTables;
use netpold_testkit::one_pod::Direction;

pub(crate) const HTTP: u32 = 80;
pub(crate) const HTTPS: u32 = 443;

pub(crate) const POD_IFINDEX: u32 = 5;
pub(crate) const OTHER_IFINDEX: u32 = 6;
pub(crate) const UPLINK: u32 = 2;
pub(crate) const POD: [u8; 4] = [10, 0, 0, 2];
pub(crate) const NODE: [u8; 4] = [10, 0, 3, 1];
pub(crate) const SERVICE: [u8; 4] = [10, 96, 0, 1];
pub(crate) const ALLOWED: [u8; 4] = [10, 0, 1, 7];
pub(crate) const OPEN: [u8; 4] = [10, 0, 2, 7];
pub(crate) const DENIED: [u8; 4] = [10, 0, 9, 7];
pub(crate) const CLIENT: [u8; 4] = [192, 0, 2, 9];
/// Class of the Service's address.
pub(crate) const SERVICE_CLASS: u32 = 4;

/// A pod that may reach 10.0.1.0/24 at port 8080 of TCP and UDP, all of 10.0.2.0/24, hence the Service at port 80, and
/// its node. Packets to the Service and the node may be translated; untranslated ones may reach the Service's address
/// at port 443.
pub(crate) fn tables() -> NodeTables {
    let mut tables = NodeTables::new(64);
    let mut third = [0; 256];
    third[1] = 1;
    third[2] = 2;
    third[3] = 3 | CLASS_TRANSLATED;
    tables.policy.trie_root[0x0a00] = TRIE_POINTER;
    tables.policy.trie_root[0x0a60] = SERVICE_CLASS | CLASS_TRANSLATED;
    tables.policy.trie_blocks.push(third);
    let mut bitmap = [0; 1024];
    bitmap[8080 / 64] = 1 << (8080 % 64);
    tables.policy.bitmaps.push(bitmap);
    let set = |ports| PortSet { tcp: ports, udp: ports, ..PortSet::default() }.word();
    let (app, http) = (set(PORTS_FIRST_BITMAP), set(PORTS_ONE | HTTP));
    let literally = set(PORTS_ONE | HTTPS);
    let mut reaches = Row::EMPTY;
    reaches.first[..6].copy_from_slice(&[0, app, PORTS_EVERY, PORTS_EVERY, http, literally]);
    tables.policy.rows.extend([Row::EMPTY, reaches]);
    let mut pod = Endpoint {
        ifindex: POD_IFINDEX,
        id: 1,
        rows: Endpoint::pack_rows(0, 2),
        flags: 1,
        ..Endpoint::default()
    };
    pod.addr4[0] = u32::from_be_bytes(POD);
    tables.set_endpoint(pod);
    tables
}

/// A fragment of a datagram that the pod sends.
pub(crate) fn fragment(to: [u8; 4], part: u16, payload: &[u8]) -> Vec<u8> {
    frames::frame(&ipv4_between([POD, to], UDP, &[], part, payload))
}

pub(crate) fn egress(tables: &NodeTables, frame: &[u8]) -> Reason {
    let hook = PacketHook { ifindex: POD_IFINDEX, ingress_ifindex: POD_IFINDEX };
    tables.judge(Direction::Egress, hook, frame).reason()
}

pub(crate) fn ingress(tables: &NodeTables, frame: &[u8]) -> Reason {
    let hook = PacketHook { ifindex: POD_IFINDEX, ingress_ifindex: UPLINK };
    tables.judge(Direction::Ingress, hook, frame).reason()
}

/// Proof and mark that the pod's program leaves on a packet to be judged again.
pub(crate) fn marked(tables: &NodeTables, ifindex: u32) -> Exit {
    let tc_index = mark(endpoint_slot(POD_IFINDEX, 0), 1);
    let mark = tables.flows.settings.proof;
    Exit { ifindex, ingress_ifindex: POD_IFINDEX, mark, tc_index, ..Exit::default() }
}

/// Verdict at an exit; `answer`: the course of a packet marked as a reply.
pub(crate) fn leave<B: Bytes>(
    tables: &NodeTables,
    packet: &B,
    exit: Exit,
    answer: Option<Course>,
    lives: bool,
) -> Reason {
    let (origin, link) = (Origin::at_exit(tables, &exit), parse::link(packet));
    post_nat::judge(packet, link, tables, origin, exit.ifindex, answer, || lives).reason()
}

/// Verdict at an exit on a packet without course, while the agent lives; reading it in place must agree or defer.
pub(crate) fn leave_by(tables: &NodeTables, frame: &[u8], exit: Exit) -> Reason {
    let judged = leave(tables, &frame, exit, None, true);
    for linear in 0..=frame.len() {
        let in_place = in_place(tables, Linear { frame, linear }, exit);
        assert!(in_place == judged || in_place == Reason::Deferred, "{linear}: {in_place:?}");
    }
    judged
}

pub(crate) fn in_place(tables: &NodeTables, packet: Linear<'_>, exit: Exit) -> Reason {
    leave(tables, &packet, exit, None, true)
}

/// A packet in the kernel: its first `linear` bytes can be read in place.
pub(crate) struct Linear<'a> {
    pub(crate) frame: &'a [u8],
    pub(crate) linear: usize,
}

impl<'a> Bytes for Linear<'a> {
    const PLAIN: bool = true;
    type Window = &'a [u8];

    fn length(&self) -> u32 {
        self.frame.length()
    }

    fn window<const N: usize>(&self, offset: u32) -> Option<&'a [u8]> {
        let start = offset as usize;
        self.frame[..self.linear].get(start..start + N)
    }
}

pub(crate) fn behind(tables: &NodeTables, frame: &[u8], ifindex: u32) -> Reason {
    leave_by(tables, frame, marked(tables, ifindex))
}
