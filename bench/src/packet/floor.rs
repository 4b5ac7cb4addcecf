//! Minimum cost of random flows: a program that reads one word of one random bucket of the flow table.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};

use super::probe::PASS;
use crate::bytecode::{Code, SCHED_CLS};
use crate::frame::EndOffsets;
use crate::steer::CLASSIFIER_DATA;
use crate::world::LoadedCluster;

/// An odd number for a multiplicative hash.
const SPREAD: i32 = 0x9e37_79b1_u32.cast_signed();

/// A classifier that hashes the sender's address and port and reads a word of the bucket with that index in the world's
/// own table.
pub(super) fn floor(world: &LoadedCluster, v6: bool) -> Result<OwnedFd> {
    let (four, six) = world.generation.conntrack()?;
    let table = if v6 { six } else { four };
    let buckets = table.info()?.max_entries();
    let end = EndOffsets::of(v6, true);
    let code = hash(Code::default(), end).and(0, buckets.wrapping_sub(1).cast_signed());
    let code = code.element(table.fd().as_fd(), 0).skip_if_not(0, 0, 2).end(0).load64(1, 0, 0);
    let program: io::Result<OwnedFd> = code.end(PASS.cast_signed()).load(SCHED_CLS);
    program.context("no program that reads one bucket")
}

/// Register 0 = hash of one end of a frame. Register 1 is the context, 7 the packet, 2 and 8 are scratch.
fn hash(code: Code, end: EndOffsets) -> Code {
    let code = code
        .load32(7, 1, CLASSIFIER_DATA.0)
        .load32(8, 1, CLASSIFIER_DATA.1)
        .copy(2, 7)
        .add(2, i32::from((end.address + end.length).max(end.port + 2)))
        .skip_if_not_beyond(2, 8, 2)
        .end(0)
        .load16(0, 7, end.port);
    let code = (0..end.length / 4).fold(code, |code, word| {
        code.multiply(0, SPREAD).load32(2, 7, end.address + word * 4).add_register(0, 2)
    });
    code.multiply(0, SPREAD)
        .copy(2, 0)
        .shift_right(2, 32)
        .xor_register(0, 2)
        .multiply(0, SPREAD)
        .shift_right(0, 32)
}
