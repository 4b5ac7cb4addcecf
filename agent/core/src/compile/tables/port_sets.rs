//! Port sets and bitmaps, deduplicated by content.

use std::collections::BTreeSet;
use std::ops::Range;

use hashbrown::HashMap;
use netpold_ebpf::layout::{
    PORTS_ALL, PORTS_EVERY, PORTS_FIRST_BITMAP, PORTS_NONE, PORTS_ONE, PortSet, PortWord,
};

use crate::compile::slots::SlotAllocator;
use crate::compile::tables::element::DesiredElement;
use crate::model::Protocol;
use crate::ops::Op;
use crate::ports::AllowedPorts;
use crate::ports::tries::{ALL, NONE, Trie, Tries};

/// Number of the port set that allows nothing.
pub(crate) const PORT_SET_NONE: u32 = 0;
/// Number of the port set that allows every protocol and port.
pub(crate) const PORT_SET_ALL: u32 = 1;
/// First number of all other port sets.
const PORT_SET_FIRST: u32 = 2;

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// The port sets and bitmaps in use.
#[derive(Debug)]
pub(crate) struct PortSetTable {
    pub(crate) slots: SlotAllocator,
    pub(crate) bitmap_slots: SlotAllocator,
    by_ports: HashMap<AllowedPorts, u32>,
    /// Content and number of row columns by port set.
    live: HashMap<u32, (AllowedPorts, PortSet, u32)>,
    /// Number of the bitmap and count of port sets, by content.
    bitmaps: HashMap<Trie, (u32, u32)>,
    /// Port sets that lost their last column; some may have gained one since.
    idle: BTreeSet<u32>,
}

impl PortSetTable {
    pub(crate) fn new() -> Self {
        Self {
            slots: SlotAllocator::new(PORT_SET_FIRST),
            bitmap_slots: SlotAllocator::new(PORTS_FIRST_BITMAP),
            by_ports: HashMap::new(),
            live: HashMap::new(),
            bitmaps: HashMap::new(),
            idle: BTreeSet::new(),
        }
    }

    /// The port set of a grant without names; `ops` fill its bitmaps if they are new.
    pub(crate) fn intern(&mut self, ports: &AllowedPorts, tries: &Tries, ops: &mut Vec<Op>) -> u32 {
        if ports.is_none() {
            return PORT_SET_NONE;
        }
        if *ports == AllowedPorts::EVERYTHING {
            return PORT_SET_ALL;
        }
        if let Some(set) = self.by_ports.get(ports) {
            return *set;
        }
        let [tcp, udp, sctp] =
            PROTOCOLS.map(|protocol| self.bitmap(ports.for_protocol(protocol), tries, ops));
        let other = if ports.other { PORTS_ALL } else { PORTS_NONE };
        let set = self.slots.allocate();
        self.by_ports.insert(*ports, set);
        self.live.insert(set, (*ports, PortSet { tcp, udp, sctp, other }, 0));
        self.idle.insert(set);
        set
    }

    fn bitmap(&mut self, ports: Trie, tries: &Tries, ops: &mut Vec<Op>) -> u32 {
        match ports {
            NONE => return PORTS_NONE,
            ALL => return PORTS_ALL,
            _ => {}
        }
        if let Some(port) = tries.only(ports) {
            return PORTS_ONE | u32::from(port);
        }
        if let Some((bitmap, users)) = self.bitmaps.get_mut(&ports) {
            *users += 1;
            return *bitmap;
        }
        let bitmap = self.bitmap_slots.allocate();
        ops.push(Op::Bitmap(bitmap, tries.bitmap(ports)));
        self.bitmaps.insert(ports, (bitmap, 1));
        bitmap
    }

    /// Word of a port set in the tables. For a set that is not in use, the word that allows nothing.
    pub(crate) fn word(&self, set: u32) -> PortWord {
        match set {
            PORT_SET_ALL => PORTS_EVERY,
            _ => self.live.get(&set).map_or(0, |(_, content, _)| content.word()),
        }
    }

    /// Counts one more column with this set.
    pub(crate) fn acquire(&mut self, set: u32) {
        if let Some((_, _, columns)) = self.live.get_mut(&set) {
            *columns += 1;
        }
    }

    /// Counts one column less with this set.
    pub(crate) fn release(&mut self, set: u32) {
        if let Some((_, _, columns)) = self.live.get_mut(&set) {
            *columns -= 1;
            if *columns == 0 {
                self.idle.insert(set);
            }
        }
    }

    /// The ports of a bitmap.
    pub(crate) fn of_bitmap(&self, number: u32) -> Option<Trie> {
        let mut all = self.bitmaps.iter();
        all.find(|(_, (bitmap, _))| *bitmap == number).map(|(ports, _)| *ports)
    }

    /// Numbers of a port set's bitmaps.
    pub(crate) fn bitmaps_of(&self, set: u32) -> impl Iterator<Item = u32> + '_ {
        let ports = self
            .live
            .get(&set)
            .into_iter()
            .flat_map(|(ports, ..)| PROTOCOLS.map(|protocol| ports.for_protocol(protocol)));
        ports.filter_map(|ports| self.bitmaps.get(&ports).map(|(bitmap, _)| *bitmap))
    }

    /// Passes the bitmaps with numbers in a range to `visit`.
    pub(crate) fn expected(
        &self,
        range: Range<u32>,
        tries: &Tries,
        visit: &mut dyn FnMut(DesiredElement<'_>),
    ) {
        let mut bitmaps: Vec<(u32, Trie)> = self
            .bitmaps
            .iter()
            .map(|(ports, (bitmap, _))| (*bitmap, *ports))
            .filter(|(bitmap, _)| range.contains(bitmap))
            .collect();
        bitmaps.sort_unstable_by_key(|(bitmap, _)| *bitmap);
        for (bitmap, ports) in bitmaps {
            visit(DesiredElement::Bitmap(bitmap, tries.bitmap(ports)));
        }
    }

    /// All port tries in use.
    pub(crate) fn tries(&self) -> impl Iterator<Item = Trie> {
        self.live.values().flat_map(|(ports, ..)| ports.sets())
    }

    /// Ends the update: retires port sets without columns.
    pub(crate) fn sweep(&mut self) {
        for set in std::mem::take(&mut self.idle) {
            if self.live.get(&set).is_some_and(|(_, _, columns)| *columns == 0)
                && let Some((ports, ..)) = self.live.remove(&set)
            {
                self.by_ports.remove(&ports);
                self.slots.retire(set);
                PROTOCOLS
                    .iter()
                    .for_each(|protocol| self.release_bitmap(ports.for_protocol(*protocol)));
            }
        }
    }

    fn release_bitmap(&mut self, ports: Trie) {
        if let Some((bitmap, users)) = self.bitmaps.get_mut(&ports) {
            *users -= 1;
            if *users == 0 {
                self.bitmap_slots.retire(*bitmap);
                self.bitmaps.remove(&ports);
            }
        }
    }
}
