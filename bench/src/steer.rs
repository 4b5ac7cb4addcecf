//! Many flows in one `BPF_PROG_TEST_RUN` call.
//!
//! The kernel runs a program repeatedly on one packet, without a way to change the packet. So a small program runs
//! first: it writes the next flow of a list into the packet (address and port of one end) and tail-calls the measured
//! program. The same in front of the empty program is subtracted.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use netpold_dataplane::bpf::mmap::MappedArray;
use netpold_dataplane::bpf::sys::program_array;

use crate::bytecode::{Code, SCHED_CLS, XDP, memory};
use crate::frame::EndOffsets;

/// `__sk_buff.data` and `data_end`.
pub(crate) const CLASSIFIER_DATA: (i16, i16) = (76, 80);
/// `xdp_md.data` and `data_end`.
const XDP_DATA: (i16, i16) = (0, 4);

/// A list of flows in kernel memory, and the index of the next one.
pub(crate) struct Flows {
    count: u32,
    v6: bool,
    list: OwnedFd,
    next: OwnedFd,
    position: MappedArray<u64>,
}

impl Flows {
    /// A list of addresses (all of one family) and ports, in the order of use.
    pub(crate) fn new(flows: &[(IpAddr, u16)]) -> Result<Self> {
        let v6 = flows.first().is_some_and(|(address, _)| address.is_ipv6());
        let count = u32::try_from(flows.len())?;
        let words = stride(v6) / 8;
        let list = memory(count * stride(v6)).context("cannot make the list of flows")?;
        let memory_of_list = MappedArray::<u64>::from_fd(list.as_fd(), count * words)?;
        for (index, (address, port)) in flows.iter().enumerate() {
            for (word, value) in record(*address, *port).into_iter().enumerate() {
                let element = index as u32 * words + word as u32;
                memory_of_list.store_u64(element, 0, value)?;
            }
        }
        let next = memory(8).context("cannot make the place in the list of flows")?;
        let position = MappedArray::from_fd(next.as_fd(), 1)?;
        Ok(Self { count, v6, list, next, position })
    }

    /// Number of flows.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Restarts at the first flow.
    pub(crate) fn rewind(&self) -> Result<()> {
        Ok(self.position.store_u64(0, 0, 0)?)
    }

    /// A program that writes the next flow into a packet as its sender (or receiver) and tail-calls `target`, a
    /// classifier.
    pub(crate) fn before(&self, target: BorrowedFd<'_>, sender: bool) -> io::Result<Steered> {
        self.steer(target, sender, SCHED_CLS, CLASSIFIER_DATA)
    }

    /// [`Flows::before`] for an XDP program.
    pub(crate) fn before_xdp(&self, target: BorrowedFd<'_>, sender: bool) -> io::Result<Steered> {
        self.steer(target, sender, XDP, XDP_DATA)
    }

    fn steer(
        &self,
        target: BorrowedFd<'_>,
        sender: bool,
        kind: u32,
        data: (i16, i16),
    ) -> io::Result<Steered> {
        let array = program_array(target)?;
        let program = self.code(&array, EndOffsets::of(self.v6, sender), data).load(kind)?;
        Ok(Steered { program, _array: array })
    }

    /// Register 6 is the context, 7 the packet, 1 the flow, 2 is scratch.
    fn code(&self, array: &OwnedFd, end: EndOffsets, data: (i16, i16)) -> Code {
        let count = self.count.cast_signed();
        let code = Code::default()
            .copy(6, 1)
            .load32(7, 6, data.0)
            .load32(8, 6, data.1)
            .copy(2, 7)
            .add(2, i32::from((end.address + end.length).max(end.port + 2)))
            .skip_if_not_beyond(2, 8, 2)
            .end(0)
            .address(1, &self.next)
            .load32(2, 1, 0)
            .copy(3, 2)
            .add(3, 1)
            .skip_if_less(3, count, 1)
            .set(3, 0)
            .store32(1, 0, 3)
            .skip_if_less(2, count, 2)
            .end(0)
            .multiply(2, stride(self.v6).cast_signed())
            .address(1, &self.list)
            .add_register(1, 2);
        let code = (0..end.length / 4).fold(code, |code, word| {
            code.load32(2, 1, word * 4).store32(7, end.address + word * 4, 2)
        });
        code.load16(2, 1, end.length).store16(7, end.port, 2).tail_call(array).end(0)
    }
}

/// Bytes per flow: address and port as in a packet, rounded up.
fn stride(v6: bool) -> u32 {
    if v6 { 24 } else { 8 }
}

fn record(address: IpAddr, port: u16) -> Vec<u64> {
    let mut bytes = match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    bytes.extend(port.to_be_bytes());
    bytes.resize(stride(address.is_ipv6()) as usize, 0);
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

/// A program after a [`Flows`] list.
pub(crate) struct Steered {
    program: OwnedFd,
    /// Kept open, because the kernel clears a program array when its last descriptor is closed.
    _array: OwnedFd,
}

impl AsFd for Steered {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}
