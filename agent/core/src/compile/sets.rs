//! Port sets and bitmaps, by content.

use std::collections::BTreeSet;
use std::ops::Range;

use hashbrown::HashMap;
use netpold_ebpf::layout::{
    PORTS_ALL, PORTS_EVERY, PORTS_FIRST_BITMAP, PORTS_NONE, PORTS_ONE, PortSet, PortWord,
};

use crate::compile::expected::Expected;
use crate::compile::ids::Ids;
use crate::compile::ports::{Ports, Ranges};
use crate::ops::Op;

/// Number of the port set that allows nothing.
pub(crate) const PORT_SET_NONE: u32 = 0;
/// Number of the port set that allows every protocol and port.
pub(crate) const PORT_SET_ALL: u32 = 1;
/// First number of the others.
const PORT_SET_FIRST: u32 = 2;

/// The port sets and bitmaps in use.
#[derive(Debug)]
pub(crate) struct Sets {
    pub(crate) ids: Ids,
    pub(crate) bitmap_ids: Ids,
    by_ports: HashMap<Ports, u32>,
    /// Content and number of row columns, by port set.
    live: HashMap<u32, (Ports, PortSet, u32)>,
    /// Bitmap and number of port sets, by content.
    bitmaps: HashMap<Ranges, (u32, u32)>,
    /// Sets without a column (some may have got one since).
    idle: BTreeSet<u32>,
}

impl Sets {
    pub(crate) fn new() -> Self {
        Self {
            ids: Ids::new(PORT_SET_FIRST),
            bitmap_ids: Ids::new(PORTS_FIRST_BITMAP),
            by_ports: HashMap::new(),
            live: HashMap::new(),
            bitmaps: HashMap::new(),
            idle: BTreeSet::new(),
        }
    }

    /// The port set of this content; its bitmaps are filled by `ops` if they are new.
    pub(crate) fn intern(&mut self, ports: &Ports, ops: &mut Vec<Op>) -> u32 {
        if ports.is_none() {
            return PORT_SET_NONE;
        }
        if ports.is_all() {
            return PORT_SET_ALL;
        }
        if let Some(set) = self.by_ports.get(ports) {
            return *set;
        }
        let content = PortSet {
            tcp: self.bitmap(&ports.tcp, ops),
            udp: self.bitmap(&ports.udp, ops),
            sctp: self.bitmap(&ports.sctp, ops),
            other: if ports.other { PORTS_ALL } else { PORTS_NONE },
        };
        let set = self.ids.take();
        self.by_ports.insert(ports.clone(), set);
        self.live.insert(set, (ports.clone(), content, 0));
        self.idle.insert(set);
        set
    }

    fn bitmap(&mut self, ranges: &Ranges, ops: &mut Vec<Op>) -> u32 {
        if ranges.is_empty() {
            return PORTS_NONE;
        }
        if ranges.is_all() {
            return PORTS_ALL;
        }
        if let Some(port) = ranges.only() {
            return PORTS_ONE | u32::from(port);
        }
        if let Some((bitmap, users)) = self.bitmaps.get_mut(ranges) {
            *users += 1;
            return *bitmap;
        }
        let bitmap = self.bitmap_ids.take();
        ops.push(Op::Bitmap(bitmap, ranges.bitmap()));
        self.bitmaps.insert(ranges.clone(), (bitmap, 1));
        bitmap
    }

    /// A port set as the tables hold it. Of what is no set in use: nothing allowed.
    pub(crate) fn word(&self, set: u32) -> PortWord {
        match set {
            PORT_SET_ALL => PORTS_EVERY,
            _ => self.live.get(&set).map_or(0, |(_, content, _)| content.word()),
        }
    }

    /// One column more has this set.
    pub(crate) fn acquire(&mut self, set: u32) {
        if let Some((_, _, columns)) = self.live.get_mut(&set) {
            *columns += 1;
        }
    }

    /// One column less has this set.
    pub(crate) fn release(&mut self, set: u32) {
        if let Some((_, _, columns)) = self.live.get_mut(&set) {
            *columns -= 1;
            if *columns == 0 {
                self.idle.insert(set);
            }
        }
    }

    /// Tells the bitmaps whose numbers are in a range.
    pub(crate) fn expected(&self, range: Range<u32>, tell: &mut dyn FnMut(Expected<'_>)) {
        let mut bitmaps: Vec<(u32, &Ranges)> = self
            .bitmaps
            .iter()
            .map(|(ranges, (bitmap, _))| (*bitmap, ranges))
            .filter(|(bitmap, _)| range.contains(bitmap))
            .collect();
        bitmaps.sort_unstable_by_key(|(bitmap, _)| *bitmap);
        for (bitmap, ranges) in bitmaps {
            tell(Expected::Bitmap(bitmap, ranges.bitmap()));
        }
    }

    /// Ends the update: retires what has no user.
    pub(crate) fn sweep(&mut self) {
        for set in std::mem::take(&mut self.idle) {
            if self.live.get(&set).is_some_and(|(_, _, columns)| *columns == 0)
                && let Some((ports, ..)) = self.live.remove(&set)
            {
                self.by_ports.remove(&ports);
                self.ids.retire(set);
                for ranges in [&ports.tcp, &ports.udp, &ports.sctp] {
                    self.release_bitmap(ranges);
                }
            }
        }
    }

    fn release_bitmap(&mut self, ranges: &Ranges) {
        if let Some((bitmap, users)) = self.bitmaps.get_mut(ranges) {
            *users -= 1;
            if *users == 0 {
                self.bitmap_ids.retire(*bitmap);
                self.bitmaps.remove(ranges);
            }
        }
    }
}
