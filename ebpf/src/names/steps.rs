//! The order in which the segments of a connection to a resolver are read. The programs and the tests share it; each step
//! is a function of its own in the kernel, which the verifier checks once.

use crate::{
    direction::{Egress, Ingress, PodDirection},
    layout::NAME_MATCHES,
    names::{
        conversation::{ADDRESS, END, RECORDS},
        stream::{COPIES, DROPS, ENDS, MESSAGE_ENDS, READS},
    },
    reason::Reason,
};

/// Maximum number of steps for one segment (records, bytes of lengths, messages): about half a millisecond with the
/// longest names. A segment with more steps ends the reading.
pub const STEPS: u32 = 160;
/// Maximum number of questions in one segment.
pub const QUESTIONS: u32 = 4;

/// Whether the node may translate the destination of a pod's packet with this reason number, perhaps to a resolver's.
#[must_use]
#[inline(always)]
pub const fn may_be_translated(reason: u32) -> bool {
    reason == Reason::Translated as u32 || reason == Reason::Answer as u32
}

/// The steps, for one packet.
pub trait Steps {
    /// [`segment`](crate::names::segment::segment)
    fn segment<D: PodDirection>(&self) -> bool;
    /// [`arrive`](crate::names::stream::arrive)
    fn arrive(&self) -> u32;
    /// [`end`](crate::names::stream::end)
    fn end(&self);
    /// [`is_resolver`](crate::names::stream::is_resolver)
    fn is_resolver(&self) -> bool;
    /// [`take`](crate::names::stream::take)
    fn take(&self) -> u32;
    /// [`question`](crate::names::conversation::question)
    fn question(&self) -> bool;
    /// [`record`](crate::names::conversation::record)
    fn record(&self) -> u32;
    /// [`learn`](crate::names::conversation::learn)
    fn learn(&self, index: u32) -> bool;
    /// [`copy_some`](crate::names::stream::copy_some)
    fn copy_some(&self, keeps: bool) -> bool;
    /// [`keeps`](crate::names::stream::keeps)
    fn keeps(&self) -> bool;
    /// [`finish`](crate::names::stream::finish)
    fn finish(&self);
    /// [`leave`](crate::names::stream::leave)
    fn leave(&self, may_be_translated: bool) -> u32;
    /// [`take_question`](crate::names::stream::take_question)
    fn take_question(&self) -> u32;
    /// [`ask`](crate::names::conversation::ask)
    fn ask(&self);
}

/// Reads a TCP packet to a pod; whether it passes. All addresses in it are recorded before it passes.
#[must_use]
#[inline(always)]
pub fn answers<S: Steps>(steps: &S) -> bool {
    if !steps.segment::<Ingress>() {
        return true;
    }
    let result = steps.arrive();
    if result != READS {
        return passes(steps, result);
    }
    copy(steps, false);
    let mut is_answer = false;
    for _ in 0..STEPS {
        let result = if is_answer { steps.record() } else { steps.take() };
        if result == END && !is_answer {
            break;
        }
        if result == END {
            is_answer = false;
        } else if result == MESSAGE_ENDS {
            is_answer = steps.question();
        } else if result == ADDRESS {
            for index in 0..NAME_MATCHES as u32 {
                if !steps.learn(index) {
                    break;
                }
            }
        }
    }
    if steps.keeps() {
        copy(steps, true);
    }
    steps.finish();
    true
}

#[inline(always)]
fn passes<S: Steps>(steps: &S, result: u32) -> bool {
    if result == ENDS {
        steps.end();
    }
    result != DROPS
}

/// Ends the reading of a connection, by a TCP packet of it that is not read:
///
/// * one that policy drops. It may be forwarded as a reset, and in ingress be answered by one in the pod's name
///   ([`crate::judge::cut`], [`crate::judge::reject`]);
/// * one of the node itself: packets from the pod to the node pass no exit.
///
/// Of packets to the pod, only a resolver's counts: any host may send others.
#[inline(always)]
pub fn unread<D: PodDirection, S: Steps>(steps: &S) {
    if steps.segment::<D>() && (D::EGRESS || steps.is_resolver()) {
        steps.end();
    }
}

#[inline(always)]
fn copy<S: Steps>(steps: &S, keeps: bool) {
    for _ in 0..COPIES {
        if !steps.copy_some(keeps) {
            break;
        }
    }
}

/// Reads a TCP packet of a pod; whether it passes. `may_be_translated`: see [`leave`](crate::names::stream::leave).
#[must_use]
#[inline(always)]
pub fn asks<S: Steps>(steps: &S, may_be_translated: bool) -> bool {
    if !steps.segment::<Egress>() {
        return true;
    }
    let result = steps.leave(may_be_translated);
    if result != READS {
        return passes(steps, result);
    }
    for _ in 0..QUESTIONS {
        if steps.take_question() != MESSAGE_ENDS {
            break;
        }
        steps.ask();
    }
    true
}

const _: () = assert!(STEPS >= 2 * RECORDS);
