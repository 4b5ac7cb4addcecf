//! Tables of one pod in memory, for the kernel tests and for fuzzing.

use ipnet::Ipv6Net;
pub use netpold_core::model::Direction;
use netpold_ebpf::{
    judge::hook::PacketHook,
    layout::{
        EP_CHECK_SOURCE, Endpoint, PORTS_ALL, PORTS_EVERY, PORTS_ONE, PortSet, Row, TRIE_POINTER,
    },
    reason::Reason,
    verdict::PacketVerdict,
};

use crate::frames::Who;
use crate::node::NodeTables;

const HTTPS: usize = 443;
const HTTP: u32 = 80;
const DNS: u32 = 53;

/// Loopback, which exists in every network namespace.
pub const IFINDEX: u32 = 1;
/// The pod's row for ingress.
pub const INGRESS_ROW: u32 = 2;
/// The pod's row for egress.
pub const EGRESS_ROW: u32 = 3;
/// Interface from which packets to the pod arrive.
pub const UPLINK: u32 = 2;
/// A row that isolates and allows nothing.
pub const DENY_ROW: u32 = 1;

/// Verdict about a frame by the code compiled for the host.
pub fn judge(
    tables: &NodeTables,
    direction: Direction,
    came_from: u32,
    frame: &[u8],
) -> PacketVerdict {
    let hook = PacketHook { ifindex: IFINDEX, ingress_ifindex: came_from };
    tables.judge(direction, hook, frame)
}

/// Reason of the verdict about a frame from the uplink to the pod.
pub fn ingress(tables: &NodeTables, frame: &[u8]) -> Reason {
    judge(tables, Direction::Ingress, UPLINK, frame).reason()
}

/// Reason of the verdict about a frame from the pod.
pub fn egress(tables: &NodeTables, frame: &[u8]) -> Reason {
    judge(tables, Direction::Egress, IFINDEX, frame).reason()
}

/// [`tables`] for 64 flows, with these rows.
#[must_use]
pub fn with_rows(ingress: u32, egress: u32) -> NodeTables {
    let mut tables = tables(16);
    set_rows(&mut tables, ingress, egress);
    tables
}

/// Sets the pod's rows; 0 where it is not isolated.
pub fn set_rows(tables: &mut NodeTables, ingress: u32, egress: u32) {
    tables.endpoint_mut(IFINDEX).rows = Endpoint::pack_rows(ingress, egress);
    tables.changed();
}

/// Class of a peer: below 256 in the row itself, for the server in a row block.
fn class(who: Who) -> u32 {
    let number = u32::from(who.number());
    if who == Who::Server { number + 0x300 } else { number }
}

/// Tables for a pod that allows the client on TCP 80 and UDP 53 and the friend on everything, and that may reach the
/// server on TCP 443, UDP 53 and by other protocols.
#[must_use]
pub fn tables(buckets: u32) -> NodeTables {
    let mut tables = NodeTables::new(buckets);
    let mut block = [0; 256];
    for who in [Who::Client, Who::Server, Who::Friend] {
        block[usize::from(who.number())] = class(who);
        let net = Ipv6Net::new_assert(who.v6().into(), 64);
        tables.policy.set_block6(net, class(who));
    }
    tables.policy.hosts6.insert(Who::Client.v6().into(), class(Who::Client));
    tables.policy.trie_root[0x0a00] = TRIE_POINTER;
    tables.policy.trie_blocks.push(block);

    let mut https = [0; 1024];
    https[HTTPS >> 6] = 1 << (HTTPS & 63);
    let mut dns = [0; 1024];
    dns[0] = 1 << 53;
    tables.policy.bitmaps.extend([https, dns]);

    let mut admits = Row::EMPTY;
    let http = PortSet { tcp: PORTS_ONE | HTTP, udp: 3, ..PortSet::default() };
    admits.first[class(Who::Client) as usize] = http.word();
    admits.first[class(Who::Friend) as usize] = PORTS_EVERY;
    let server = PortSet { tcp: 2, udp: PORTS_ONE | DNS, sctp: PORTS_ALL, other: PORTS_ALL };
    let mut block = [0; 256];
    block[class(Who::Server) as usize & 255] = server.word();
    tables.policy.row_blocks.push(block);
    let mut reaches = Row::EMPTY;
    reaches.blocks[class(Who::Server) as usize >> 8] = 1;
    tables.policy.rows.extend([Row::EMPTY, admits, reaches]);

    let mut endpoint = Endpoint {
        ifindex: IFINDEX,
        id: 7,
        rows: Endpoint::pack_rows(INGRESS_ROW, EGRESS_ROW),
        flags: EP_CHECK_SOURCE | 0x11,
        ..Endpoint::default()
    };
    endpoint.addr4[0] = u32::from_be_bytes(Who::Pod.v4());
    endpoint.addr6[0] = Who::Pod.v6();
    tables.set_endpoint(endpoint);
    tables
}
