//! The flow table and the other tables that a judgement writes, as BPF maps: [`Tables`], and the functions that insert
//! flows.
//!
//! These functions are global to the kernel (5.6): each is verified on its own, for any arguments.

use core::cell::{Cell, UnsafeCell};

use aya_ebpf::{bindings::__sk_buff, helpers::bpf_jiffies64};
use netpold_ebpf::{
    endpoint::EndpointRef,
    flow::{
        key::{FlowTableKey, choices},
        relocate::{Shift, make_place},
        table::{BucketsFull, Evicted},
    },
    layout::{
        ClassId, ENDPOINT_SLOTS, Endpoint, FragmentKey, FragmentPorts, ROW_NOT_ISOLATED, Settings,
    },
    packet::family::{V4, V6},
    reason::{self, Reason},
    tables::{
        Opening, TableFamily, Tables, find_endpoint, free_stale, insert, insert_vacant, ipv6_hosts,
        make_room, policy::PolicyTables as _, shift,
    },
    trace::Step,
    verdict::PacketVerdict,
};

use super::{Maps, netpold_block6};
use crate::{
    connection,
    maps::{self, Pending},
    names,
};

impl Maps<false, false> {
    /// Tables for a function that inserts at once the flows that found no vacant way.
    #[inline(always)]
    const fn calling() -> Self {
        Self { index: UnsafeCell::new(0), deferred: Cell::new(false) }
    }
}

impl<const CLAIMS: bool> Maps<true, CLAIMS> {
    /// Tables for a called function, which leaves flows for [`netpold_insert_pending`].
    #[inline(always)]
    pub(crate) const fn deferring() -> Self {
        Self { index: UnsafeCell::new(0), deferred: Cell::new(false) }
    }

    /// Number of a verdict's reason, with [`PENDING`] if a flow was left.
    #[inline(always)]
    pub(crate) fn number_of(&self, verdict: PacketVerdict) -> u32 {
        verdict.number() | if self.deferred.get() { PENDING } else { 0 }
    }
}

impl<const DEFERS: bool, const CLAIMS: bool, const OPENS: bool> Maps<DEFERS, CLAIMS, OPENS> {
    /// Leaves a flow for [`netpold_insert_pending`].
    #[inline(always)]
    fn defer(&self, key: [u64; 4], hash: u64, what: u64) -> Result<(), BucketsFull> {
        // An array always has its first element.
        if let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) {
            // SAFETY: this CPU's own scratch.
            unsafe { (&raw mut (*scratch).pending).write(Pending { key, hash, what }) };
            self.deferred.set(true);
        }
        Ok(())
    }
}

impl<const DEFERS: bool, const CLAIMS: bool, const OPENS: bool> Tables
    for Maps<DEFERS, CLAIMS, OPENS>
{
    #[inline(always)]
    fn settings(&self) -> Option<&Settings> {
        // SAFETY: map memory; the fields that the agent changes are words, each read on its own.
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
    fn opens_by_name(&self, opening: &Opening) -> bool {
        OPENS && names::opens4(opening)
    }

    #[inline(always)]
    fn doubted_at(&self, endpoint: u32) -> Option<*mut u64> {
        self.element(&maps::DOUBTED_PODS, endpoint & (ENDPOINT_SLOTS - 1))
    }

    #[inline(always)]
    fn knows_courses(&self) -> bool {
        connection::is_readable()
    }

    #[inline(always)]
    fn class6(&self, address: [u64; 2]) -> ClassId {
        let found = self.find_host6(address);
        if found & ipv6_hosts::FOUND != 0 {
            found as ClassId
        } else {
            netpold_block6(address[0], address[1])
        }
    }

    #[inline(always)]
    fn insert4(&self, key: [u64; 2], hash: u64, flags: u16) -> Result<(), BucketsFull> {
        if Self::TRACED {
            self.record_step(Step::NewFlow, flags.into(), 0);
        }
        if CLAIMS && insert_vacant::<V4, _>(self, key, hash, flags) {
            return Ok(());
        }
        let [first, second] = key;
        if DEFERS {
            return self.defer([first, second, 0, 0], hash, Pending::IPV4 | u64::from(flags));
        }
        if netpold_insert4(first, second, hash, u32::from(flags)) == 0 {
            Ok(())
        } else {
            Err(BucketsFull)
        }
    }

    #[inline(always)]
    fn insert6(&self, key: [u64; 4], hash: u64, flags: u16) -> Result<(), BucketsFull> {
        if Self::TRACED {
            self.record_step(Step::NewFlow, flags.into(), 0);
        }
        if CLAIMS && insert_vacant::<V6, _>(self, key, hash, flags) {
            return Ok(());
        }
        if DEFERS {
            return self.defer(key, hash, Pending::IPV6 | u64::from(flags));
        }
        let scratch = maps::SCRATCH.get_ptr_mut(0).ok_or(BucketsFull)?;
        // SAFETY: this CPU's own scratch.
        unsafe { (&raw mut (*scratch).key6).write(key) };
        if netpold_insert6(hash, u32::from(flags)) == 0 { Ok(()) } else { Err(BucketsFull) }
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
        // SAFETY: a value that another CPU replaces at the same time may be read half old. Then two first fragments of
        // the same datagram were sent.
        unsafe { maps::FRAGMENTS.get(&*place_key(key)?).copied() }
    }

    #[inline(always)]
    fn remember_fragment(&self, key: &FragmentKey, ports: &FragmentPorts) {
        // An LRU map evicts entries itself. If it cannot, the later fragments drop and are counted.
        if let Some(key) = place_key(key) {
            // SAFETY: this CPU's own key.
            let _ = maps::FRAGMENTS.insert(unsafe { &*key }, ports, 0);
        }
    }
}

/// Copies a key to memory that the helpers can read.
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

/// Flag added to the number of a reason: [`netpold_insert_pending`] is to be called.
pub(crate) const PENDING: u32 = 1 << 9;

/// Inserts the flow that the judging function left. Returns the number of the reason to drop its packet, if there is
/// no room and its replies would be lost; else 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_insert_pending(skb: *mut __sk_buff) -> u32 {
    let maps = Maps::calling();
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 0 };
    // SAFETY: this CPU's own scratch.
    let (what, hash) = unsafe { ((*scratch).pending.what, (*scratch).pending.hash) };
    // Most flows find a vacant way, and need no call.
    if insert_pending(&Maps::new(), what, hash) {
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
fn insert_pending<const CLAIMS: bool>(maps: &Maps<false, CLAIMS>, what: u64, hash: u64) -> bool {
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

/// Inserts an IPv4 flow; 0 if there was room.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_insert4(first: u64, second: u64, hash: u64, flags: u32) -> u32 {
    insert_and_count::<V4, _>([first, second], hash, flags)
}

/// Inserts the IPv6 flow with its key in the scratch; 0 if there was room.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_insert6(hash: u64, flags: u32) -> u32 {
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return 1 };
    // SAFETY: this CPU's own scratch.
    let key = Key6(unsafe { &raw const (*scratch).key6 });
    insert_and_count::<V6, _>(key, hash, flags)
}

#[inline(always)]
fn insert_and_count<F: TableFamily, K: FlowTableKey>(key: K, hash: u64, flags: u32) -> u32 {
    let maps = Maps::new();
    match insert::<F, K, _>(&maps, key, hash, flags as u16) {
        Ok(Evicted::Nothing) => {}
        Ok(evicted) => maps.count(reason::evictions(F::IS_V6, evicted == Evicted::Idle)),
        Err(BucketsFull) => return 1,
    }
    0
}

/// Relocates a flow to make a place for another with this hash; 1 if it did. It keeps four registers only: the frame
/// of [`netpold_shift`] comes on top.
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

/// Moves a flow of a bucket, see [`Shift`]; counts the half-open flow that it replaces.
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

/// Frees a way of the same endpoint; 1 if it did.
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

/// Frees a way of another endpoint; 1 if it did.
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

/// A key in the scratch: each word is read where it is needed, to save stack.
#[derive(Clone, Copy)]
pub(crate) struct Key6(pub(crate) *const [u64; 4]);

impl FlowTableKey for Key6 {
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
