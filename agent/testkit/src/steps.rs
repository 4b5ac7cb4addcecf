//! Inputs of the fuzz target `packets`: what they say, and where they are kept.

use std::path::Path;

use crate::one_pod::{DENY_ROW, Direction, EGRESS_ROW, INGRESS_ROW};

/// One packet of an input, and what was changed before it.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Direction.
    pub direction: Direction,
    /// `ingress_ifindex`
    pub came_from: u32,
    /// Rows of ingress and egress from now on.
    pub rows: (u32, u32),
    /// The frame, from its Ethernet header on.
    pub frame: &'a [u8],
}

/// What the kernel takes at the least: an Ethernet header and something behind it.
const SHORTEST: usize = 15;

/// An input is a run of packets: a byte that says direction, origin and rows, one for the length
/// of the frame, and the frame. What is too short for `BPF_PROG_TEST_RUN` is left out.
#[must_use]
pub fn steps(mut bytes: &[u8]) -> Vec<Step<'_>> {
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
        steps.push(Step {
            direction: if how & 1 == 0 { Direction::Ingress } else { Direction::Egress },
            came_from: [2, 1, 0, 2][usize::from(how >> 1 & 3)],
            rows: rows[usize::from(how >> 3 & 7)],
            frame,
        });
    }
    steps
}

/// The inputs in a folder, in the order of their names.
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
