//! Small programs that temporarily run in front of netpold's programs.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::bpf::sys::{self, instruction};

/// `TCX_DROP`, `TC_ACT_SHOT`
const DROP: i32 = 2;

/// Opcodes of `r0 = immediate`, `exit`, `r2 = map`, `call helper`.
const RESULT: u8 = 0xb7;
const EXIT: u8 = 0x95;
const LOAD: u8 = 0x18;
const CALL: u8 = 0x85;
const PSEUDO_MAP_FD: u8 = 1;
const TAIL_CALL: i32 = 12;

/// A program that drops every packet.
pub(super) fn closed() -> io::Result<OwnedFd> {
    sys::classifier(&[instruction(RESULT, 0, 0, 0, DROP), instruction(EXIT, 0, 0, 0, 0)])
}

/// A program with the effect of another one, since a TCX hook takes no program twice.
///
/// The kernel empties the map of the tail call once no process and no pin has it. The relay drops every packet then.
#[derive(Debug)]
pub(super) struct Relay {
    program: OwnedFd,
    /// Map of the tail call.
    _target: OwnedFd,
}

impl Relay {
    /// A relay to `program`, which works until the value is dropped.
    pub(super) fn to(program: BorrowedFd<'_>) -> io::Result<Self> {
        let target = sys::program_array(program)?;
        let code = [
            instruction(LOAD, 2, PSEUDO_MAP_FD, 0, target.as_raw_fd()),
            0,
            instruction(RESULT, 3, 0, 0, 0),
            instruction(CALL, 0, 0, 0, TAIL_CALL),
            instruction(RESULT, 0, 0, 0, DROP),
            instruction(EXIT, 0, 0, 0, 0),
        ];
        Ok(Self { program: sys::classifier(&code)?, _target: target })
    }
}

impl AsFd for Relay {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}
