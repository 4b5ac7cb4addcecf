//! The tables in plain memory: for tests, and for judging packets without a kernel.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::{collections::HashMap, sync::Mutex, vec, vec::Vec};

use crate::{
    conntrack::{Memory, hash_keys, timeouts},
    family::{Family as _, V6},
    layout::{
        CT_WAYS, ClassId, Ct4Way, Ct6Way, ENDPOINT_ADDRS, ENDPOINT_SLOTS, EP_ADDR4_SHIFT,
        EP_ADDR6_SHIFT, Endpoint, FragmentKey, FragmentPorts, PortBitmap, PortWord, Row, RowBlock,
        Settings, TrieBlock, endpoint_slot,
    },
    packet::Bytes,
    policy::PolicyTables,
    proof::DEFAULT_BIT,
    tables::{EndpointRef, Tables},
    uplink::Locals,
};

/// Words of an IPv4 and of an IPv6 conntrack bucket.
const WORDS4: usize = CT_WAYS * size_of::<Ct4Way>() / 8;
const WORDS6: usize = CT_WAYS * size_of::<Ct6Way>() / 8;

/// [`Settings::hash_seed`] of [`HostTables`].
const SEED: u64 = 0x1234_5678_9abc_def1;

/// Atomic access to the host's memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostMemory;

impl Memory for HostMemory {
    unsafe fn load(&self, word: *const u64) -> u64 {
        // SAFETY: as the caller promises.
        unsafe { AtomicU64::from_ptr(word.cast_mut()) }.load(Ordering::Acquire)
    }

    unsafe fn store(&self, word: *mut u64, value: u64) {
        // SAFETY: as the caller promises.
        unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Release);
    }

    unsafe fn swap(&self, word: *mut u64, old: u64, new: u64) -> u64 {
        // SAFETY: as the caller promises.
        let word = unsafe { AtomicU64::from_ptr(word) };
        word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|seen| seen)
    }
}

/// All tables of a node.
#[derive(Debug)]
pub struct HostTables {
    /// The settings.
    pub settings: Settings,
    /// The endpoint slots; see [`HostTables::set_endpoint`].
    pub endpoints: Vec<Endpoint>,
    /// The IPv4 trie's root.
    pub trie_root: Vec<u32>,
    /// The IPv4 trie's blocks.
    pub trie_blocks: Vec<TrieBlock>,
    /// Classes of single IPv6 addresses.
    pub hosts6: HashMap<[u8; 16], ClassId>,
    /// Classes of IPv6 prefixes: address, length, class.
    pub cidrs6: Vec<([u8; 16], u32, ClassId)>,
    /// The rows.
    pub rows: Vec<Row>,
    /// The row blocks.
    pub row_blocks: Vec<RowBlock>,
    /// The port bitmaps.
    pub bitmaps: Vec<PortBitmap>,
    /// Jiffies.
    pub now: AtomicU32,
    ct4: Vec<AtomicU64>,
    ct6: Vec<AtomicU64>,
    fragments: Mutex<HashMap<[u8; 48], FragmentPorts>>,
}

impl HostTables {
    /// Empty tables with conntrack tables of `buckets` (a power of two) and 1000 jiffies a second.
    #[must_use]
    pub fn new(buckets: u32) -> Self {
        Self {
            endpoints: vec![Endpoint::default(); ENDPOINT_SLOTS as usize],
            trie_root: vec![0; 65_536],
            rows: vec![Row::EMPTY],
            row_blocks: vec![[0; 256]],
            bitmaps: vec![[0; 1024]; 2],
            ..Self::flows_alone(buckets)
        }
    }

    /// As [`HostTables::new`], without memory for anything but flows and fragments: below
    /// [`crate::node::NodeTables`].
    #[must_use]
    pub fn flows_alone(buckets: u32) -> Self {
        let words = |each: usize| {
            core::iter::repeat_with(AtomicU64::default).take(buckets as usize * each).collect()
        };
        Self {
            settings: Settings {
                hash_seed: SEED,
                hash_keys: hash_keys(SEED),
                ct4_mask: buckets - 1,
                ct6_mask: buckets - 1,
                timeouts: timeouts(1000),
                refresh_after: 1000,
                event_burst: 0,
                event_window: 1000,
                has_cidr6: 1,
                proof: 1 << DEFAULT_BIT,
                demands_proof: 1,
                ..Settings::default()
            },
            endpoints: Vec::new(),
            trie_root: Vec::new(),
            trie_blocks: Vec::new(),
            hosts6: HashMap::new(),
            cidrs6: Vec::new(),
            rows: Vec::new(),
            row_blocks: Vec::new(),
            bitmaps: Vec::new(),
            now: AtomicU32::new(1_000_000),
            ct4: words(WORDS4),
            ct6: words(WORDS6),
            fragments: Mutex::new(HashMap::new()),
        }
    }

    /// Writes an endpoint to the slot of its interface.
    pub fn set_endpoint(&mut self, endpoint: Endpoint) {
        let slot = endpoint_slot(endpoint.ifindex, 0) as usize;
        self.endpoints[slot] = endpoint;
        self.changed();
    }

    /// Policy was changed: what flows remember of it is void.
    pub fn changed(&mut self) {
        self.settings.revision = self.settings.revision.wrapping_add(1);
    }

    /// Forgets every flow and fragment.
    pub fn forget_flows(&self) {
        for word in self.ct4.iter().chain(&self.ct6) {
            word.store(0, Ordering::Release);
        }
        if let Ok(mut fragments) = self.fragments.lock() {
            fragments.clear();
        }
    }

    fn fragment_key(key: &FragmentKey) -> [u8; 48] {
        let mut bytes = [0; 48];
        bytes[..4].copy_from_slice(&key.endpoint.to_ne_bytes());
        bytes[4..8].copy_from_slice(&key.direction.to_ne_bytes());
        bytes[8..24].copy_from_slice(&key.remote);
        bytes[24..40].copy_from_slice(&key.local);
        bytes[40..44].copy_from_slice(&key.ident.to_ne_bytes());
        bytes[44..].copy_from_slice(&key.protocol.to_ne_bytes());
        bytes
    }
}

/// The element, or what a read outside a table answers.
fn word<T: Copy + Default>(table: &[T], index: usize) -> T {
    table.get(index).copied().unwrap_or_default()
}

impl PolicyTables for HostTables {
    fn trie_root(&self, index: u16) -> u32 {
        word(&self.trie_root, index.into())
    }

    fn trie_block(&self, block: u32, index: u8) -> u32 {
        self.trie_blocks.get(block as usize).map_or(0, |block| block[usize::from(index)])
    }

    fn host6(&self, address: &[u8; 16]) -> Option<ClassId> {
        self.hosts6.get(address).copied()
    }

    fn cidr6(&self, address: &[u8; 16]) -> Option<ClassId> {
        let address = u128::from_be_bytes(*address);
        self.cidrs6
            .iter()
            .filter(|(prefix, length, _)| {
                let differing = address ^ u128::from_be_bytes(*prefix);
                differing.checked_shr(128 - length).unwrap_or(0) == 0
            })
            .max_by_key(|(_, length, _)| *length)
            .map(|(_, _, class)| *class)
    }

    fn row_first(&self, row: u32, class: u8) -> PortWord {
        self.rows.get(row as usize).map_or(0, |row| row.first[usize::from(class)])
    }

    fn row_blocks(&self, row: u32, index: u8) -> u32 {
        self.rows.get(row as usize).map_or(0, |row| row.blocks[usize::from(index)])
    }

    fn row_block(&self, block: u32, index: u8) -> PortWord {
        self.row_blocks.get(block as usize).map_or(0, |block| block[usize::from(index)])
    }

    fn bitmap(&self, bitmap: u32, word: u16) -> u64 {
        self.bitmaps.get(bitmap as usize).map_or(0, |bitmap| bitmap[usize::from(word)])
    }
}

impl Memory for HostTables {
    unsafe fn load(&self, word: *const u64) -> u64 {
        // SAFETY: as the caller promises.
        unsafe { HostMemory.load(word) }
    }

    unsafe fn store(&self, word: *mut u64, value: u64) {
        // SAFETY: as the caller promises.
        unsafe { HostMemory.store(word, value) }
    }

    unsafe fn swap(&self, word: *mut u64, old: u64, new: u64) -> u64 {
        // SAFETY: as the caller promises.
        unsafe { HostMemory.swap(word, old, new) }
    }
}

impl Tables for HostTables {
    fn settings(&self) -> Option<&Settings> {
        Some(&self.settings)
    }

    fn endpoint(&self, slot: u32) -> Option<EndpointRef> {
        // SAFETY: lives as long as the tables.
        self.endpoints.get(slot as usize).map(|record| unsafe { EndpointRef::new(record) })
    }

    fn bucket4(&self, index: u32) -> Option<*mut u64> {
        self.ct4.get(index as usize * WORDS4..(index as usize + 1) * WORDS4).map(first_word)
    }

    fn bucket6(&self, index: u32) -> Option<*mut u64> {
        self.ct6.get(index as usize * WORDS6..(index as usize + 1) * WORDS6).map(first_word)
    }

    fn now(&self) -> u32 {
        self.now.load(Ordering::Acquire)
    }

    fn revision(&self) -> u32 {
        self.settings.revision
    }

    fn fragment(&self, key: &FragmentKey) -> Option<FragmentPorts> {
        self.fragments.lock().ok()?.get(&Self::fragment_key(key)).copied()
    }

    fn remember_fragment(&self, key: &FragmentKey, ports: &FragmentPorts) {
        if let Ok(mut fragments) = self.fragments.lock() {
            fragments.insert(Self::fragment_key(key), *ports);
        }
    }
}

impl Locals for HostTables {
    fn local4(&self, address: u32) -> Option<u32> {
        self.slot_of(|slot, endpoint| endpoint.addr4[slot] == address, EP_ADDR4_SHIFT)
    }

    fn local6(&self, address: [u64; 2]) -> Option<u32> {
        let address = V6::octets(address);
        self.slot_of(|slot, endpoint| endpoint.addr6[slot] == address, EP_ADDR6_SHIFT)
    }
}

impl HostTables {
    /// The only endpoint slot with a valid address slot for which this holds.
    fn slot_of(&self, holds: impl Fn(usize, &Endpoint) -> bool, shift: u32) -> Option<u32> {
        let owns = |endpoint: &Endpoint| {
            let valid = |slot: &usize| endpoint.flags >> (shift + *slot as u32) & 1 != 0;
            (0..ENDPOINT_ADDRS).filter(valid).any(|slot| holds(slot, endpoint))
        };
        let mut all = self.endpoints.iter().zip(0..).filter(|(endpoint, _)| owns(endpoint));
        let (_, slot) = all.next()?;
        all.next().is_none().then_some(slot)
    }
}

/// Pointer to a run of words, good for all of them.
fn first_word(words: &[AtomicU64]) -> *mut u64 {
    words.as_ptr().cast_mut().cast()
}

/// A frame as XDP reads it: plain packets, behind tags too.
#[derive(Clone, Copy, Debug)]
pub struct Plain<'a>(pub &'a [u8]);

impl<'a> Bytes for Plain<'a> {
    const PLAIN: bool = true;
    const TAGS: bool = true;
    const SCTP: bool = true;
    type Window = &'a [u8];

    fn length(&self) -> u32 {
        self.0.length()
    }

    fn window<const N: usize>(&self, offset: u32) -> Option<&'a [u8]> {
        self.0.window::<N>(offset)
    }
}
