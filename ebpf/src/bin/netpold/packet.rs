//! Packet bytes in the kernel: read in place for plain packets, copied for all others.
//!
//! **Invariant: all judged bytes are in the packet's linear part.** That part is memory of the kernel alone. The rest
//! of a packet may be pages that a pod still writes: a page that was spliced into a socket still belongs to the pod,
//! and a tunnel inside the pod can turn its bytes into a packet's headers. Such headers are moved to the linear part
//! before they are read, so the node's later readers (routes, conntrack, the receiver) see the bytes that were judged.

use core::{arch::asm, cell::UnsafeCell, mem::MaybeUninit};

use aya_ebpf::{
    bindings::__sk_buff,
    helpers::{bpf_skb_load_bytes, generated::bpf_skb_pull_data},
};
use netpold_ebpf::{
    packet::{
        bytes::{Bytes, MAX_WINDOW, Window},
        parse::{self, Fragment, Network},
    },
    reason::Reason,
};

use crate::{
    maps::{SCRATCH, Scratch},
    tables::hide,
};

/// Linear part of a packet, read in place. [`Copied`] reads headers elsewhere, and unusual packets.
pub(crate) struct LinearBytes<const V4: bool> {
    data: usize,
    end: usize,
    length: u32,
}

impl<const V4: bool> LinearBytes<V4> {
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

impl<const V4: bool> Bytes for LinearBytes<V4> {
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

/// A packet read by a copying helper: bytes in pages move to the linear part first. All windows share one buffer, to
/// save stack.
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
        // SAFETY: a buffer of that size; no older window of it is read afterwards.
        unsafe { copy::<N>(self.skb, self.buffer.get().cast(), offset) }
    }

    #[inline(always)]
    fn opaque(&self, number: u32) -> u32 {
        hide(number as usize, u64::from(self.length())) as u32
    }
}

/// A packet copied to the scratch, by functions that have no stack for a buffer.
pub(crate) struct CopiedTo {
    skb: *mut __sk_buff,
    scratch: *mut Scratch,
}

impl CopiedTo {
    /// # Safety
    /// `skb` is the program's context, and the scratch is this CPU's own.
    #[inline(always)]
    pub(crate) const unsafe fn new(skb: *mut __sk_buff, scratch: *mut Scratch) -> Self {
        Self { skb, scratch }
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
        const { assert!(N <= MAX_WINDOW) };
        let is_copied = netpold_copy(self.skb, offset, N as u32) != 0;
        // SAFETY: a field of the scratch; no older window of it is read afterwards.
        let buffer = unsafe { (&raw const (*self.scratch).window).cast() };
        is_copied.then_some(InBuffer(buffer))
    }

    #[inline(always)]
    fn opaque(&self, number: u32) -> u32 {
        hide(number as usize, u64::from(self.length())) as u32
    }
}

/// Bytes whose IPv6 extension headers [`netpold_follow`] follows, for functions with stack for two more frames.
pub(crate) struct FollowedBytes<B> {
    skb: *mut __sk_buff,
    bytes: B,
}

impl<B> FollowedBytes<B> {
    /// # Safety
    /// `skb` is the program's context, and the bytes are its own.
    #[inline(always)]
    pub(crate) const unsafe fn new(skb: *mut __sk_buff, bytes: B) -> Self {
        Self { skb, bytes }
    }
}

impl<B: Bytes> Bytes for FollowedBytes<B> {
    const PLAIN: bool = B::PLAIN;
    type Window = B::Window;

    #[inline(always)]
    fn length(&self) -> u32 {
        self.bytes.length()
    }

    #[inline(always)]
    fn window<const N: usize>(&self, offset: u32) -> Option<B::Window> {
        self.bytes.window::<N>(offset)
    }

    #[inline(always)]
    fn opaque(&self, number: u32) -> u32 {
        self.bytes.opaque(number)
    }

    #[inline(always)]
    fn follow(&self, network: &mut Network<[u64; 2]>) -> Option<Result<(), Reason>> {
        Some(follow(self.skb, network))
    }
}

/// [`parse::follow`] by [`netpold_follow`].
#[inline(always)]
fn follow(skb: *mut __sk_buff, network: &mut Network<[u64; 2]>) -> Result<(), Reason> {
    let Network { payload, end, protocol, .. } = *network;
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return Err(Reason::NoTable) };
    let followed = netpold_follow(skb, payload, end, protocol.into());
    network.payload = followed as u32;
    network.protocol = (followed >> 32) as u8;
    // SAFETY: this CPU's own scratch, written just before.
    network.fragment = unsafe { (&raw const (*scratch).followed).read() };
    match (followed >> 40) as u8 {
        FOLLOWED => Ok(()),
        TOO_MANY => Err(Reason::TooManyHeaders),
        TRUNCATED => Err(Reason::Truncated),
        _ => Err(Reason::Malformed),
    }
}

/// Results of [`netpold_follow`] in bits 40 to 47.
const FOLLOWED: u8 = Reason::NotEndpoint as u8;
const TOO_MANY: u8 = Reason::TooManyHeaders as u8;
const TRUNCATED: u8 = Reason::Truncated as u8;

/// Follows extension headers from an offset, and leaves the fragment in the scratch; returns the offset of the
/// payload, the protocol in bits 32 to 39, and the reason of an error in the bits above. A global function: verified
/// once, not for each parser.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_follow(skb: *mut __sk_buff, payload: u32, end: u32, protocol: u32) -> u64 {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return u64::from(TRUNCATED) << 40 };
    // SAFETY: the program's context; this CPU's own scratch.
    let bytes = unsafe { CopiedTo::new(skb, scratch) };
    let mut network = Network {
        source: [0; 2],
        destination: [0; 2],
        protocol: protocol as u8,
        hop_limit: 0,
        start: 0,
        payload,
        end,
        fragment: Fragment::default(),
    };
    let result = parse::follow(&bytes, &mut network, |count| {
        let mut next = count + 1;
        // Keeps the compiler from unrolling the loop.
        // SAFETY: a register is moved to itself.
        unsafe { asm!("{0} = {0}", inout(reg) next, options(pure, nomem, nostack)) };
        next
    });
    // SAFETY: this CPU's own scratch.
    unsafe { (&raw mut (*scratch).followed).write(network.fragment) };
    let error = match result {
        Ok(()) => FOLLOWED,
        Err(reason) => reason as u8,
    };
    u64::from(network.payload) | u64::from(network.protocol) << 32 | u64::from(error) << 40
}

/// Copies `N` bytes of a packet, from its linear part. `None` if the packet is shorter, or if the kernel has no memory to
/// move the bytes there.
///
/// Pointers into the packet ([`LinearBytes`]) are invalid afterwards.
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
    let is_copied = unsafe { load(skb, offset, buffer, N as u32) };
    is_copied.then_some(InBuffer(buffer))
}

/// Copies bytes of a packet to the window in the scratch; 0 on failure, as [`copy`]. `size`: 1 to [`MAX_WINDOW`]. A global
/// function: verified once, not for each window.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_copy(skb: *mut __sk_buff, offset: u32, size: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else { return 0 };
    // Bounds that verifiers before 6.8 see too.
    let size = (size.wrapping_sub(1) & 63) + 1;
    // SAFETY: the program's context; this CPU's own scratch, which is longer.
    unsafe { load(skb, offset, (&raw mut (*scratch).window).cast(), size).into() }
}

/// Copies bytes of a packet after a move to its linear part, if they are not there; false on failure.
///
/// # Safety
/// `skb` is the program's context, and the buffer has room for `size` bytes.
#[inline(always)]
unsafe fn load(skb: *mut __sk_buff, offset: u32, buffer: *mut u8, size: u32) -> bool {
    let end = offset.wrapping_add(size);
    // SAFETY: as the caller promises.
    unsafe {
        let moved = if end > linear(skb) { bpf_skb_pull_data(skb, end) } else { 0 };
        let loaded = bpf_skb_load_bytes(skb.cast_const().cast(), offset, buffer.cast(), size);
        // One branch for both: the verifier follows each.
        moved | loaded == 0
    }
}

/// Length of a packet's linear part, in bytes.
///
/// # Safety
/// `skb` is the program's context.
#[inline(always)]
unsafe fn linear(skb: *mut __sk_buff) -> u32 {
    // SAFETY: the caller's context.
    unsafe { (*skb).data_end.wrapping_sub((*skb).data) }
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
