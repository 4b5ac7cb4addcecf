//! Inputs of the fuzz target `packets`: their format, and the corpus.

use std::path::Path;

use crate::one_pod::{DENY_ROW, Direction, EGRESS_ROW, INGRESS_ROW};

/// One packet of an input, and the state changed before it.
#[derive(Clone, Copy, Debug)]
pub struct PacketStep<'a> {
    /// Direction.
    pub direction: Direction,
    /// `ingress_ifindex`
    pub came_from: u32,
    /// Rows for ingress and egress from now on.
    pub rows: (u32, u32),
    /// The frame with its Ethernet header.
    pub frame: &'a [u8],
}

/// Minimum length that the kernel accepts: an Ethernet header and one more byte.
const SHORTEST: usize = 15;

/// Parses an input: per packet one byte for direction, origin and rows, one for the length of the frame, and the frame.
/// Frames too short for `BPF_PROG_TEST_RUN` are left out.
#[must_use]
pub fn steps(mut bytes: &[u8]) -> Vec<PacketStep<'_>> {
    let mut steps = Vec::new();
    while let [how, length, rest @ ..] = bytes {
        let (frame, left) = rest.split_at(usize::from(*length).min(rest.len()));
        bytes = left;
        let least = match frame.get(12..14) {
            Some([0x08, 0x00]) => 34,
            Some([0x86, 0xdd]) => 54,
            _ => SHORTEST,
        };
        if frame.len() < least {
            continue;
        }
        let rows = [
            (INGRESS_ROW, EGRESS_ROW),
            (INGRESS_ROW, EGRESS_ROW),
            (INGRESS_ROW, 0),
            (0, EGRESS_ROW),
            (DENY_ROW, EGRESS_ROW),
            (INGRESS_ROW, DENY_ROW),
            (0, 0),
            (DENY_ROW, DENY_ROW),
        ];
        steps.push(PacketStep {
            direction: if how & 1 == 0 { Direction::Ingress } else { Direction::Egress },
            came_from: [2, 1, 0, 2][usize::from(how >> 1 & 3)],
            rows: rows[usize::from(how >> 3 & 7)],
            frame,
        });
    }
    steps
}

/// The inputs in a folder, sorted by name.
#[must_use]
pub fn corpus(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).expect("a folder with a corpus");
    let mut inputs: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .map(|path| (path.display().to_string(), std::fs::read(&path).expect("an input")))
        .collect();
    inputs.sort();
    inputs
}
