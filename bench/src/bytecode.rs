//! Small handwritten eBPF programs and maps: the harness around the measured programs.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use netpold_dataplane::bpf::sys::{self, instruction};
use netpold_dataplane::bpf::test_run::{self, Attributes};

/// `BPF_XDP` of `enum bpf_attach_type`.
const ATTACH_XDP: u32 = 37;
/// Passed frames enter the network stack (kernel 5.18).
const F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
/// The program supports multi-buffer packets, like the programs that it may tail-call.
const F_XDP_HAS_FRAGS: u32 = 1 << 5;

/// `BPF_PROG_TYPE_SCHED_CLS`
pub(crate) const SCHED_CLS: u32 = 3;
/// `BPF_PROG_TYPE_XDP`
pub(crate) const XDP: u32 = 6;

const PSEUDO_MAP_FD: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;
const FUNC_MAP_LOOKUP: i32 = 1;
const FUNC_TAIL_CALL: i32 = 12;
/// The frame pointer.
const STACK: u8 = 10;

/// `struct xdp_md`
#[repr(C)]
#[derive(Default)]
struct XdpContext {
    data: u32,
    data_end: u32,
    data_meta: u32,
    ingress_ifindex: u32,
    rx_queue_index: u32,
    egress_ifindex: u32,
}

/// `XDP_FLAGS_DRV_MODE`: in the driver.
pub(crate) const NATIVE: u32 = 1 << 2;
/// `XDP_FLAGS_SKB_MODE`: in the network stack.
pub(crate) const GENERIC: u32 = 1 << 1;

/// Attaches an XDP program until the descriptor is closed.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn attach_xdp(program: &OwnedFd, ifindex: u32, flags: u32) -> io::Result<OwnedFd> {
    sys::link_create(program.as_fd(), ifindex, ATTACH_XDP, flags)
}

/// Runs an XDP program `repeat` times on a frame, as if an interface had received it. Passed frames enter the network
/// stack.
///
/// # Errors
/// The kernel refuses: before 5.18, or the interface has no XDP program.
pub(crate) fn send_live(
    program: &OwnedFd,
    frame: &[u8],
    ifindex: u32,
    repeat: u32,
) -> io::Result<()> {
    let size = frame.len() as u32;
    let context = XdpContext { data_end: size, ingress_ifindex: ifindex, ..XdpContext::default() };
    let mut attributes = Attributes {
        program: raw(program),
        data_size_in: size,
        data_in: frame.as_ptr() as u64,
        repeat,
        context_size_in: size_of::<XdpContext>() as u32,
        context_in: (&raw const context) as u64,
        flags: F_TEST_XDP_LIVE_FRAMES,
        ..Attributes::default()
    };
    // SAFETY: frame and context have the given lengths and outlive the call.
    unsafe { test_run::call(&mut attributes) }
}

/// Runs an XDP program on a frame that is then discarded; returns the last return value and the mean nanoseconds per
/// run.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn run_xdp(
    program: BorrowedFd<'_>,
    frame: &[u8],
    repeat: u32,
) -> io::Result<(u32, u32)> {
    let mut attributes = Attributes {
        program: raw(&program),
        data_size_in: frame.len() as u32,
        data_in: frame.as_ptr() as u64,
        repeat,
        ..Attributes::default()
    };
    // SAFETY: the frame has the given length and outlives the call.
    unsafe { test_run::call(&mut attributes)? };
    Ok((attributes.retval, attributes.duration))
}

fn raw(fd: &impl AsRawFd) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// Creates a mmapable array of one element.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn memory(bytes: u32) -> io::Result<OwnedFd> {
    sys::array(bytes, 1, sys::BPF_F_MMAPABLE)
}

/// Instructions of a program under construction, in order.
#[derive(Default)]
pub(crate) struct Code(Vec<u64>);

impl Code {
    fn push(mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Self {
        self.0.push(instruction(code, to, from, offset, immediate));
        self
    }

    /// `to = from`
    pub(crate) fn copy(self, to: u8, from: u8) -> Self {
        self.push(0xbf, to, from, 0, 0)
    }

    /// `to = value`
    pub(crate) fn set(self, to: u8, value: i32) -> Self {
        self.push(0xb7, to, 0, 0, value)
    }

    /// `to += value`
    pub(crate) fn add(self, to: u8, value: i32) -> Self {
        self.push(0x07, to, 0, 0, value)
    }

    /// `to |= value`
    pub(crate) fn or(self, to: u8, value: i32) -> Self {
        self.push(0x47, to, 0, 0, value)
    }

    /// `to += from`
    pub(crate) fn add_register(self, to: u8, from: u8) -> Self {
        self.push(0x0f, to, from, 0, 0)
    }

    /// `to *= value`
    pub(crate) fn multiply(self, to: u8, value: i32) -> Self {
        self.push(0x27, to, 0, 0, value)
    }

    /// `to &= value`
    pub(crate) fn and(self, to: u8, value: i32) -> Self {
        self.push(0x57, to, 0, 0, value)
    }

    /// `to ^= from`
    pub(crate) fn xor_register(self, to: u8, from: u8) -> Self {
        self.push(0xaf, to, from, 0, 0)
    }

    /// `to >>= bits`
    pub(crate) fn shift_right(self, to: u8, bits: i32) -> Self {
        self.push(0x77, to, 0, 0, bits)
    }

    /// `to = *(u64 *)(from + offset)`
    pub(crate) fn load64(self, to: u8, from: u8, offset: i16) -> Self {
        self.push(0x79, to, from, offset, 0)
    }

    /// `to = *(u32 *)(from + offset)`
    pub(crate) fn load32(self, to: u8, from: u8, offset: i16) -> Self {
        self.push(0x61, to, from, offset, 0)
    }

    /// `*(u32 *)(to + offset) = from`
    pub(crate) fn store32(self, to: u8, offset: i16, from: u8) -> Self {
        self.push(0x63, to, from, offset, 0)
    }

    /// `*(u32 *)(to + offset) = value`
    pub(crate) fn store_value(self, to: u8, offset: i16, value: i32) -> Self {
        self.push(0x62, to, 0, offset, value)
    }

    /// `to = *(u16 *)(from + offset)`
    pub(crate) fn load16(self, to: u8, from: u8, offset: i16) -> Self {
        self.push(0x69, to, from, offset, 0)
    }

    /// `*(u16 *)(to + offset) = from`
    pub(crate) fn store16(self, to: u8, offset: i16, from: u8) -> Self {
        self.push(0x6b, to, from, offset, 0)
    }

    /// Skips the next `skip` instructions if `register < value`.
    pub(crate) fn skip_if_less(self, register: u8, value: i32, skip: i16) -> Self {
        self.push(0xa5, register, 0, skip, value)
    }

    /// Skips the next `skip` instructions if `register != value`.
    pub(crate) fn skip_if_not(self, register: u8, value: i32, skip: i16) -> Self {
        self.push(0x55, register, 0, skip, value)
    }

    /// Skips the next `skip` instructions if `a <= b`.
    pub(crate) fn skip_if_not_beyond(self, a: u8, b: u8, skip: i16) -> Self {
        self.push(0xbd, a, b, skip, 0)
    }

    /// `to` = address of the value in a [`memory`] map.
    pub(crate) fn address(self, to: u8, map: &OwnedFd) -> Self {
        self.push(0x18, to, PSEUDO_MAP_VALUE, 0, map.as_raw_fd()).push(0, 0, 0, 0, 0)
    }

    /// Register 0 = address of the array element with the index in this register, or 0; clobbers registers 1 to 5.
    pub(crate) fn element(self, map: BorrowedFd<'_>, index: u8) -> Self {
        self.store32(STACK, -4, index)
            .copy(2, STACK)
            .add(2, -4)
            .push(0x18, 1, PSEUDO_MAP_FD, 0, map.as_raw_fd())
            .push(0, 0, 0, 0, 0)
            .push(0x85, 0, 0, 0, FUNC_MAP_LOOKUP)
    }

    /// Tail call to the program in a [`program_array`](sys::program_array), with the context in register 6.
    pub(crate) fn tail_call(self, array: &OwnedFd) -> Self {
        self.copy(1, 6)
            .push(0x18, 2, PSEUDO_MAP_FD, 0, array.as_raw_fd())
            .push(0, 0, 0, 0, 0)
            .set(3, 0)
            .push(0x85, 0, 0, 0, FUNC_TAIL_CALL)
    }

    /// Returns this value.
    pub(crate) fn end(self, value: i32) -> Self {
        self.set(0, value).push(0x95, 0, 0, 0, 0)
    }

    /// Loads the program.
    ///
    /// # Errors
    /// The verifier refuses.
    pub(crate) fn load(self, kind: u32) -> io::Result<OwnedFd> {
        // The agent's loader sets the same: kernel 6.18 compares it at tail calls.
        let (hook, flags) = if kind == XDP { (ATTACH_XDP, F_XDP_HAS_FRAGS) } else { (0, 0) };
        sys::prog_load_for(hook, kind, flags, &self.0)
    }
}
