//! Questions and answers over TCP at the pods' hooks, see [`netpold_ebpf::names::stream`].

use aya_ebpf::{bindings::__sk_buff, helpers::generated::bpf_skb_load_bytes};
use netpold_ebpf::{
    direction::{Direction, Egress, Ingress},
    names::{
        conversation::{self, DNS},
        segment::segment,
        steps::{Steps, answers, asks},
        stream::{self, Source},
        tables::NameTables as _,
        work::{MESSAGE, Work},
    },
    packet::{
        bytes::{Bytes, Window as _},
        parse::is_extension,
        protocol::{TCP, TCP_RST, TCP_SYN},
    },
    tables::find_endpoint,
};

use crate::{
    maps,
    names::{netpold_answer, netpold_ask, netpold_name_learn, netpold_name_record, unknown},
    packet::{Copied, Direct, InBuffer},
    tables::Maps,
};

/// Reads a packet to a pod with names; 0 if it is to be dropped.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_stream_in(skb: *mut __sk_buff) -> u32 {
    (!may_matter::<Ingress>(skb) || answers(&Called(skb))).into()
}

/// Reads a packet of a pod with names; 0 if it is to be dropped.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn netpold_stream_out(skb: *mut __sk_buff) -> u32 {
    (!may_matter::<Egress>(skb) || asks(&Called(skb))).into()
}

/// Whether a packet may matter to a connection to a resolver: by its headers, if they can be read in place. No pod may hide
/// a segment to a resolver, so behind options and extension headers, any protocol counts as TCP.
#[inline(always)]
fn may_matter<D: Direction>(skb: *mut __sk_buff) -> bool {
    const MORE_FRAGMENTS: u16 = 0x2000;
    // SAFETY: the program's context.
    let bytes = unsafe { Direct::<true>::new(skb) };
    let is_v6 = crate::may_be_ipv6(skb);
    let (at, length) = if is_v6 { (6, 40) } else { (9, 20) };
    let Some(header) = bytes.window::<34>(0) else { return true };
    let protocol = header.byte(14 + at);
    if protocol != TCP {
        return is_v6 && is_extension(protocol);
    }
    if !is_v6 && (header.byte(14) != 0x45 || header.be16(20) & MORE_FRAGMENTS != 0) {
        return true;
    }
    let Some(header) = bytes.window::<14>(14 + length) else { return true };
    if D::EGRESS {
        header.be16(2) == DNS || header.byte(13) & TCP_RST != 0
    } else {
        header.be16(0) == DNS || header.byte(13) & TCP_SYN != 0
    }
}

/// The steps, each by a call of its function.
struct Called(*mut __sk_buff);

impl Steps for Called {
    #[inline(always)]
    fn segment<D: Direction>(&self) -> bool {
        let result =
            if D::EGRESS { netpold_segment_out(self.0) } else { netpold_segment_in(self.0) };
        result != 0
    }

    #[inline(always)]
    fn arrive(&self) -> u32 {
        netpold_stream_arrive()
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
        netpold_stream_leave()
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

/// [`segment`]
#[inline(always)]
fn read<D: Direction>(skb: *mut __sk_buff) -> bool {
    let maps = Maps::new();
    // SAFETY: the program's context.
    let (bytes, ifindex) = unsafe { (Copied::new(skb), (*skb).ifindex) };
    let Some((endpoint, work)) = find_endpoint(&maps, ifindex).zip(maps.work()) else {
        return false;
    };
    segment::<D, _>(&bytes, work, endpoint)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_segment_in(skb: *mut __sk_buff) -> u32 {
    read::<Ingress>(skb).into()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_segment_out(skb: *mut __sk_buff) -> u32 {
    read::<Egress>(skb).into()
}

/// [`stream::arrive`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_arrive() -> u32 {
    let maps = Maps::new();
    maps.work().map_or(stream::PASSES, |work| stream::arrive(&maps, work))
}

/// [`stream::leave`]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn netpold_stream_leave() -> u32 {
    let maps = Maps::new();
    maps.work().map_or(stream::PASSES, |work| stream::leave(&maps, work))
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
