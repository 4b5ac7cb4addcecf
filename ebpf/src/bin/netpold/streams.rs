//! Questions and answers over TCP at the pods' hooks, see [`netpold_ebpf::names::stream`].

use aya_ebpf::{bindings::__sk_buff, helpers::generated::bpf_skb_load_bytes};
use netpold_ebpf::{
    names::{
        conversation,
        steps::{Steps, answers, asks},
        stream::{self, Source},
        tables::NameTables as _,
        work::{MESSAGE, Work},
    },
    packet::bytes::Bytes,
    tables::find_endpoint,
};

use crate::{
    maps,
    names::{netpold_answer, netpold_ask, netpold_name_learn, netpold_name_record, unknown},
    packet::{Copied, InBuffer},
    tables::Maps,
};

/// Reads a packet to a pod with names; 0 if it is to be dropped.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_stream_in(skb: *mut __sk_buff) -> u32 {
    answers(&Called(skb)).into()
}

/// Reads a packet of a pod with names; 0 if it is to be dropped.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_stream_out(skb: *mut __sk_buff) -> u32 {
    asks(&Called(skb)).into()
}

/// The steps, each by a call of its function.
struct Called(*mut __sk_buff);

impl Steps for Called {
    #[inline(always)]
    fn arrive(&self) -> u32 {
        netpold_stream_arrive(self.0)
    }

    #[inline(always)]
    fn take(&self) -> u32 {
        netpold_stream_take(self.0)
    }

    #[inline(always)]
    fn question(&self) -> bool {
        netpold_answer(self.0) != 0
    }

    #[inline(always)]
    fn record(&self) -> u32 {
        netpold_name_record()
    }

    #[inline(always)]
    fn learn(&self, index: u32) {
        netpold_name_learn(index);
    }

    #[inline(always)]
    fn copy_some(&self, keeps: bool) -> bool {
        netpold_stream_copy(keeps.into()) != 0
    }

    #[inline(always)]
    fn keeps(&self) -> bool {
        Maps::new().work().is_some_and(stream::keeps)
    }

    #[inline(always)]
    fn finish(&self) {
        netpold_stream_finish();
    }

    #[inline(always)]
    fn leave(&self) -> u32 {
        netpold_stream_leave(self.0)
    }

    #[inline(always)]
    fn take_question(&self) -> u32 {
        netpold_stream_question(self.0)
    }

    #[inline(always)]
    fn ask(&self) {
        netpold_ask();
    }
}

/// A packet whose messages are copied to the working memory.
struct Loaded(Copied);

impl Bytes for Loaded {
    const PLAIN: bool = false;
    type Window = InBuffer;

    #[inline(always)]
    fn length(&self) -> u32 {
        self.0.length()
    }

    #[inline(always)]
    fn window<const N: usize>(&self, offset: u32) -> Option<InBuffer> {
        self.0.window::<N>(offset)
    }
}

impl Source for Loaded {
    #[inline(always)]
    fn load(&self, _work: Work, place: u32, offset: u32, length: u32) -> bool {
        let Some(memory) = maps::NAME_WORK.get_ptr_mut(0) else { return false };
        // Both are in their bounds. Computed so that verifiers before 6.8 know them too.
        let place = unknown(place) & (MESSAGE as u32 - 1);
        let size = (unknown(length.wrapping_sub(1)) & (MESSAGE as u32 - 1)) + 1;
        // SAFETY: the program's context, and a buffer of twice `MESSAGE`.
        unsafe {
            let message = (&raw mut (*memory).message).cast::<u8>().add(place as usize);
            bpf_skb_load_bytes(self.0.context().cast(), offset, message.cast(), size) == 0
        }
    }
}

/// [`stream::arrive`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_arrive(skb: *mut __sk_buff) -> u32 {
    let maps = Maps::new();
    // SAFETY: the program's context.
    let (bytes, ifindex) = unsafe { (Copied::new(skb), (*skb).ifindex) };
    match find_endpoint(&maps, ifindex).zip(maps.work()) {
        Some((endpoint, work)) => stream::arrive(&maps, &bytes, work, endpoint),
        None => stream::PASSES,
    }
}

/// [`stream::leave`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_leave(skb: *mut __sk_buff) -> u32 {
    let maps = Maps::new();
    // SAFETY: the program's context.
    let (bytes, ifindex) = unsafe { (Copied::new(skb), (*skb).ifindex) };
    match find_endpoint(&maps, ifindex).zip(maps.work()) {
        Some((endpoint, work)) => stream::leave(&maps, &bytes, work, endpoint),
        None => stream::PASSES,
    }
}

/// [`stream::take`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_take(skb: *mut __sk_buff) -> u32 {
    // SAFETY: the program's context.
    let source = Loaded(unsafe { Copied::new(skb) });
    Maps::new().work().map_or(conversation::END, |work| stream::take(&source, work))
}

/// [`stream::take_question`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_question(skb: *mut __sk_buff) -> u32 {
    // SAFETY: the program's context.
    let source = Loaded(unsafe { Copied::new(skb) });
    Maps::new().work().map_or(conversation::END, |work| stream::take_question(&source, work))
}

/// [`stream::copy_some`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_copy(keeps: u32) -> u32 {
    let maps = Maps::new();
    maps.work().is_some_and(|work| stream::copy_some(&maps, work, keeps != 0)).into()
}

/// [`stream::finish`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_finish() -> u32 {
    let maps = Maps::new();
    if let Some(work) = maps.work() {
        stream::finish(&maps, work);
    }
    0
}
