//! The tables of one pod in plain memory, for the kernel tests and for fuzzing.

use netpold_ebpf::{
    host::HostTables,
    layout::{EP_CHECK_SOURCE, Endpoint, PORT_SET_ALL, PORTS_ALL, PortSet, TRIE_POINTER},
    verdict::{Egress, Hook, Ingress, Verdict, decide},
};

use super::packets::Who;

/// Loopback, which every network namespace has.
pub(crate) const IFINDEX: u32 = 1;
pub(crate) const INGRESS_ROW: u32 = 2;
pub(crate) const EGRESS_ROW: u32 = 3;
/// A row that isolates and allows nothing.
pub(crate) const DENY_ROW: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Ingress,
    Egress,
}

/// Judges a frame by the host's code.
pub(crate) fn judge(
    tables: &HostTables,
    direction: Direction,
    came_from: u32,
    frame: &[u8],
) -> Verdict {
    let hook = Hook { ifindex: IFINDEX, ingress_ifindex: came_from };
    match direction {
        Direction::Ingress => decide::<Ingress, _, _>(&frame, tables, hook),
        Direction::Egress => decide::<Egress, _, _>(&frame, tables, hook),
    }
}

/// The pod admits the client to TCP 80 and UDP 53, the friend to everything; it may reach the
/// server on TCP 443, UDP 53 and by other protocols.
pub(crate) fn tables(buckets: u32) -> HostTables {
    let mut tables = HostTables::new(buckets);
    let mut block = [0; 256];
    for who in [Who::Client, Who::Server, Who::Friend] {
        block[usize::from(who.number())] = u32::from(who.number());
        let mut prefix = who.v6();
        prefix[15] = 0;
        tables.cidrs6.push((prefix, 64, who.number().into()));
    }
    tables.hosts6.insert(Who::Client.v6(), Who::Client.number().into());
    tables.trie_root[0x0a00] = TRIE_POINTER;
    tables.trie_blocks.push(block);

    let mut http = [0; 1024];
    http[80 >> 6] = 1 << (80 & 63);
    let mut https = [0; 1024];
    https[443 >> 6] = 1 << (443 & 63);
    let mut dns = [0; 1024];
    dns[0] = 1 << 53;
    tables.bitmaps.extend([http, https, dns]);
    tables.port_sets.push(PortSet { tcp: 2, udp: 4, ..PortSet::default() });
    tables.port_sets.push(PortSet { tcp: 3, udp: 4, sctp: PORTS_ALL, other: PORTS_ALL });

    let mut admits = [0; 256];
    admits[usize::from(Who::Client.number())] = 2;
    admits[usize::from(Who::Friend.number())] = PORT_SET_ALL;
    let mut reaches = [0; 256];
    reaches[usize::from(Who::Server.number())] = 3;
    tables.row_blocks.extend([admits, reaches]);
    for block in [0, 1, 2] {
        let mut row = [0; 256];
        row[0] = block;
        tables.rows.push(row);
    }

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
