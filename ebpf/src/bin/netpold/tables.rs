//! The verdict's tables, as BPF maps.

use core::arch::asm;
use core::intrinsics::{AtomicOrdering, atomic_cxchg};

use aya_ebpf::{helpers::bpf_jiffies64, maps::lpm_trie::Key};
use netpold_ebpf::{
    conntrack::{Full, Memory},
    family::{V4, V6},
    layout::{ClassId, FragmentKey, FragmentPorts, PortSet, Settings},
    policy::PolicyTables,
    tables::{EndpointRef, Tables, insert},
};

use crate::maps;

/// The maps of this program.
pub(crate) struct Maps;

/// A word of a table whose elements are arrays of words. The agent writes it meanwhile, by aligned
/// stores: it is read once, whole.
macro_rules! word {
    ($map:expr, $element:expr, $type:ty, $index:expr) => {
        match $map.get_ptr($element) {
            // SAFETY: the index is below the element's length; the verifier holds us to it.
            Some(element) => unsafe { element.cast::<$type>().add($index).read_volatile() },
            None => 0,
        }
    };
}

impl PolicyTables for Maps {
    #[inline(always)]
    fn trie_root(&self, index: u16) -> u32 {
        word!(maps::TRIE_ROOT, 0, u32, index as usize)
    }

    #[inline(always)]
    fn trie_block(&self, block: u32, index: u8) -> u32 {
        word!(maps::TRIE_BLOCKS, block, u32, index as usize)
    }

    #[inline(always)]
    fn host6(&self, address: &[u8; 16]) -> Option<ClassId> {
        // SAFETY: the value is a word, which is read once.
        unsafe { maps::HOSTS6.get_ptr(address).map(|class| class.read_volatile()) }
    }

    #[inline(always)]
    fn cidr6(&self, address: &[u8; 16]) -> Option<ClassId> {
        let settings = maps::SETTINGS.get_ptr(0)?;
        // SAFETY: map memory; the agent changes this field while the program runs.
        if unsafe { (&raw const (*settings).has_cidr6).read_volatile() } == 0 {
            return None;
        }
        maps::CIDRS6.get(Key::new(128, *address)).copied()
    }

    #[inline(always)]
    fn row(&self, row: u32, index: u8) -> u32 {
        word!(maps::ROWS, row, u32, index as usize)
    }

    #[inline(always)]
    fn row_block(&self, block: u32, index: u8) -> u32 {
        word!(maps::ROW_BLOCKS, block, u32, index as usize)
    }

    #[inline(always)]
    fn port_set(&self, set: u32) -> PortSet {
        match maps::PORT_SETS.get(set) {
            Some(ports) => *ports,
            None => PortSet::default(),
        }
    }

    #[inline(always)]
    fn bitmap(&self, bitmap: u32, word: u16) -> u64 {
        word!(maps::PORT_BITMAPS, bitmap, u64, (word & 1023) as usize)
    }
}

impl Memory for Maps {
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

/// Inserts an IPv4 flow; 0 if there was room. A global function to the kernel (5.6): verified by
/// itself, for any arguments.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_insert4(first: u64, second: u64, flags: u32) -> u32 {
    u32::from(insert::<V4, _>(&Maps, [first, second], flags as u16).is_err())
}

/// Inserts an IPv6 flow; as [`netpold_insert4`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_insert6(first: u64, second: u64, third: u64, fourth: u64, flags: u32) -> u32 {
    u32::from(insert::<V6, _>(&Maps, [first, second, third, fourth], flags as u16).is_err())
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

impl Tables for Maps {
    #[inline(always)]
    fn settings(&self) -> Option<&Settings> {
        maps::SETTINGS.get(0)
    }

    #[inline(always)]
    fn endpoint(&self, slot: u32) -> Option<EndpointRef> {
        // SAFETY: map memory stays while the program runs.
        maps::ENDPOINTS.get_ptr(slot).map(|record| unsafe { EndpointRef::new(record) })
    }

    #[inline(always)]
    fn bucket4(&self, index: u32) -> Option<*mut u64> {
        maps::CT4.get_ptr_mut(index).map(|bucket| bucket.cast())
    }

    #[inline(always)]
    fn bucket6(&self, index: u32) -> Option<*mut u64> {
        maps::CT6.get_ptr_mut(index).map(|bucket| bucket.cast())
    }

    #[inline(always)]
    fn now(&self) -> u32 {
        // SAFETY: the helper has no preconditions.
        unsafe { bpf_jiffies64() as u32 }
    }

    #[inline(always)]
    fn insert4(&self, key: [u64; 2], flags: u16) -> Result<(), Full> {
        let [first, second] = key;
        if netpold_insert4(first, second, u32::from(flags)) == 0 { Ok(()) } else { Err(Full) }
    }

    #[inline(always)]
    fn insert6(&self, key: [u64; 4], flags: u16) -> Result<(), Full> {
        let [first, second, third, fourth] = key;
        let result = netpold_insert6(first, second, third, fourth, u32::from(flags));
        if result == 0 { Ok(()) } else { Err(Full) }
    }

    #[inline(always)]
    fn fragment(&self, key: &FragmentKey) -> Option<FragmentPorts> {
        // SAFETY: a value that another CPU replaces meanwhile may be read half old: then it is the
        // same datagram's first fragment sent twice.
        unsafe { maps::FRAGMENTS.get(key).copied() }
    }

    #[inline(always)]
    fn remember_fragment(&self, key: &FragmentKey, ports: &FragmentPorts) {
        // An LRU map makes room by itself; where it cannot, the later fragments drop, counted.
        let _ = maps::FRAGMENTS.insert(key, ports, 0);
    }
}
