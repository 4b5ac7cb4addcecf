//! Packet bytes in the kernel: read in place for plain packets, copied for all others.

use core::{cell::UnsafeCell, mem::MaybeUninit};

use aya_ebpf::{bindings::__sk_buff, helpers::bpf_skb_load_bytes};
use netpold_ebpf::packet::bytes::{Bytes, MAX_WINDOW, Window};

use crate::tables::hide;

/// Linear part of a packet, read in place. [`Copied`] reads headers elsewhere, and unusual packets.
pub(crate) struct Direct<const V4: bool> {
    data: usize,
    end: usize,
    length: u32,
}

impl<const V4: bool> Direct<V4> {
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

impl<const V4: bool> Bytes for Direct<V4> {
    const PLAIN: bool = true;
    const IPV4: bool = V4;
    const IPV6: bool = !V4;
    type Window = InPlace;

    #[inline(always)]
    fn length(&self) -> u32 {
        self.length
    }

    #[inline(always)]
    fn window<const N: usize>(&self, offset: u32) -> Option<InPlace> {
        InPlace::new::<N>(self.data + offset as usize, self.end)
    }
}

/// Packet memory that was checked against the packet's end. Loads are as wide as the field, at any alignment: every
/// architecture with an eBPF JIT that netpold runs on has unaligned loads, and elsewhere the verifier rejects the
/// program.
#[derive(Clone, Copy)]
pub(crate) struct InPlace(*const u8);

impl InPlace {
    /// `N` bytes from `start`, if they are before the packet's `end`.
    #[inline(always)]
    pub(crate) fn new<const N: usize>(start: usize, end: usize) -> Option<Self> {
        (start + N <= end).then_some(Self(start as *const u8))
    }
}

impl Window for InPlace {
    #[inline(always)]
    fn byte(&self, at: usize) -> u8 {
        // SAFETY: within the window, or the verifier rejects the program.
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

/// A packet read by a copying helper, wherever its bytes lie. All windows share one buffer, to save stack.
pub(crate) struct Copied {
    skb: *mut __sk_buff,
    buffer: UnsafeCell<MaybeUninit<[u64; MAX_WINDOW / 8]>>,
}

impl Copied {
    /// # Safety
    /// `skb` is the program's context.
    #[inline(always)]
    pub(crate) const unsafe fn new(skb: *mut __sk_buff) -> Self {
        Self { skb, buffer: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// The program's context.
    #[inline(always)]
    pub(crate) const fn context(&self) -> *mut __sk_buff {
        self.skb
    }
}

impl Bytes for Copied {
    const PLAIN: bool = false;
    type Window = InBuffer;

    #[inline(always)]
    fn length(&self) -> u32 {
        // SAFETY: the program's context.
        unsafe { (*self.skb).len }
    }

    #[inline(always)]
    fn window<const N: usize>(&self, offset: u32) -> Option<InBuffer> {
        // SAFETY: a buffer of that size; no older window of it is read any more.
        unsafe { copy::<N>(self.skb, self.buffer.get().cast(), offset) }
    }

    #[inline(always)]
    fn opaque(&self, number: u32) -> u32 {
        hide(number as usize, u64::from(self.length())) as u32
    }
}

/// A packet copied to a buffer of the caller, where there is no stack for one.
pub(crate) struct CopiedTo {
    skb: *mut __sk_buff,
    buffer: *mut [u64; MAX_WINDOW / 8],
}

impl CopiedTo {
    /// # Safety
    /// `skb` is the program's context, and the buffer has no other user meanwhile.
    #[inline(always)]
    pub(crate) const unsafe fn new(
        skb: *mut __sk_buff,
        buffer: *mut [u64; MAX_WINDOW / 8],
    ) -> Self {
        Self { skb, buffer }
    }
}

impl Bytes for CopiedTo {
    const PLAIN: bool = false;
    type Window = InBuffer;

    #[inline(always)]
    fn length(&self) -> u32 {
        // SAFETY: the program's context.
        unsafe { (*self.skb).len }
    }

    #[inline(always)]
    fn window<const N: usize>(&self, offset: u32) -> Option<InBuffer> {
        // SAFETY: a buffer of that size; no older window of it is read any more.
        unsafe { copy::<N>(self.skb, self.buffer.cast(), offset) }
    }

    #[inline(always)]
    fn opaque(&self, number: u32) -> u32 {
        hide(number as usize, u64::from(self.length())) as u32
    }
}

/// Copies `N` bytes of a packet.
///
/// # Safety
/// `skb` is the program's context, and the buffer has room for [`MAX_WINDOW`] bytes.
#[inline(always)]
unsafe fn copy<const N: usize>(
    skb: *mut __sk_buff,
    buffer: *mut u8,
    offset: u32,
) -> Option<InBuffer> {
    const { assert!(N <= MAX_WINDOW) };
    // SAFETY: as the caller promises.
    let result =
        unsafe { bpf_skb_load_bytes(skb.cast_const().cast(), offset, buffer.cast(), N as u32) };
    (result == 0).then_some(InBuffer(buffer))
}

/// A copied window; its fields are aligned, since a copy begins with a header.
#[derive(Clone, Copy)]
pub(crate) struct InBuffer(*const u8);

impl Window for InBuffer {
    #[inline(always)]
    fn byte(&self, at: usize) -> u8 {
        // SAFETY: offsets are constants within the window.
        unsafe { self.0.add(at).read() }
    }

    #[inline(always)]
    fn be16(&self, at: usize) -> u16 {
        // SAFETY: as `byte`.
        u16::from_be(unsafe { self.0.add(at).cast::<u16>().read() })
    }

    #[inline(always)]
    fn be32(&self, at: usize) -> u32 {
        // SAFETY: as `byte`.
        u32::from_be(unsafe { self.0.add(at).cast::<u32>().read() })
    }

    #[inline(always)]
    fn words(&self, at: usize) -> [u64; 2] {
        // SAFETY: as `byte`.
        unsafe {
            let words = self.0.add(at).cast::<u64>();
            [words.read(), words.add(1).read()]
        }
    }
}
