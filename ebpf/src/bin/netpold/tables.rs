//! The verdict's tables, as BPF maps.

use core::arch::asm;
use core::cell::{Cell, UnsafeCell};
use core::ffi::c_void;
use core::intrinsics::{AtomicOrdering, atomic_cxchg};

use aya_ebpf::{
    bindings::__sk_buff,
    helpers::{bpf_jiffies64, bpf_map_lookup_elem},
    maps::{Array, PerCpuArray},
};
use netpold_ebpf::{
    endpoint::EndpointRef,
    flow::{
        key::{Key, choices},
        memory::Memory,
        relocate::{Shift, make_place},
        table::{Full, Gave},
    },
    layout::{
        ClassId, Counters, ENDPOINT_SLOTS, Endpoint, FragmentKey, FragmentPorts, HOST6_VALID,
        PortWord, ROW_NOT_ISOLATED, Row, Settings,
    },
    order,
    packet::family::{V4, V6},
    reason::{self, Reason},
    tables::{
        TableFamily, Tables, find_endpoint, free_stale, insert, insert_vacant, ipv6_blocks,
        ipv6_hosts, local_endpoints::LocalEndpoints, make_room, policy::PolicyTables, shift,
    },
    trace::Step,
    verdict::Verdict,
};

use crate::{
    connection,
    maps::{self, Pending},
    trace,
};

/// The maps of this program. Every array lookup takes its index from the one place on the stack,
/// since a place for each would fill the 512 bytes that a program has.
/// With `CLAIMS`, a flow takes an empty place of its first bucket at once. With `DEFERS`, flows are (else) left
/// for [`netpold_record`] to insert.
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

impl Maps<false, false> {
    /// As [`Maps::new`], for a function that inserts what found no place at once.
    #[inline(always)]
    const fn calling() -> Self {
        Self { index: UnsafeCell::new(0), deferred: Cell::new(false) }
    }
}

impl<const CLAIMS: bool> Maps<true, CLAIMS> {
    /// As [`Maps::new`], for a function that is called: it leaves what it would insert.
    #[inline(always)]
    pub(crate) const fn deferring() -> Self {
        Self { index: UnsafeCell::new(0), deferred: Cell::new(false) }
    }

    /// The number of a verdict's reason, with [`PENDING`] if a flow was left.
    #[inline(always)]
    pub(crate) fn answer(&self, verdict: Verdict) -> u32 {
        verdict.number() | if self.deferred.get() { PENDING } else { 0 }
    }
}

impl<const DEFERS: bool, const CLAIMS: bool> Maps<DEFERS, CLAIMS> {
    /// Leaves a flow for [`netpold_record`].
    #[inline(always)]
    fn defer(&self, key: [u64; 4], hash: u64, what: u64) -> Result<(), Full> {
        // An array has its first element.
        if let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) {
            // SAFETY: this CPU's own scratch.
            unsafe { (&raw mut (*scratch).pending).write(Pending { key, hash, what }) };
            self.deferred.set(true);
        }
        Ok(())
    }

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

impl<const DEFERS: bool, const CLAIMS: bool> Maps<DEFERS, CLAIMS> {
    /// State of an IPv6 address' entry; not valid where there is none.
    #[inline(always)]
    fn host6_state(&self, address: [u64; 2]) -> u64 {
        let Some(settings) = self.settings() else { return 0 };
        for index in ipv6_hosts::buckets(settings, address) {
            let Some(bucket) = self.element(&maps::HOSTS6, index) else { return 0 };
            // SAFETY: a bucket of that table.
            let state = unsafe { ipv6_hosts::state(self, bucket.cast(), address) };
            if state & HOST6_VALID != 0 {
                return state;
            }
            // SAFETY: as before.
            if !unsafe { ipv6_hosts::goes_on(self, bucket.cast()) } {
                return 0;
            }
        }
        0
    }
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
        let state = self.host6_state(V6::words(address));
        (state & HOST6_VALID != 0).then_some(ipv6_hosts::class(state))
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

    #[inline(always)]
    fn opaque(&self, index: usize, noise: u64) -> usize {
        hide(index, noise)
    }
}

/// Puts a key where the helpers read it.
#[inline(always)]
fn place_key(key: &FragmentKey) -> Option<*const FragmentKey> {
    let scratch = maps::SCRATCH.get_ptr_mut(0)?;
    // SAFETY: this CPU's own element.
    unsafe {
        let place = &raw mut (*scratch).fragment;
        place.write(*key);
        Some(place)
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
    let root = unsafe { (&raw const (*settings).blocks6_root).read_volatile() };
    let node =
        |index| maps.element(&maps::BLOCKS6, index).map(|node| node.cast::<u64>().cast_const());
    // SAFETY: nodes of that table.
    unsafe { ipv6_blocks::class(&maps, root, [first, second], node) }
}

/// Beside the number of a reason: [`netpold_record`] is to be called.
pub(crate) const PENDING: u32 = 1 << 9;

/// Inserts the flow that was left by the function that judged. The number of the reason to drop its
/// packet, if there is no room and its answers would be lost; else 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_record(skb: *mut __sk_buff) -> u32 {
    let maps = Maps::calling();
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: this CPU's own scratch.
    let (what, hash) = unsafe { ((*scratch).pending.what, (*scratch).pending.hash) };
    if insert_pending(&maps, what, hash) {
        return 0;
    }
    // SAFETY: the program's context.
    let Some(endpoint) = find_endpoint(&maps, unsafe { (*skb).ifindex }) else { return 0 };
    maps.make_room(what & Pending::IPV6 != 0, endpoint.id(), hash);
    let rows = endpoint.rows();
    let both = rows.ingress() != ROW_NOT_ISOLATED && rows.isolates_egress();
    if insert_pending(&maps, what, hash) || !both { 0 } else { Reason::ConntrackFull as u32 }
}

#[inline(always)]
fn insert_pending(maps: &Maps<false, false>, what: u64, hash: u64) -> bool {
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return false };
    // SAFETY: this CPU's own scratch.
    unsafe {
        let key = &raw const (*scratch).pending.key;
        if what & Pending::IPV6 != 0 {
            maps.insert6(key.read(), hash, what as u16).is_ok()
        } else {
            let key = key.cast::<[u64; 2]>().read();
            maps.insert4(key, hash, what as u16).is_ok()
        }
    }
}

/// Inserts an IPv4 flow; 0 if there was room. A global function to the kernel (5.6): verified by
/// itself, for any arguments.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_insert4(first: u64, second: u64, hash: u64, flags: u32) -> u32 {
    insert_and_count::<V4, _>([first, second], hash, flags)
}

/// Inserts the IPv6 flow whose key is in the scratch; as [`netpold_insert4`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_insert6(hash: u64, flags: u32) -> u32 {
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 1 };
    // SAFETY: this CPU's own scratch.
    let key = Key6(unsafe { &raw const (*scratch).key6 });
    insert_and_count::<V6, _>(key, hash, flags)
}

#[inline(always)]
fn insert_and_count<F: TableFamily, K: Key>(key: K, hash: u64, flags: u32) -> u32 {
    let maps = Maps::new();
    match insert::<F, K, _>(&maps, key, hash, flags as u16) {
        Ok(Gave::Nothing) => {}
        Ok(gave) => maps.count(reason::evictions(F::IS_V6, gave == Gave::Idle)),
        Err(Full) => return 1,
    }
    0
}

/// Has a flow move on to make a place for another, whose hash this is; 1 if one did. Four registers
/// are all that it keeps: the frame below is the one of [`netpold_shift`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_make_place(is_v6: u32, hash: u64) -> u32 {
    let Some(settings) =
        Maps::new().settings().map(|settings| (settings.ct4_mask, settings.ct6_mask))
    else {
        return 0;
    };
    let mask = if is_v6 != 0 { settings.1 } else { settings.0 };
    let made = make_place(choices(hash, mask), |index, place, takes| {
        Shift(netpold_shift(is_v6, index, place, takes.into()))
    });
    u32::from(made)
}

/// Moves a flow of a bucket on, see [`Shift`]; counts the half-open flow that it takes the place of.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_shift(is_v6: u32, index: u32, place: u32, takes: u32) -> u32 {
    let (maps, is_v6, takes) = (Maps::new(), is_v6 != 0, takes != 0);
    let shift = if is_v6 {
        shift::<V6, _>(&maps, (index, place), takes)
    } else {
        shift::<V4, _>(&maps, (index, place), takes)
    };
    if shift == Shift::TOOK {
        maps.count(reason::evictions(is_v6, false));
    }
    shift.0
}

/// Takes a place of the endpoint's own; 1 if it did.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_free_stale(is_v6: u32, endpoint: u32, hash: u64) -> u32 {
    let (maps, is_v6) = (Maps::new(), is_v6 != 0);
    let freed = if is_v6 {
        free_stale::<V6, _>(&maps, endpoint, hash)
    } else {
        free_stale::<V4, _>(&maps, endpoint, hash)
    };
    if freed {
        maps.count(reason::evictions(is_v6, true));
    }
    u32::from(freed)
}

/// Takes a place of another endpoint's; 1 if it did.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_make_room(is_v6: u32, endpoint: u32, hash: u64) -> u32 {
    let (maps, is_v6) = (Maps::new(), is_v6 != 0);
    let made = if is_v6 {
        make_room::<V6, _>(&maps, endpoint, hash)
    } else {
        make_room::<V4, _>(&maps, endpoint, hash)
    };
    if made {
        maps.count(reason::evictions(is_v6, true));
    }
    u32::from(made)
}

/// A key in the scratch: its words are read where they are needed, to save stack.
#[derive(Clone, Copy)]
struct Key6(*const [u64; 4]);

impl Key for Key6 {
    const WORDS: usize = <[u64; 4]>::WORDS;
    const STRIDE: usize = <[u64; 4]>::STRIDE;

    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        // SAFETY: this CPU's own scratch; the index is below `WORDS`.
        unsafe { self.0.cast::<u64>().add(index).read_volatile() }
    }

    #[inline(always)]
    fn protocol(&self) -> u8 {
        self.word(3) as u8
    }

    #[inline(always)]
    fn endpoint(first: u64) -> u32 {
        <[u64; 4]>::endpoint(first)
    }
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

impl<const DEFERS: bool, const CLAIMS: bool> Tables for Maps<DEFERS, CLAIMS> {
    #[inline(always)]
    fn settings(&self) -> Option<&Settings> {
        // SAFETY: map memory; what the agent changes meanwhile are words, each read on its own.
        Some(unsafe { &*maps::SETTINGS.get() })
    }

    #[inline(always)]
    fn endpoint(&self, slot: u32) -> Option<EndpointRef> {
        if slot >= ENDPOINT_SLOTS {
            return None;
        }
        // SAFETY: the slot was compared with the table's length; map memory stays while the program
        // runs.
        unsafe {
            let record = maps::ENDPOINTS.get().cast::<Endpoint>().add(slot as usize);
            Some(EndpointRef::new(record))
        }
    }

    #[inline(always)]
    fn bucket4(&self, index: u32) -> Option<*mut u64> {
        self.element(&maps::CT4, index).map(|bucket| bucket.cast())
    }

    #[inline(always)]
    fn bucket6(&self, index: u32) -> Option<*mut u64> {
        self.element(&maps::CT6, index).map(|bucket| bucket.cast())
    }

    #[inline(always)]
    fn now(&self) -> u32 {
        // SAFETY: the helper has no preconditions.
        unsafe { bpf_jiffies64() as u32 }
    }

    #[inline(always)]
    fn revision(&self) -> u32 {
        // SAFETY: map memory; the agent changes this field while the program runs.
        unsafe { (&raw const (*maps::SETTINGS.get()).revision).read_volatile() }
    }

    #[inline(always)]
    fn knows_courses(&self) -> bool {
        connection::is_readable()
    }

    #[inline(always)]
    fn class6(&self, address: [u64; 2]) -> ClassId {
        let state = self.host6_state(address);
        if state & HOST6_VALID != 0 {
            ipv6_hosts::class(state)
        } else {
            netpold_cidr6(address[0], address[1])
        }
    }

    #[inline(always)]
    fn insert4(&self, key: [u64; 2], hash: u64, flags: u16) -> Result<(), Full> {
        if Self::TRACED {
            self.note(Step::NewFlow, flags.into(), 0);
        }
        if CLAIMS && insert_vacant::<V4, _>(self, key, hash, flags) {
            return Ok(());
        }
        let [first, second] = key;
        if DEFERS {
            return self.defer([first, second, 0, 0], hash, Pending::IPV4 | u64::from(flags));
        }
        if netpold_insert4(first, second, hash, u32::from(flags)) == 0 { Ok(()) } else { Err(Full) }
    }

    #[inline(always)]
    fn insert6(&self, key: [u64; 4], hash: u64, flags: u16) -> Result<(), Full> {
        if Self::TRACED {
            self.note(Step::NewFlow, flags.into(), 0);
        }
        if CLAIMS && insert_vacant::<V6, _>(self, key, hash, flags) {
            return Ok(());
        }
        if DEFERS {
            return self.defer(key, hash, Pending::IPV6 | u64::from(flags));
        }
        let scratch = maps::SCRATCH.get_ptr_mut(0).ok_or(Full)?;
        // SAFETY: this CPU's own scratch.
        unsafe { (&raw mut (*scratch).key6).write(key) };
        if netpold_insert6(hash, u32::from(flags)) == 0 { Ok(()) } else { Err(Full) }
    }

    #[inline(always)]
    fn make_room(&self, is_v6: bool, endpoint: u32, hash: u64) -> bool {
        let is_v6 = u32::from(is_v6);
        netpold_make_place(is_v6, hash) != 0
            || netpold_free_stale(is_v6, endpoint, hash) != 0
            || netpold_make_room(is_v6, endpoint, hash) != 0
    }

    #[inline(always)]
    fn fragment(&self, key: &FragmentKey) -> Option<FragmentPorts> {
        // SAFETY: a value that another CPU replaces meanwhile may be read half old: then it is the
        // same datagram's first fragment sent twice.
        unsafe { maps::FRAGMENTS.get(&*place_key(key)?).copied() }
    }

    #[inline(always)]
    fn remember_fragment(&self, key: &FragmentKey, ports: &FragmentPorts) {
        // An LRU map makes room by itself; where it cannot, the later fragments drop, counted.
        if let Some(key) = place_key(key) {
            // SAFETY: this CPU's own key.
            let _ = maps::FRAGMENTS.insert(unsafe { &*key }, ports, 0);
        }
    }
}
