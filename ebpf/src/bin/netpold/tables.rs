//! Tables that a judgement reads, as BPF maps; [`flows`] has those that it writes.

pub(crate) mod flows;

use core::arch::asm;
use core::cell::{Cell, UnsafeCell};
use core::ffi::c_void;
use core::intrinsics::{AtomicOrdering, atomic_cxchg};

use aya_ebpf::{
    helpers::bpf_map_lookup_elem,
    maps::{Array, PerCpuArray},
};
use netpold_ebpf::{
    flow::{
        control::{Control, PROTECTED, Timeouts},
        memory::Memory,
    },
    layout::{ClassId, Counters, PortWord, Row, Settings},
    order,
    packet::family::V6,
    tables::{
        Tables as _, ipv6_blocks, ipv6_hosts,
        local_endpoints::LocalEndpoints,
        policy::{PolicyTables, row_allows},
    },
    trace::Step,
};

use crate::{maps, trace};

/// Maps of this program. All array lookups share one place on the stack for the index: a place for each would fill the
/// 512 bytes of a program's stack. With `CLAIMS`, a flow takes a vacant way of its first bucket at once. With
/// `DEFERS`, other flows are left for [`flows::netpold_insert_pending`] to insert. With `OPENS`, rules with domain names allow the
/// opening of a connection at once.
pub(crate) struct Maps<
    const DEFERS: bool = false,
    const CLAIMS: bool = true,
    const OPENS: bool = false,
> {
    index: UnsafeCell<u32>,
    /// Whether a flow was left.
    deferred: Cell<bool>,
}

impl Maps {
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self { index: UnsafeCell::new(0), deferred: Cell::new(false) }
    }
}

impl Maps<false, true, true> {
    /// Tables for the judgement of a pod's packet in the program's entry, with domain names.
    #[inline(always)]
    pub(crate) const fn opening() -> Self {
        Self { index: UnsafeCell::new(0), deferred: Cell::new(false) }
    }
}

impl<const DEFERS: bool, const CLAIMS: bool, const OPENS: bool> Maps<DEFERS, CLAIMS, OPENS> {
    /// An element of an array map.
    #[inline(always)]
    pub(crate) fn element<T>(&self, map: &'static Array<T>, index: u32) -> Option<*mut T> {
        // SAFETY: the map's elements are T.
        unsafe { self.look_up((&raw const *map).cast(), index) }
    }

    /// This CPU's element of a per-CPU array map.
    #[inline(always)]
    fn own_element<T>(&self, map: &'static PerCpuArray<T>, index: u32) -> Option<*mut T> {
        // SAFETY: the map's elements are T.
        unsafe { self.look_up((&raw const *map).cast(), index) }
    }

    /// # Safety
    /// The loader turns the map's definition into an array of T.
    #[inline(always)]
    unsafe fn look_up<T>(&self, map: *const c_void, index: u32) -> Option<*mut T> {
        let place = self.index.get();
        // SAFETY: the place is this program's own; the map is as the caller promises.
        unsafe {
            place.write_volatile(index);
            let element: *mut T = bpf_map_lookup_elem(map.cast_mut().cast(), place.cast()).cast();
            if element.is_null() { None } else { Some(element) }
        }
    }

    /// This CPU's counters.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "in the map, not in self")]
    pub(crate) fn counters(&self) -> Option<&mut Counters> {
        // SAFETY: this CPU's own, and no function keeps it across a call of another that uses it.
        self.own_element(&maps::COUNTERS, 0).map(|counters| unsafe { &mut *counters })
    }

    /// Adds 1 to the counter at an index of [`Counters::packets`].
    #[inline(always)]
    pub(crate) fn count(&self, index: u32) {
        if let Some(counters) = self.counters() {
            counters.count(index);
        }
    }
}

/// Adds 1 to a word, atomically.
///
/// # Safety
/// The word lies in a map.
#[inline(always)]
pub(crate) unsafe fn add_one(word: *mut u64) {
    // SAFETY: as the caller promises.
    unsafe { asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) word, in(reg) 1u64, options(nostack)) };
}

/// A word of a table with arrays of words as elements. The agent writes it concurrently, by aligned stores, so it is
/// read once, whole.
macro_rules! word {
    ($maps:expr, $map:expr, $element:expr, $type:ty, $index:expr) => {
        match $maps.element(&$map, $element) {
            // SAFETY: the index is below the element's length, which the verifier checks too.
            Some(element) => unsafe { element.cast::<$type>().add($index).read_volatile() },
            None => 0,
        }
    };
}

impl<const DEFERS: bool, const CLAIMS: bool, const OPENS: bool> Maps<DEFERS, CLAIMS, OPENS> {
    /// Class of an IPv6 address with [`ipv6_hosts::FOUND`]; 0 if it is not in the table.
    #[inline(always)]
    fn find_host6(&self, address: [u64; 2]) -> u64 {
        let Some(settings) = self.settings() else { return 0 };
        let places = ipv6_hosts::Places::new(settings, address);
        if word!(self, maps::HOSTS6_FILTER, places.filter(), u64, 0) & places.filter_bit() == 0 {
            return 0;
        }
        for index in places.buckets {
            let Some(bucket) = self.element(&maps::HOSTS6, index) else { return 0 };
            // SAFETY: a bucket of that table.
            let found = unsafe { ipv6_hosts::find(self, bucket.cast(), address) };
            if found & ipv6_hosts::FOUND != 0 {
                return found;
            }
            // SAFETY: a bucket of that table.
            if !unsafe { ipv6_hosts::goes_on(self, bucket.cast(), places) } {
                return 0;
            }
        }
        0
    }
}

impl<const DEFERS: bool, const CLAIMS: bool, const OPENS: bool> PolicyTables
    for Maps<DEFERS, CLAIMS, OPENS>
{
    #[inline(always)]
    fn trie_root(&self, index: u16) -> u32 {
        // SAFETY: the index is below the table's length.
        unsafe { maps::TRIE_ROOT.get().cast::<u32>().add(index as usize).read_volatile() }
    }

    #[inline(always)]
    fn trie_block(&self, block: u32, index: u8) -> u32 {
        word!(self, maps::TRIE_BLOCKS, block, u32, index as usize)
    }

    #[inline(always)]
    fn host6(&self, address: &[u8; 16]) -> Option<ClassId> {
        let found = self.find_host6(V6::words(address));
        (found & ipv6_hosts::FOUND != 0).then_some(found as ClassId)
    }

    #[inline(always)]
    fn block6(&self, address: &[u8; 16]) -> Option<ClassId> {
        let [first, second] = V6::words(address);
        Some(netpold_block6(first, second))
    }

    #[inline(always)]
    fn row_first(&self, row: u32, class: u8) -> PortWord {
        word!(self, maps::ROWS, row, PortWord, class as usize)
    }

    #[inline(always)]
    fn row_blocks(&self, row: u32, index: u8) -> u32 {
        const BLOCKS: usize = core::mem::offset_of!(Row, blocks) / size_of::<u32>();
        word!(self, maps::ROWS, row, u32, BLOCKS + index as usize)
    }

    #[inline(always)]
    fn row_block(&self, block: u32, index: u8) -> PortWord {
        word!(self, maps::ROW_BLOCKS, block, PortWord, index as usize)
    }

    #[inline(always)]
    fn bitmap(&self, bitmap: u32, word: u16) -> u64 {
        word!(self, maps::PORT_BITMAPS, bitmap, u64, below_1024(word.into()))
    }

    #[inline(always)]
    fn row_allows(&self, row: u32, class: ClassId, protocol: u8, port: u16) -> bool {
        netpold_row_allows(row, class, u32::from(protocol) << 16 | u32::from(port)) != 0
    }

    const ROWS_BY_CALL: bool = !CLAIMS;

    #[inline(always)]
    fn record_step(&self, step: Step, first: u64, second: u64) {
        trace::record_step(step, first, second);
    }

    const TRACED: bool = trace::TRACED;
}

impl<const DEFERS: bool, const CLAIMS: bool, const OPENS: bool> Timeouts
    for Maps<DEFERS, CLAIMS, OPENS>
{
    #[inline(always)]
    fn is_expired(&self, control: Control, protocol: u8, settings: &Settings, now: u32) -> bool {
        // Nearly all packets find a younger entry, and need no call.
        control.age(now) >= settings.refresh_after
            && netpold_is_expired(control.0, protocol.into(), now) != 0
    }

    #[inline(always)]
    fn rank(&self, control: Control, protocol: u8, _settings: &Settings, now: u32) -> u64 {
        netpold_rank(control.0, protocol.into(), now)
    }
}

/// [`row_allows`] as a function of its own.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_row_allows(row: u32, class: ClassId, protocol_and_port: u32) -> u32 {
    let (protocol, port) = ((protocol_and_port >> 16) as u8, protocol_and_port as u16);
    row_allows(&Maps::new(), row, class, protocol, port).into()
}

/// [`Control::is_expired`] as a function of its own.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_is_expired(control: u64, protocol: u32, now: u32) -> u32 {
    let maps = Maps::new();
    let expired = |settings| Control(control).is_expired(&maps, protocol as u8, settings, now);
    maps.settings().is_some_and(expired).into()
}

/// [`Control::rank`] as a function of its own.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_rank(control: u64, protocol: u32, now: u32) -> u64 {
    let maps = Maps::new();
    let rank = |settings| Control(control).rank(&maps, protocol as u8, settings, now);
    maps.settings().map_or(PROTECTED, rank)
}

impl<const DEFERS: bool, const CLAIMS: bool, const OPENS: bool> Memory
    for Maps<DEFERS, CLAIMS, OPENS>
{
    #[inline(always)]
    unsafe fn load(&self, word: *const u64) -> u64 {
        // SAFETY: as the caller promises.
        unsafe { word.read_volatile() }
    }

    #[inline(always)]
    unsafe fn store(&self, word: *mut u64, value: u64) {
        // SAFETY: as the caller promises.
        unsafe { word.write_volatile(value) }
    }

    #[inline(always)]
    unsafe fn swap(&self, word: *mut u64, old: u64, new: u64) -> u64 {
        // The target has no `AtomicU64::compare_exchange`; this is the instruction for it.
        // SAFETY: as the caller promises.
        unsafe {
            atomic_cxchg::<_, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(
                word, old, new,
            )
            .0
        }
    }

    #[cfg(not(feature = "ordered-reads"))]
    #[inline(always)]
    unsafe fn publish(&self, word: *mut u64, _old: u64, new: u64) -> bool {
        // SAFETY: as the caller promises.
        unsafe { word.write_volatile(new) };
        true
    }

    #[inline(always)]
    fn opaque(&self, index: usize, noise: u64) -> usize {
        hide(index, noise)
    }
}

/// Class of an IPv6 address by its block: a separate function, so that the verifier checks the search once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_block6(first: u64, second: u64) -> u32 {
    let maps = Maps::new();
    // Ordered after the address: a caller that orders the address after the revision orders this read too.
    let settings = order::after_load(maps::SETTINGS.get(), first);
    // SAFETY: map memory; the agent changes this field while the program runs.
    let root = unsafe { (&raw const (*settings).ipv6_blocks_root).read_volatile() };
    let node =
        |index| maps.element(&maps::BLOCKS6, index).map(|node| node.cast::<u64>().cast_const());
    // SAFETY: nodes of that table.
    unsafe { ipv6_blocks::class(&maps, root, [first, second], node) }
}

/// Masks an index that the compiler knows to be below 1024, but the verifier may not: before 6.8 it forgets the bounds
/// of a 32-bit value that was spilled to the stack.
#[inline(always)]
fn below_1024(index: usize) -> usize {
    let mut forgotten = index;
    // SAFETY: a register is moved to itself.
    unsafe { asm!("{0} = {0}", inout(reg) forgotten, options(pure, nomem, nostack)) };
    forgotten & 1023
}

/// Hides an index from the verifier, which takes `x ^ noise ^ noise` for any number.
#[inline(always)]
pub(crate) fn hide(index: usize, noise: u64) -> usize {
    let mut hidden = index;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "{index} ^= {noise}",
            "{index} ^= {noise}",
            index = inout(reg) hidden,
            noise = in(reg) noise,
            options(pure, nomem, nostack),
        );
    }
    hidden
}

impl<const DEFERS: bool, const CLAIMS: bool, const OPENS: bool> LocalEndpoints
    for Maps<DEFERS, CLAIMS, OPENS>
{
    #[inline(always)]
    fn local4(&self, address: u32) -> Option<u32> {
        // SAFETY: the value is a word, read once.
        unsafe { maps::LOCALS4.get_ptr(address).map(|slot| slot.read_volatile()) }
    }

    #[inline(always)]
    fn local6(&self, address: [u64; 2]) -> Option<u32> {
        // SAFETY: the value is a word, read once.
        unsafe { maps::LOCALS6.get_ptr(address).map(|slot| slot.read_volatile()) }
    }
}
