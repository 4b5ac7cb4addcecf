//! The kernel's maps in plain memory: what tests and `explain` judge packets with.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};

use ipnet::Ipv6Net;
use netpold_ebpf::layout::{
    ClassId, ENDPOINT_PROBES, ENDPOINT_SLOTS, Endpoint, PORT_SET_ALL, PORT_SET_NONE, PORTS_ALL,
    PORTS_NONE, PortBitmap, PortSet, ROW_NOT_ISOLATED, Row, RowBlock, TrieBlock, endpoint_slot,
};
use netpold_ebpf::policy::{PolicyTables, class4, class6, row_allows};

use crate::model::Direction;
use crate::ops::{Apply, Op};

/// Why an operation was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The operation changes an element that was never filled.
    #[error("{table} {index} was never filled")]
    Missing {
        /// Name of the table.
        table: &'static str,
        /// Element number.
        index: u32,
    },
    /// The operation fills an endpoint slot that is in use.
    #[error("endpoint slot {0} is in use")]
    SlotInUse(u32),
}

/// All tables of one generation.
#[derive(Clone, Debug)]
pub struct MemoryTables {
    root: Vec<u32>,
    trie_blocks: HashMap<u32, Box<TrieBlock>>,
    hosts6: BTreeMap<Ipv6Addr, ClassId>,
    cidrs6: BTreeMap<Ipv6Net, ClassId>,
    has_cidr6: bool,
    rows: HashMap<u32, Box<Row>>,
    row_blocks: HashMap<u32, Box<RowBlock>>,
    port_sets: HashMap<u32, PortSet>,
    bitmaps: HashMap<u32, Box<PortBitmap>>,
    endpoints: BTreeMap<u32, Endpoint>,
}

impl Default for MemoryTables {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryTables {
    /// Empty tables: everything zero, the reserved port sets filled.
    #[must_use]
    pub fn new() -> Self {
        let all = PortSet { tcp: PORTS_ALL, udp: PORTS_ALL, sctp: PORTS_ALL, other: PORTS_ALL };
        let none =
            PortSet { tcp: PORTS_NONE, udp: PORTS_NONE, sctp: PORTS_NONE, other: PORTS_NONE };
        Self {
            root: vec![0; 65_536],
            trie_blocks: HashMap::new(),
            hosts6: BTreeMap::new(),
            cidrs6: BTreeMap::new(),
            has_cidr6: false,
            rows: HashMap::new(),
            row_blocks: HashMap::new(),
            port_sets: HashMap::from([(PORT_SET_NONE, none), (PORT_SET_ALL, all)]),
            bitmaps: HashMap::new(),
            endpoints: BTreeMap::new(),
        }
    }

    /// The endpoint of an interface, found as the kernel program finds it.
    #[must_use]
    pub fn endpoint(&self, ifindex: u32) -> Option<&Endpoint> {
        (0..ENDPOINT_PROBES)
            .filter_map(|probe| self.endpoints.get(&endpoint_slot(ifindex, probe)))
            .find(|endpoint| endpoint.ifindex == ifindex)
    }

    /// All endpoints by slot.
    #[must_use]
    pub fn endpoints(&self) -> &BTreeMap<u32, Endpoint> {
        &self.endpoints
    }

    /// Class of an address of either family.
    #[must_use]
    pub fn class(&self, address: IpAddr) -> ClassId {
        match address {
            IpAddr::V4(v4) => class4(self, v4.to_bits()),
            IpAddr::V6(v6) => class6(self, &v6.octets()),
        }
    }

    /// The stateless judgement of a packet that an interface's pod receives or sends: `None` if the
    /// interface has no endpoint. Own node and self traffic as ingress, which the packet path passes
    /// before it looks here, are not considered.
    #[must_use]
    pub fn allows(
        &self,
        ifindex: u32,
        direction: Direction,
        remote: IpAddr,
        protocol: u8,
        port: u16,
    ) -> Option<bool> {
        let rows = self.endpoint(ifindex)?.rows;
        let row = match direction {
            Direction::Ingress => rows as u32,
            Direction::Egress => (rows >> 32) as u32,
        };
        Some(row == ROW_NOT_ISOLATED || row_allows(self, row, self.class(remote), protocol, port))
    }

    /// Fills an endpoint slot, which must be free.
    fn fill_slot(&mut self, slot: u32, endpoint: Endpoint) -> Result<(), MemoryError> {
        if slot >= ENDPOINT_SLOTS || self.endpoints.contains_key(&slot) {
            return Err(MemoryError::SlotInUse(slot));
        }
        self.endpoints.insert(slot, endpoint);
        Ok(())
    }

    /// Changes an endpoint in place.
    fn slot(&mut self, slot: u32) -> Result<&mut Endpoint, MemoryError> {
        self.endpoints.get_mut(&slot).ok_or(MemoryError::Missing { table: "endpoint", index: slot })
    }
}

/// Writes one word of an element that must have been filled.
fn word(
    table: &'static str,
    map: &mut HashMap<u32, Box<[u32; 256]>>,
    index: u32,
    column: u8,
    value: u32,
) -> Result<(), MemoryError> {
    let element = map.get_mut(&index).ok_or(MemoryError::Missing { table, index })?;
    element[usize::from(column)] = value;
    Ok(())
}

impl Apply for MemoryTables {
    type Error = MemoryError;

    fn apply(&mut self, op: &Op) -> Result<(), MemoryError> {
        match op {
            Op::Bitmap(id, bitmap) => drop(self.bitmaps.insert(*id, bitmap.clone())),
            Op::PortSet(id, set) => drop(self.port_sets.insert(*id, *set)),
            Op::RowBlock(id, block) => drop(self.row_blocks.insert(*id, block.clone())),
            Op::RowBlockWord(id, column, set) => {
                return word("row block", &mut self.row_blocks, *id, *column, *set);
            }
            Op::Row(id, row) => drop(self.rows.insert(*id, row.clone())),
            Op::RowWord(id, index, block) => {
                return word("row", &mut self.rows, *id, *index, *block);
            }
            Op::TrieBlock(id, block) => drop(self.trie_blocks.insert(*id, block.clone())),
            Op::TrieWord(id, index, value) => {
                return word("trie block", &mut self.trie_blocks, *id, *index, *value);
            }
            Op::TrieRootWord(index, value) => self.root[usize::from(*index)] = *value,
            Op::Host6(address, class) => drop(self.hosts6.insert(*address, *class)),
            Op::Host6Gone(address) => drop(self.hosts6.remove(address)),
            Op::Cidr6(prefix, class) => drop(self.cidrs6.insert(*prefix, *class)),
            Op::Cidr6Gone(prefix) => drop(self.cidrs6.remove(prefix)),
            Op::HasCidr6(has) => self.has_cidr6 = *has,
            Op::Endpoint(slot, endpoint) => return self.fill_slot(*slot, **endpoint),
            Op::EndpointRows(slot, rows) => self.slot(*slot)?.rows = *rows,
            Op::EndpointAddrs(slot, endpoint) => *self.slot(*slot)? = **endpoint,
            Op::EndpointGone(slot) => drop(self.endpoints.remove(slot)),
        }
        Ok(())
    }
}

impl PolicyTables for MemoryTables {
    fn trie_root(&self, index: u16) -> u32 {
        self.root[usize::from(index)]
    }

    fn trie_block(&self, block: u32, index: u8) -> u32 {
        self.trie_blocks.get(&block).map_or(0, |words| words[usize::from(index)])
    }

    fn host6(&self, address: &[u8; 16]) -> Option<ClassId> {
        self.hosts6.get(&Ipv6Addr::from(*address)).copied()
    }

    fn cidr6(&self, address: &[u8; 16]) -> Option<ClassId> {
        if !self.has_cidr6 {
            return None;
        }
        let address = Ipv6Addr::from(*address);
        (0..=128u8).rev().find_map(|length| {
            let prefix = Ipv6Net::new(address, length).ok()?.trunc();
            self.cidrs6.get(&prefix).copied()
        })
    }

    fn row(&self, row: u32, index: u8) -> u32 {
        self.rows.get(&row).map_or(0, |words| words[usize::from(index)])
    }

    fn row_block(&self, block: u32, index: u8) -> u32 {
        self.row_blocks.get(&block).map_or(0, |words| words[usize::from(index)])
    }

    fn port_set(&self, set: u32) -> PortSet {
        self.port_sets.get(&set).copied().unwrap_or_default()
    }

    fn bitmap(&self, bitmap: u32, word: u16) -> u64 {
        self.bitmaps.get(&bitmap).map_or(0, |words| words[usize::from(word)])
    }
}
