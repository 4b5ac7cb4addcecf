//! Flow tables in memory: conntrack, fragments, domain names, observed flows, settings and the clock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use netpold_ebpf::flow::control::{Control, timeouts};
use netpold_ebpf::flow::key::hash_keys;
use netpold_ebpf::judge::proof::DEFAULT_BIT;
use netpold_ebpf::layout::{
    CT_WAYS, Ct4Way, Ct6Way, DOUBT_BLOCKS, DOUBT_WORDS, DoubtPlace, ENDPOINT_SLOTS, FragmentKey,
    FragmentPorts, LEARNED_BUCKETS, NAME_WAYS, NAME_WORDS, OBSERVED4_BUCKETS, OBSERVED6_BUCKETS,
    QUESTION_BUCKETS, STREAM_BUCKETS, STREAM_BYTES_WORDS, STREAM_WAYS, STREAM_WORDS, Settings,
};
use netpold_ebpf::names::ignored::IgnoredAnswer;
use netpold_ebpf::names::tables::NameTable;
use netpold_ebpf::names::work::NameWork;

/// Words of an IPv4 conntrack bucket.
const WORDS4: usize = CT_WAYS * size_of::<Ct4Way>() / 8;
/// Words of an IPv6 conntrack bucket.
const WORDS6: usize = CT_WAYS * size_of::<Ct6Way>() / 8;

/// [`Settings::hash_seed`] of [`MemoryFlowTables`].
const SEED: u64 = 0x1234_5678_9abc_def1;

/// Jiffies per second of [`MemoryFlowTables`].
pub const HZ: u32 = 1000;

/// Conntrack, fragments, domain names, observed flows, settings and the clock.
#[derive(Debug)]
pub struct MemoryFlowTables {
    /// The settings.
    pub settings: Settings,
    /// Jiffies.
    pub now: AtomicU32,
    ct4: Vec<AtomicU64>,
    ct6: Vec<AtomicU64>,
    fragments: Mutex<HashMap<[u8; 48], FragmentPorts>>,
    names: OnceLock<NameStores>,
    records: OnceLock<RecordStores>,
}

/// Records of observed flows; created on first use.
#[derive(Debug)]
struct RecordStores {
    four: Vec<AtomicU64>,
    six: Vec<AtomicU64>,
    added: Vec<AtomicU64>,
    unrecorded: AtomicU64,
}

/// Resolved addresses, questions, connections to resolvers, and the buffer of a message; created on first use, because
/// most tests have no domain names.
#[derive(Debug)]
struct NameStores {
    learned: Vec<AtomicU64>,
    asked: Vec<AtomicU64>,
    streams: Vec<AtomicU64>,
    stream_bytes: Vec<AtomicU64>,
    doubted: Vec<AtomicU64>,
    doubts: Vec<AtomicU64>,
    ignored: [AtomicU64; IgnoredAnswer::COUNT],
    work: AtomicPtr<NameWork>,
}

impl MemoryFlowTables {
    /// Empty tables of `buckets` buckets (a power of two) with [`HZ`] jiffies per second.
    #[must_use]
    pub fn new(buckets: u32) -> Self {
        let words = |each: usize| {
            std::iter::repeat_with(AtomicU64::default).take(buckets as usize * each).collect()
        };
        Self {
            settings: Settings {
                hash_seed: SEED,
                hash_keys: hash_keys(SEED),
                ct4_mask: buckets - 1,
                ct6_mask: buckets - 1,
                timeouts: timeouts(HZ),
                refresh_after: HZ,
                event_burst: 0,
                event_window: 1000,
                proof: 1 << DEFAULT_BIT,
                demands_proof: 1,
                ..Settings::default()
            },
            now: AtomicU32::new(1_000_000),
            ct4: words(WORDS4),
            ct6: words(WORDS6),
            fragments: Mutex::new(HashMap::new()),
            names: OnceLock::new(),
            records: OnceLock::new(),
        }
    }

    /// Advances the clock.
    pub fn later(&self, jiffies: u32) {
        self.now.fetch_add(jiffies, Ordering::AcqRel);
    }

    /// Removes all flows and fragments.
    pub fn forget_flows(&self) {
        for word in self.ct4.iter().chain(&self.ct6) {
            word.store(0, Ordering::Release);
        }
        if let Ok(mut fragments) = self.fragments.lock() {
            fragments.clear();
        }
    }

    /// Removes all questions, all connections to resolvers and all doubts about such connections.
    pub fn forget_streams(&self) {
        let NameStores { asked, streams, doubted, doubts, .. } = self.names();
        for word in [asked, streams, doubted, doubts].into_iter().flatten() {
            word.store(0, Ordering::Release);
        }
    }

    /// Calls `visit` for every flow, with the number of its way, counted through both tables, its control word and the
    /// words of the way.
    pub fn for_each(&self, mut visit: impl FnMut(u32, Control, &[AtomicU64])) {
        for_each(&self.ct4, &self.ct6, &mut visit);
    }

    /// Calls `visit` for every record of an observed flow, as [`MemoryFlowTables::for_each`] does.
    pub fn for_each_record(&self, mut visit: impl FnMut(u32, Control, &[AtomicU64])) {
        for_each(&self.records().four, &self.records().six, &mut visit);
    }

    /// Number of observed flows without a record, because their pod had begun too many flows in a second.
    #[must_use]
    pub fn unrecorded(&self) -> u64 {
        self.records().unrecorded.load(Ordering::Acquire)
    }

    pub(crate) fn count_unrecorded(&self) {
        self.records().unrecorded.fetch_add(1, Ordering::AcqRel);
    }

    fn records(&self) -> &RecordStores {
        self.records.get_or_init(|| {
            let words = |number| std::iter::repeat_with(AtomicU64::default).take(number).collect();
            RecordStores {
                four: words(OBSERVED4_BUCKETS as usize * WORDS4),
                six: words(OBSERVED6_BUCKETS as usize * WORDS6),
                added: words(ENDPOINT_SLOTS as usize),
                unrecorded: AtomicU64::new(0),
            }
        })
    }

    pub(crate) fn record_bucket4(&self, index: u32) -> Option<*mut u64> {
        bucket(&self.records().four, index, WORDS4)
    }

    pub(crate) fn record_bucket6(&self, index: u32) -> Option<*mut u64> {
        bucket(&self.records().six, index, WORDS6)
    }

    pub(crate) fn added(&self, slot: u32) -> Option<*mut u64> {
        bucket(&self.records().added, slot, 1)
    }

    pub(crate) fn bucket4(&self, index: u32) -> Option<*mut u64> {
        bucket(&self.ct4, index, WORDS4)
    }

    pub(crate) fn bucket6(&self, index: u32) -> Option<*mut u64> {
        bucket(&self.ct6, index, WORDS6)
    }

    fn names(&self) -> &NameStores {
        self.names.get_or_init(|| {
            let words =
                |count: usize| std::iter::repeat_with(AtomicU64::default).take(count).collect();
            let entries = |buckets: u32| words(buckets as usize * NAME_WAYS * NAME_WORDS);
            let streams = STREAM_BUCKETS as usize * STREAM_WAYS;
            NameStores {
                learned: entries(LEARNED_BUCKETS),
                asked: entries(QUESTION_BUCKETS),
                streams: words(streams * STREAM_WORDS),
                stream_bytes: words(streams * STREAM_BYTES_WORDS),
                doubted: words(ENDPOINT_SLOTS as usize),
                doubts: words(DOUBT_BLOCKS as usize * DOUBT_WORDS),
                ignored: Default::default(),
                work: AtomicPtr::new(Box::into_raw(Box::new(NameWork::EMPTY))),
            }
        })
    }

    pub(crate) fn name_bucket(&self, store: NameTable, index: u32) -> Option<*mut u64> {
        let words = match store {
            NameTable::Learned => &self.names().learned,
            NameTable::Asked => &self.names().asked,
        };
        bucket(words, index, NAME_WAYS * NAME_WORDS)
    }

    /// Words of a bucket of connections to resolvers.
    #[must_use]
    pub fn stream_bucket(&self, index: u32) -> Option<&[AtomicU64]> {
        const WORDS: usize = STREAM_WAYS * STREAM_WORDS;
        self.names().streams.get(index as usize * WORDS..(index as usize + 1) * WORDS)
    }

    pub(crate) fn stream_bytes(&self, slot: u32) -> Option<*mut u64> {
        let first = slot as usize * STREAM_BYTES_WORDS;
        self.names().stream_bytes.get(first..first + STREAM_BYTES_WORDS).map(first_word)
    }

    pub(crate) fn doubts(&self, place: DoubtPlace) -> Option<*mut u64> {
        bucket(&self.names().doubts, place.block * DOUBT_WORDS as u32 + place.word, 1)
    }

    pub(crate) fn doubted_at(&self, endpoint: u32) -> Option<*mut u64> {
        let place = (endpoint & (ENDPOINT_SLOTS - 1)) as usize;
        self.names().doubted.get(place..=place).map(first_word)
    }

    /// Number of answers, or parts of them, that opened no address for a reason.
    #[must_use]
    pub fn ignored(&self, reason: IgnoredAnswer) -> u64 {
        self.names().ignored[reason as usize].load(Ordering::Acquire)
    }

    pub(crate) fn count_ignored(&self, reason: IgnoredAnswer) {
        self.names().ignored[reason as usize].fetch_add(1, Ordering::AcqRel);
    }

    /// Buffer of a DNS message; for one thread at a time.
    #[must_use]
    pub fn name_work(&self) -> *mut NameWork {
        self.names().work.load(Ordering::Acquire)
    }

    pub(crate) fn fragment(&self, key: &FragmentKey) -> Option<FragmentPorts> {
        self.fragments.lock().ok()?.get(&fragment_key(key)).copied()
    }

    pub(crate) fn remember_fragment(&self, key: &FragmentKey, ports: &FragmentPorts) {
        if let Ok(mut fragments) = self.fragments.lock() {
            fragments.insert(fragment_key(key), *ports);
        }
    }
}

impl Drop for NameStores {
    fn drop(&mut self) {
        // SAFETY: the pointer is from `Box::into_raw`, and is freed only here.
        drop(unsafe { Box::from_raw(*self.work.get_mut()) });
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

/// Pointer to a bucket of `size` words, valid for all of them.
fn bucket(table: &[AtomicU64], index: u32, size: usize) -> Option<*mut u64> {
    table.get(index as usize * size..(index as usize + 1) * size).map(first_word)
}

/// Pointer to a run of words, valid for all of them.
pub(crate) fn first_word(words: &[AtomicU64]) -> *mut u64 {
    words.as_ptr().cast_mut().cast()
}

/// Calls `visit` for every valid way of two tables.
fn for_each(
    four: &[AtomicU64],
    six: &[AtomicU64],
    visit: &mut impl FnMut(u32, Control, &[AtomicU64]),
) {
    let four = four.chunks_exact(WORDS4 / CT_WAYS);
    let ways = four.chain(six.chunks_exact(WORDS6 / CT_WAYS));
    for (way, words) in (0..).zip(ways) {
        let control = Control(words[0].load(Ordering::Acquire));
        if control.is_valid() {
            visit(way, control, words);
        }
    }
}
