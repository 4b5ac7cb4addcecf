//! The kernel's policy tables in memory: the single implementation with which tests, fuzz targets and benchmarks judge
//! packets.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::ops::{Index, IndexMut};

use ipnet::Ipv6Net;
use netpold_core::model::{Direction, DomainName};
use netpold_core::ops::{Op, TableWriter};
use netpold_ebpf::endpoint::Rows;
use netpold_ebpf::layout::{
    ClassId, ENDPOINT_PROBES, ENDPOINT_SLOTS, Endpoint, PortBitmap, PortWord, ROW_NOT_ISOLATED,
    Row, RowBlock, TrieBlock, endpoint_slot, untranslated,
};
use netpold_ebpf::tables::policy::{PolicyTables, class4, class6, row_allows};
use prefix_trie::PrefixMap;

/// Reason for a refused operation.
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

/// A table in which only filled elements exist.
#[derive(Clone, Debug)]
pub struct Elements<T> {
    name: &'static str,
    filled: Vec<Option<Box<T>>>,
}

impl<T> Elements<T> {
    fn new(name: &'static str) -> Self {
        Self { name, filled: Vec::new() }
    }

    fn get(&self, index: u32) -> Option<&T> {
        self.filled.get(index as usize)?.as_deref()
    }

    fn fill(&mut self, index: u32, element: Box<T>) {
        let index = index as usize;
        if self.filled.len() <= index {
            self.filled.resize_with(index + 1, || None);
        }
        self.filled[index] = Some(element);
    }

    /// Changes an element in place.
    fn get_mut(&mut self, index: u32) -> Result<&mut T, MemoryError> {
        let missing = MemoryError::Missing { table: self.name, index };
        self.filled.get_mut(index as usize).and_then(Option::as_deref_mut).ok_or(missing)
    }

    /// Fills the element after the last one.
    pub fn push(&mut self, element: T) {
        self.filled.push(Some(Box::new(element)));
    }

    /// All elements up to the last one; `empty` for elements that were not filled.
    #[must_use]
    pub fn to_vec(&self, empty: T) -> Vec<T>
    where
        T: Copy,
    {
        self.filled.iter().map(|element| element.as_deref().copied().unwrap_or(empty)).collect()
    }
}

impl<T> Extend<T> for Elements<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, elements: I) {
        elements.into_iter().for_each(|element| self.push(element));
    }
}

impl<T> Index<u32> for Elements<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        self.get(index).expect("an element that was filled")
    }
}

impl<T> IndexMut<u32> for Elements<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        self.get_mut(index).expect("an element that was filled")
    }
}

impl<T: Copy + Default> Elements<[T; 256]> {
    fn word(&self, index: u32, word: u8) -> T {
        self.get(index).map_or_else(T::default, |words| words[usize::from(word)])
    }
}

/// The policy tables of one generation. Elements that were not filled read as zero.
#[derive(Clone, Debug)]
pub struct MemoryTables {
    /// Root of the IPv4 trie.
    pub trie_root: Vec<u32>,
    /// Blocks of the IPv4 trie.
    pub trie_blocks: Elements<TrieBlock>,
    /// Classes of single IPv6 addresses.
    pub hosts6: BTreeMap<Ipv6Addr, ClassId>,
    /// Classes of IPv6 prefixes.
    blocks6: PrefixMap<Ipv6Net, ClassId>,
    /// The rows.
    pub rows: Elements<Row>,
    /// The row blocks.
    pub row_blocks: Elements<RowBlock>,
    /// The port bitmaps.
    pub bitmaps: Elements<PortBitmap>,
    /// The endpoints by slot.
    pub endpoints: BTreeMap<u32, Endpoint>,
    /// Groups of rules by list and domain name.
    pub names: BTreeMap<(u32, DomainName), u32>,
    /// Trusted resolvers, and whether their answers over TCP count.
    pub resolvers: BTreeMap<IpAddr, bool>,
}

impl Default for MemoryTables {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryTables {
    /// Empty tables: all zero.
    #[must_use]
    pub fn new() -> Self {
        Self {
            trie_root: vec![0; 65_536],
            trie_blocks: Elements::new("trie block"),
            hosts6: BTreeMap::new(),
            blocks6: PrefixMap::new(),
            rows: Elements::new("row"),
            row_blocks: Elements::new("row block"),
            bitmaps: Elements::new("bitmap"),
            endpoints: BTreeMap::new(),
            names: BTreeMap::new(),
            resolvers: BTreeMap::new(),
        }
    }

    /// Empty tables with their reserved elements, so that pushed elements get the first free numbers: row 1, row block
    /// 1, bitmap 2.
    #[must_use]
    pub fn with_reserved() -> Self {
        let mut tables = Self::new();
        tables.rows.push(Row::EMPTY);
        tables.row_blocks.push([0; 256]);
        tables.bitmaps.extend([[0; 1024]; 2]);
        tables
    }

    /// Sets the class of an IPv6 prefix.
    pub fn set_block6(&mut self, net: Ipv6Net, class: ClassId) {
        self.blocks6.insert(net, class);
    }

    /// The classes of IPv6 prefixes.
    #[must_use]
    pub fn blocks6(&self) -> Vec<(Ipv6Net, ClassId)> {
        self.blocks6.iter().map(|(net, class)| (net, *class)).collect()
    }

    /// The endpoint of an interface, with the lookup of the kernel program.
    #[must_use]
    pub fn endpoint(&self, ifindex: u32) -> Option<&Endpoint> {
        (0..ENDPOINT_PROBES)
            .filter_map(|probe| self.endpoints.get(&endpoint_slot(ifindex, probe)))
            .find(|endpoint| endpoint.ifindex == ifindex)
    }

    /// Class of an address of either family.
    #[must_use]
    pub fn class(&self, address: IpAddr) -> ClassId {
        match address {
            IpAddr::V4(v4) => class4(self, v4.to_bits()),
            IpAddr::V6(v6) => class6(self, &v6.octets()),
        }
    }

    /// Stateless verdict about a packet to or from an interface's pod; `None` if the interface has no endpoint. Does
    /// not cover ingress from this node and traffic of a pod to itself, which the packet path passes earlier.
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
            Direction::Ingress => Rows(rows).ingress(),
            Direction::Egress => Rows(rows).egress(),
        };
        Some(row == ROW_NOT_ISOLATED || row_allows(self, row, self.class(remote), protocol, port))
    }

    /// Verdict about an untranslated packet of an interface's pod where it leaves the node; `None` if the interface has
    /// no endpoint.
    #[must_use]
    pub fn allows_untranslated(
        &self,
        ifindex: u32,
        remote: IpAddr,
        protocol: u8,
        port: u16,
    ) -> Option<bool> {
        let row = Rows(self.endpoint(ifindex)?.rows).egress();
        let class = untranslated(self.class(remote));
        Some(row == ROW_NOT_ISOLATED || row_allows(self, row, class, protocol, port))
    }

    /// Applies the operations of an update.
    ///
    /// # Panics
    /// An operation is refused.
    pub fn fill(&mut self, ops: &[Op]) {
        ops.iter().for_each(|op| self.write(op).expect("operations are in order"));
    }

    /// Fills an endpoint slot, which must be free.
    fn fill_slot(&mut self, slot: u32, endpoint: Endpoint) -> Result<(), MemoryError> {
        if slot >= ENDPOINT_SLOTS || self.endpoints.contains_key(&slot) {
            return Err(MemoryError::SlotInUse(slot));
        }
        self.endpoints.insert(slot, endpoint);
        Ok(())
    }

    /// The endpoint in a slot; all zeros if the slot is free.
    #[must_use]
    pub fn slot(&self, slot: u32) -> Endpoint {
        self.endpoints.get(&slot).copied().unwrap_or_default()
    }

    /// Changes an endpoint in place.
    fn slot_mut(&mut self, slot: u32) -> Result<&mut Endpoint, MemoryError> {
        self.endpoints.get_mut(&slot).ok_or(MemoryError::Missing { table: "endpoint", index: slot })
    }
}

impl TableWriter for MemoryTables {
    type Error = MemoryError;

    fn write(&mut self, op: &Op) -> Result<(), MemoryError> {
        match op {
            Op::Bitmap(id, bitmap) => self.bitmaps.fill(*id, bitmap.clone()),
            Op::RowBlock(id, block) => self.row_blocks.fill(*id, block.clone()),
            Op::RowBlockWord { block: id, column, ports: set } => {
                self.row_blocks.get_mut(*id)?[usize::from(*column)] = *set;
            }
            Op::Row(id, row) => self.rows.fill(*id, row.clone()),
            Op::RowFirst { row: id, class, ports: set } => {
                self.rows.get_mut(*id)?.first[usize::from(*class)] = *set;
            }
            Op::RowWord { row: id, index, block } => {
                self.rows.get_mut(*id)?.blocks[usize::from(*index)] = *block;
            }
            Op::TrieBlock(id, block) => self.trie_blocks.fill(*id, block.clone()),
            Op::TrieWord { block: id, index, word: value } => {
                self.trie_blocks.get_mut(*id)?[usize::from(*index)] = *value;
            }
            Op::TrieRootWord { index, word: value } => self.trie_root[usize::from(*index)] = *value,
            Op::Host6(address, class) => drop(self.hosts6.insert(*address, *class)),
            Op::Host6Gone(address) => drop(self.hosts6.remove(address)),
            Op::Block6(prefix, class) => drop(self.blocks6.insert(*prefix, *class)),
            Op::Block6Gone(prefix) => drop(self.blocks6.remove(prefix)),
            Op::Endpoint(slot, endpoint) => self.fill_slot(*slot, **endpoint)?,
            Op::EndpointRows { slot, rows } => self.slot_mut(*slot)?.rows = *rows,
            Op::EndpointAddrs(slot, endpoint) => *self.slot_mut(*slot)? = **endpoint,
            Op::EndpointGone(slot) => drop(self.endpoints.remove(slot)),
            Op::Name { list, name, groups } => {
                self.names.insert((*list, (**name).clone()), *groups);
            }
            Op::NameGone(list, name) => {
                self.names.remove(&(*list, (**name).clone()));
            }
            Op::Resolver(address, over_tcp) => {
                self.resolvers.insert(*address, *over_tcp);
            }
            Op::ResolverGone(address) => {
                self.resolvers.remove(address);
            }
            // No packet is judged while an operation is applied here.
            Op::Grace => {}
        }
        Ok(())
    }
}

impl PolicyTables for MemoryTables {
    fn trie_root(&self, index: u16) -> u32 {
        self.trie_root[usize::from(index)]
    }

    fn trie_block(&self, block: u32, index: u8) -> u32 {
        self.trie_blocks.word(block, index)
    }

    fn host6(&self, address: &[u8; 16]) -> Option<ClassId> {
        self.hosts6.get(&Ipv6Addr::from(*address)).copied()
    }

    fn block6(&self, address: &[u8; 16]) -> Option<ClassId> {
        let (_, class) = self.blocks6.get_lpm(&Ipv6Addr::from(*address).into())?;
        Some(*class)
    }

    fn row_first(&self, row: u32, class: u8) -> PortWord {
        self.rows.get(row).map_or(0, |row| row.first[usize::from(class)])
    }

    fn row_blocks(&self, row: u32, index: u8) -> u32 {
        self.rows.get(row).map_or(0, |row| row.blocks[usize::from(index)])
    }

    fn row_block(&self, block: u32, index: u8) -> PortWord {
        self.row_blocks.word(block, index)
    }

    fn bitmap(&self, bitmap: u32, word: u16) -> u64 {
        self.bitmaps.get(bitmap).map_or(0, |words| words[usize::from(word)])
    }
}
