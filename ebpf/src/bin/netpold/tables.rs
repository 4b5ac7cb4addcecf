//! The tables that a judgement reads, as BPF maps; [`flows`] has those that it writes.

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
    flow::memory::Memory,
    layout::{ClassId, Counters, PortWord, Row},
    order,
    packet::family::V6,
    tables::{
        Tables as _, ipv6_blocks, ipv6_hosts, local_endpoints::LocalEndpoints, policy::PolicyTables,
    },
    trace::Step,
};

use crate::{maps, trace};

/// The maps of this program. Every array lookup takes its index from the one place on the stack,
/// since a place for each would fill the 512 bytes that a program has.
/// With `CLAIMS`, a flow takes an empty place of its first bucket at once. With `DEFERS`, flows are (else) left
/// for [`flows::netpold_record`] to insert.
pub(crate) struct Maps<const DEFERS: bool = false, const CLAIMS: bool = true> {
    index: UnsafeCell<u32>,
    /// One was.
    deferred: Cell<bool>,
}

impl Maps {
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self { index: UnsafeCell::new(0), deferred: Cell::new(false) }
    }
}

impl<const DEFERS: bool, const CLAIMS: bool> Maps<DEFERS, CLAIMS> {
    /// An element of an array map.
    #[inline(always)]
    pub(crate) fn element<T>(&self, map: &'static Array<T>, index: u32) -> Option<*mut T> {
        // SAFETY: its elements are T.
        unsafe { self.look_up((&raw const *map).cast(), index) }
    }

    /// This CPU's element of a per-CPU array map.
    #[inline(always)]
    fn own_element<T>(&self, map: &'static PerCpuArray<T>, index: u32) -> Option<*mut T> {
        // SAFETY: as above.
        unsafe { self.look_up((&raw const *map).cast(), index) }
    }

    /// # Safety
    /// The map is a definition that the loader turns into an array of T.
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
        // SAFETY: this CPU's own, and no function has it while it calls another that does.
        self.own_element(&maps::COUNTERS, 0).map(|counters| unsafe { &mut *counters })
    }

    /// Counts one more at an index of [`Counters::packets`].
    #[inline(always)]
    pub(crate) fn count(&self, index: u32) {
        if let Some(counters) = self.counters() {
            counters.count(index);
        }
    }
}

/// One more, whatever other CPUs add at the same time.
///
/// # Safety
/// A word of a map.
#[inline(always)]
pub(crate) unsafe fn add_one(word: *mut u64) {
    // SAFETY: as the caller promises.
    unsafe { asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) word, in(reg) 1u64, options(nostack)) };
}

/// A word of a table whose elements are arrays of words. The agent writes it meanwhile, by aligned
/// stores: it is read once, whole.
macro_rules! word {
    ($maps:expr, $map:expr, $element:expr, $type:ty, $index:expr) => {
        match $maps.element(&$map, $element) {
            // SAFETY: the index is below the element's length; the verifier holds us to it.
            Some(element) => unsafe { element.cast::<$type>().add($index).read_volatile() },
            None => 0,
        }
    };
}

impl<const DEFERS: bool, const CLAIMS: bool> Maps<DEFERS, CLAIMS> {
    /// Class of an IPv6 address with [`ipv6_hosts::FOUND`]; 0 where there is none.
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
            // SAFETY: as before.
            if !unsafe { ipv6_hosts::goes_on(self, bucket.cast(), places) } {
                return 0;
            }
        }
        0
    }
}

impl<const DEFERS: bool, const CLAIMS: bool> PolicyTables for Maps<DEFERS, CLAIMS> {
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
    fn cidr6(&self, address: &[u8; 16]) -> Option<ClassId> {
        let [first, second] = V6::words(address);
        Some(netpold_cidr6(first, second))
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
    fn note(&self, step: Step, first: u64, second: u64) {
        trace::note(step, first, second);
    }

    const TRACED: bool = trace::TRACED;
}

impl<const DEFERS: bool, const CLAIMS: bool> Memory for Maps<DEFERS, CLAIMS> {
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
        // The target has no `AtomicU64::compare_exchange`; this is the instruction it would be.
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

/// Class of an IPv6 address by its block: a function of its own, so that the verifier looks at the search once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_cidr6(first: u64, second: u64) -> u32 {
    let maps = Maps::new();
    // Who looks an address up behind the revision reads this behind it too.
    let settings = order::after_load(maps::SETTINGS.get(), first);
    // SAFETY: map memory; the agent changes this field while the program runs.
    let root = unsafe { (&raw const (*settings).ipv6_blocks_root).read_volatile() };
    let node =
        |index| maps.element(&maps::BLOCKS6, index).map(|node| node.cast::<u64>().cast_const());
    // SAFETY: nodes of that table.
    unsafe { ipv6_blocks::class(&maps, root, [first, second], node) }
}

/// Masks what the compiler knows to be below 1024, and the verifier need not: before 6.8 it forgets
/// what it knew of a 32-bit value that was kept on the stack.
#[inline(always)]
fn below_1024(index: usize) -> usize {
    let mut forgotten = index;
    // SAFETY: a register is moved to itself.
    unsafe { asm!("{0} = {0}", inout(reg) forgotten, options(pure, nomem, nostack)) };
    forgotten & 1023
}

/// Hides an index from the verifier, to which `x ^ noise ^ noise` is any number.
#[inline(always)]
fn hide(index: usize, noise: u64) -> usize {
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

impl<const DEFERS: bool, const CLAIMS: bool> LocalEndpoints for Maps<DEFERS, CLAIMS> {
    #[inline(always)]
    fn local4(&self, address: u32) -> Option<u32> {
        // SAFETY: the value is a word, which is read once.
        unsafe { maps::LOCALS4.get_ptr(address).map(|slot| slot.read_volatile()) }
    }

    #[inline(always)]
    fn local6(&self, address: [u64; 2]) -> Option<u32> {
        // SAFETY: as above.
        unsafe { maps::LOCALS6.get_ptr(address).map(|slot| slot.read_volatile()) }
    }
}
