//! Packets with `skb->tc_index` set, as a pod with its own BPF program could send them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};

use crate::host::Host;

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const MAP_TYPE_PROG_ARRAY: u32 = 3;
const PROG_TYPE_SCHED_CLS: u32 = 3;
/// TC ingress of an interface.
const TCX_INGRESS: u32 = 46;
/// TC egress of an interface.
const TCX_EGRESS: u32 = 47;
/// `TCX_NEXT`
const NEXT: i32 = -1;
/// Offset of `tc_index` in `struct __sk_buff`.
const TC_INDEX: i16 = 44;
/// Offset of `mark` in it.
const MARK: i16 = 8;
const PSEUDO_MAP_FD: u8 = 1;
const TAIL_CALL: i32 = 12;
const REDIRECT_PEER: i32 = 155;

/// Program that sets `tc_index` (or the mark) of packets: attached to an interface until dropped, or in front of another program.
#[derive(Debug)]
pub struct SkbMarker {
    program: OwnedFd,
    /// Descriptor that keeps the attachment, or the array with the other program, alive.
    _held: OwnedFd,
}

impl AsFd for SkbMarker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

impl SkbMarker {
    /// Loads a program that sets `tc_index` and tail-calls `target`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn before(target: BorrowedFd<'_>, tc_index: u16) -> io::Result<Self> {
        let array = bpf(MAP_CREATE, &mut [MAP_TYPE_PROG_ARRAY, 4, 4, 1, 0])?;
        let (key, value) = (0_u32, target.as_raw_fd());
        let mut update = MapElement {
            map: array.as_raw_fd(),
            reserved: 0,
            key: (&raw const key) as u64,
            value: (&raw const value) as u64,
            flags: 0,
        };
        call(MAP_UPDATE_ELEM, &mut update)?;
        let mut code = set(tc_index);
        code.extend([
            instruction(0xbf, 1, 6, 0, 0),
            instruction(0x18, 2, PSEUDO_MAP_FD, 0, array.as_raw_fd()),
            0,
            instruction(0xb7, 3, 0, 0, 0),
            instruction(0x85, 0, 0, 0, TAIL_CALL),
        ]);
        Ok(Self { program: load(code)?, _held: array })
    }
}

impl Host {
    /// Sets `tc_index` of packets that leave by an interface of this host, until the value is dropped.
    ///
    /// # Errors
    /// When there is no such interface, or the kernel has no TCX (6.6).
    pub fn set_tc_index(&self, interface: &str, tc_index: u16) -> Result<SkbMarker> {
        let ifindex = self.ifindex(interface)?.context("no such interface")?;
        let program = load(set(tc_index)).context("cannot load a program")?;
        let mut create = [program.as_raw_fd().cast_unsigned(), ifindex, TCX_EGRESS, 0, 0, 0, 0, 0];
        let link =
            self.run(|| bpf(LINK_CREATE, &mut create))?.context("cannot attach a program")?;
        Ok(SkbMarker { program, _held: link })
    }
}

impl Host {
    /// Redirects packets that arrive at an interface of this host to the peer of a veth, past the hooks of that veth,
    /// until the value is dropped.
    ///
    /// # Errors
    /// When there is no such interface, or the kernel has no TCX (6.6).
    pub fn redirect_peer(&self, interface: &str, veth: u32) -> Result<SkbMarker> {
        self.redirect_peer_marked(interface, veth, (0, 0))
    }

    /// As [`Self::redirect_peer`], with `skb->mark` and `skb->tc_index` set.
    ///
    /// # Errors
    /// As [`Self::redirect_peer`].
    pub fn redirect_peer_marked(
        &self,
        interface: &str,
        veth: u32,
        (mark, tc_index): (u32, u16),
    ) -> Result<SkbMarker> {
        let ifindex = self.ifindex(interface)?.context("no such interface")?;
        let mut code = set(tc_index);
        code.extend([
            instruction(0xb7, 2, 0, 0, mark.cast_signed()),
            instruction(0x63, 6, 2, MARK, 0),
            instruction(0xb7, 1, 0, 0, veth.cast_signed()),
            instruction(0xb7, 2, 0, 0, 0),
            instruction(0x85, 0, 0, 0, REDIRECT_PEER),
            instruction(0x95, 0, 0, 0, 0),
        ]);
        let program = load_whole(&code).context("cannot load a program")?;
        let mut create = [program.as_raw_fd().cast_unsigned(), ifindex, TCX_INGRESS, 0, 0, 0, 0, 0];
        let link =
            self.run(|| bpf(LINK_CREATE, &mut create))?.context("cannot attach a program")?;
        Ok(SkbMarker { program, _held: link })
    }
}

/// Code that sets the field and leaves the context in register 6.
fn set(tc_index: u16) -> Vec<u64> {
    vec![
        instruction(0xbf, 6, 1, 0, 0),
        instruction(0xb7, 2, 0, 0, tc_index.into()),
        instruction(0x63, 6, 2, TC_INDEX, 0),
    ]
}

/// `struct bpf_insn`: opcode, registers, offset, immediate.
fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> u64 {
    let registers = u64::from(from << 4 | to) << 8;
    let offset = u64::from(offset.cast_unsigned()) << 16;
    u64::from(code) | registers | offset | u64::from(immediate.cast_unsigned()) << 32
}

/// Attributes of `BPF_MAP_UPDATE_ELEM` and, below, of `BPF_PROG_LOAD`.
#[repr(C)]
struct MapElement {
    map: i32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct Load {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
    rest: [u64; 4],
}

/// Loads code, with a final return of `TCX_NEXT`, which continues with the next program.
fn load(mut code: Vec<u64>) -> io::Result<OwnedFd> {
    code.extend([instruction(0xb7, 0, 0, 0, NEXT), instruction(0x95, 0, 0, 0, 0)]);
    load_whole(&code)
}

fn load_whole(code: &[u64]) -> io::Result<OwnedFd> {
    let license = c"GPL";
    let mut attributes = Load {
        kind: PROG_TYPE_SCHED_CLS,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
        rest: [0; 4],
    };
    bpf(PROG_LOAD, &mut attributes)
}

/// [`call`] for a command that returns a new descriptor.
fn bpf<A>(command: libc::c_long, attributes: &mut A) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is new and has no other owner.
    call(command, attributes).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// bpf(2); pointers in the attributes must refer to live values.
fn call<A>(command: libc::c_long, attributes: &mut A) -> io::Result<i32> {
    // SAFETY: the block has that size; the targets of its pointers outlive the call, see the callers.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<A>())
    };
    i32::try_from(result).ok().filter(|&r| r >= 0).ok_or_else(io::Error::last_os_error)
}
