//! Live frames: packets that the kernel generates at full speed (`BPF_PROG_TEST_RUN`, kernel 5.18).
//!
//! The kernel reuses the frames' pages as the stack left them, so the sending program rewrites the headers each time.

use std::io;
use std::os::fd::OwnedFd;

use crate::bytecode::{Code, XDP, memory};

/// Fate of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Then {
    /// Enters the stack as if the interface had received it (`XDP_PASS`).
    Receive = 2,
    /// Leaves through the interface (`XDP_TX`).
    Transmit = 3,
}

/// The TCP port that changes from frame to frame; must be 0 in the given frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Varies {
    /// None.
    Nothing,
    /// The source port.
    From,
    /// The destination port.
    To,
}

/// Bytes to rewrite: up to the source address in the IPv4 header.
const HEADERS: usize = 28;
/// Offsets of the TCP ports in IPv4, and of the low half of the sequence number.
const FROM_PORT: i16 = 34;
const TO_PORT: i16 = 36;
const SEQUENCE: i16 = 40;

/// A program that sends this frame of at least 60 bytes. The varying port cycles through 32,768 numbers; the sequence
/// number compensates for it, so that the checksum stays valid.
///
/// # Errors
/// The verifier refuses.
pub(crate) fn sender(frame: &[u8], then: Then, varies: Varies) -> io::Result<OwnedFd> {
    let code = Code::default()
        .load32(7, 1, 0)
        .load32(8, 1, 4)
        .copy(2, 7)
        .add(2, i32::from(SEQUENCE) + 2)
        .skip_if_not_beyond(2, 8, 2)
        .end(0);
    let (words, _) = frame[..HEADERS].as_chunks::<4>();
    let mut code = words.iter().enumerate().fold(code, |code, (index, word)| {
        code.store_value(7, index as i16 * 4, i32::from_ne_bytes(*word))
    });
    let counter = memory(8)?;
    code = match varies {
        Varies::Nothing => code,
        Varies::From => next_port(code, FROM_PORT, &counter),
        Varies::To => next_port(code, TO_PORT, &counter),
    };
    code.end(then as i32).load(XDP)
}

/// Writes the next port into the frame at register 7. In one's complement a number and its inverse add up to nothing.
fn next_port(code: Code, port: i16, counter: &OwnedFd) -> Code {
    code.address(1, counter)
        .load32(2, 1, 0)
        .copy(3, 2)
        .add(3, 1)
        .store32(1, 0, 3)
        // Big endian: sets the upper half of the port range.
        .or(2, 0x80)
        .store16(7, port, 2)
        .multiply(2, -1)
        .add(2, -1)
        .store16(7, SEQUENCE, 2)
}
