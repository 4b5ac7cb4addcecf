//! Packet bytes in the kernel: straight from memory for plain packets, copied for the others.

use aya_ebpf::{bindings::__sk_buff, helpers::bpf_skb_load_bytes};
use netpold_ebpf::packet::{Bytes, MAX_WINDOW, Window};

/// The linear part of a packet, read in place. Headers that lie elsewhere, and whatever is unusual,
/// are left to [`Copied`].
pub(crate) struct Direct {
    data: usize,
    end: usize,
    length: u32,
}

impl Direct {
    /// # Safety
    /// `skb` is the program's context.
    #[inline(always)]
    pub(crate) unsafe fn new(skb: *mut __sk_buff) -> Self {
        // SAFETY: the caller's context.
        unsafe {
            Self { data: (*skb).data as usize, end: (*skb).data_end as usize, length: (*skb).len }
        }
    }
}

impl Bytes for Direct {
    const PLAIN: bool = true;
    type Window = InPlace;

    #[inline(always)]
    fn length(&self) -> u32 {
        self.length
    }

    #[inline(always)]
    fn window<const N: usize>(&self, offset: u32) -> Option<InPlace> {
        let start = self.data + offset as usize;
        (start + N <= self.end).then_some(InPlace(start as *const u8))
    }
}

/// Packet memory that was compared with the packet's end. Loads are as wide as the field, at any
/// alignment: every architecture with an eBPF JIT that netpold runs on has unaligned loads, and
/// the verifier refuses the program elsewhere.
#[derive(Clone, Copy)]
pub(crate) struct InPlace(*const u8);

impl Window for InPlace {
    #[inline(always)]
    fn byte(&self, at: usize) -> u8 {
        // SAFETY: within the window, or the verifier refuses the program.
        unsafe { self.0.add(at).read_volatile() }
    }

    #[inline(always)]
    fn be16(&self, at: usize) -> u16 {
        // SAFETY: as `byte`.
        u16::from_be(unsafe { self.0.add(at).cast::<u16>().read_volatile() })
    }

    #[inline(always)]
    fn be32(&self, at: usize) -> u32 {
        // SAFETY: as `byte`.
        u32::from_be(unsafe { self.0.add(at).cast::<u32>().read_volatile() })
    }

    #[inline(always)]
    fn words(&self, at: usize) -> [u64; 2] {
        // SAFETY: as `byte`.
        unsafe {
            let words = self.0.add(at).cast::<u64>();
            [words.read_volatile(), words.add(1).read_volatile()]
        }
    }
}

/// A packet that is read by a copying helper, wherever its bytes lie.
pub(crate) struct Copied(pub(crate) *mut __sk_buff);

impl Bytes for Copied {
    const PLAIN: bool = false;
    type Window = Copy40;

    #[inline(always)]
    fn length(&self) -> u32 {
        // SAFETY: the program's context.
        unsafe { (*self.0).len }
    }

    #[inline(always)]
    fn window<const N: usize>(&self, offset: u32) -> Option<Copy40> {
        const { assert!(N <= MAX_WINDOW) };
        let mut copy = Copy40([0; MAX_WINDOW / 8]);
        // SAFETY: the copy has room for N bytes.
        let result = unsafe {
            bpf_skb_load_bytes(self.0.cast_const().cast(), offset, (&raw mut copy).cast(), N as u32)
        };
        (result == 0).then_some(copy)
    }
}

/// A copied window.
#[derive(Clone, Copy)]
pub(crate) struct Copy40([u64; MAX_WINDOW / 8]);

impl Copy40 {
    #[inline(always)]
    fn at(&self, at: usize) -> *const u8 {
        // SAFETY: within the copy: offsets are constants below MAX_WINDOW.
        unsafe { (&raw const self.0).cast::<u8>().add(at) }
    }
}

impl Window for Copy40 {
    #[inline(always)]
    fn byte(&self, at: usize) -> u8 {
        // SAFETY: see `at`.
        unsafe { self.at(at).read() }
    }

    #[inline(always)]
    fn be16(&self, at: usize) -> u16 {
        // SAFETY: see `at`; fields of headers are aligned in a copy that begins with the header.
        u16::from_be(unsafe { self.at(at).cast::<u16>().read() })
    }

    #[inline(always)]
    fn be32(&self, at: usize) -> u32 {
        // SAFETY: as `be16`.
        u32::from_be(unsafe { self.at(at).cast::<u32>().read() })
    }

    #[inline(always)]
    fn words(&self, at: usize) -> [u64; 2] {
        // SAFETY: as `be16`.
        unsafe {
            let words = self.at(at).cast::<u64>();
            [words.read(), words.add(1).read()]
        }
    }
}
