//! Traced variant of the pods' programs: judges as the ordinary one does, and reports the steps of requested packets.
//! In the ordinary programs all of this compiles to nothing.

#[cfg(feature = "trace")]
mod recorder;

/// Whether this is the traced variant.
pub(crate) const TRACED: bool = cfg!(feature = "trace");

#[cfg(feature = "trace")]
pub(crate) use recorder::{begin, end, end_for_sender, record_step};

#[cfg(not(feature = "trace"))]
pub(crate) use nothing::{begin, end, end_for_sender, record_step};

#[cfg(not(feature = "trace"))]
mod nothing {
    use aya_ebpf::bindings::__sk_buff;
    use netpold_ebpf::{direction::PodDirection, trace::Step};

    #[inline(always)]
    pub(crate) fn begin<D: PodDirection>(_skb: *mut __sk_buff) {}

    #[inline(always)]
    pub(crate) fn record_step(_step: Step, _first: u64, _second: u64) {}

    #[inline(always)]
    pub(crate) fn end(_reason: u32) {}

    #[inline(always)]
    pub(crate) fn end_for_sender(_action: i32) {}
}
