//! Hand-made objects for tests, without compiled eBPF.
//!
//! Without root, each function panics.
#![expect(clippy::expect_used, clippy::missing_panics_doc, reason = "for tests")]

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::sys::{self, instruction};

/// An array map.
#[must_use]
pub fn array(value_size: u32, max_entries: u32, flags: u32) -> OwnedFd {
    sys::array(value_size, max_entries, flags).expect("creating a map needs root")
}

/// A ring buffer of this size.
#[must_use]
pub fn ring(bytes: u32) -> OwnedFd {
    sys::ring(bytes).expect("creating a map needs root")
}

/// A classifier that returns a constant: `r0 = verdict; exit`.
#[must_use]
pub fn classifier(verdict: i32) -> OwnedFd {
    let code = [instruction(0xb7, 0, 0, 0, verdict), instruction(0x95, 0, 0, 0, 0)];
    sys::classifier(&code).expect("loading a program needs root")
}

/// A classifier that writes a record to a ring: `size` bytes, zero except for the first word.
#[must_use]
pub fn ring_writer(ring: BorrowedFd<'_>, size: i16, first: i32) -> OwnedFd {
    const BPF_FUNC_RINGBUF_OUTPUT: i32 = 130;
    const BPF_PSEUDO_MAP_FD: u8 = 1;
    let mut code: Vec<u64> =
        (1..=size / 8).map(|slot| instruction(0x7a, 10, 0, -8 * slot, 0)).collect();
    code.extend([
        instruction(0x62, 10, 0, -size, first),
        instruction(0x18, 1, BPF_PSEUDO_MAP_FD, 0, ring.as_raw_fd()),
        0,
        instruction(0xbf, 2, 10, 0, 0),
        instruction(0x07, 2, 0, 0, -i32::from(size)),
        instruction(0xb7, 3, 0, 0, i32::from(size)),
        instruction(0xb7, 4, 0, 0, 0),
        instruction(0x85, 0, 0, 0, BPF_FUNC_RINGBUF_OUTPUT),
        instruction(0xb7, 0, 0, 0, 0),
        instruction(0x95, 0, 0, 0, 0),
    ]);
    sys::classifier(&code).expect("loading a program needs root")
}

/// A classifier that runs for about a millisecond and passes the packet on. It counts started runs in the first
/// word of an array, and finished ones in the second.
#[must_use]
pub fn slow_classifier(counts: BorrowedFd<'_>) -> OwnedFd {
    const BPF_FUNC_KTIME_GET_NS: i32 = 5;
    const BPF_PSEUDO_MAP_VALUE: u8 = 2;
    let count = |offset| {
        [
            instruction(0x79, 1, 6, offset, 0),
            instruction(0x07, 1, 0, 0, 1),
            instruction(0x7b, 6, 1, offset, 0),
        ]
    };
    let mut code = vec![instruction(0x18, 6, BPF_PSEUDO_MAP_VALUE, 0, counts.as_raw_fd()), 0];
    code.extend(count(0));
    code.extend([
        instruction(0xb7, 7, 0, 0, 30_000),
        instruction(0x85, 0, 0, 0, BPF_FUNC_KTIME_GET_NS),
        instruction(0x07, 7, 0, 0, -1),
        instruction(0x55, 7, 0, -3, 0),
    ]);
    code.extend(count(8));
    code.extend([instruction(0xb7, 0, 0, 0, -1), instruction(0x95, 0, 0, 0, 0)]);
    sys::classifier(&code).expect("loading a program needs root")
}
