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
    reason == Reason::Translated as u32 || reason == Reason::TranslatedReply as u32
}

/// The steps, for one packet.
pub trait Steps {
    /// [`parse_segment`](crate::names::segment::parse_segment)
    fn parse_segment<D: PodDirection>(&self) -> bool;
    /// [`admit_answers`](crate::names::stream::admit_answers)
    fn admit_answers(&self) -> u32;
    /// [`end_reading`](crate::names::stream::end_reading)
    fn end_reading(&self);
    /// [`is_resolver`](crate::names::stream::is_resolver)
    fn is_resolver(&self) -> bool;
    /// [`next_message`](crate::names::stream::next_message)
    fn next_message(&self) -> u32;
    /// [`check_answer`](crate::names::conversation::check_answer)
    fn check_answer(&self) -> bool;
    /// [`next_record`](crate::names::conversation::next_record)
    fn next_record(&self) -> u32;
    /// [`learn_address`](crate::names::conversation::learn_address)
    fn learn_address(&self, index: u32) -> bool;
    /// [`copy_some`](crate::names::stream::copy_some)
    fn copy_some(&self, keeps: bool) -> bool;
    /// [`is_incomplete`](crate::names::stream::is_incomplete)
    fn is_incomplete(&self) -> bool;
    /// [`release`](crate::names::stream::release)
    fn release(&self);
    /// [`admit_questions`](crate::names::stream::admit_questions)
    fn admit_questions(&self, may_be_translated: bool) -> u32;
    /// [`next_question`](crate::names::stream::next_question)
    fn next_question(&self) -> u32;
    /// [`record_question`](crate::names::conversation::record_question)
    fn record_question(&self);
}

/// Reads a TCP packet to a pod; whether it passes. All addresses in it are recorded before it passes.
#[must_use]
#[inline(always)]
pub fn read_answers<S: Steps>(steps: &S) -> bool {
    if !steps.parse_segment::<Ingress>() {
        return true;
    }
    let result = steps.admit_answers();
    if result != READS {
        return passes(steps, result);
    }
    copy(steps, false);
    let mut is_answer = false;
    for _ in 0..STEPS {
        let result = if is_answer { steps.next_record() } else { steps.next_message() };
        if result == END && !is_answer {
            break;
        }
        if result == END {
            is_answer = false;
        } else if result == MESSAGE_ENDS {
            is_answer = steps.check_answer();
        } else if result == ADDRESS {
            for index in 0..NAME_MATCHES as u32 {
                if !steps.learn_address(index) {
                    break;
                }
            }
        }
    }
    if steps.is_incomplete() {
        copy(steps, true);
    }
    steps.release();
    true
}

#[inline(always)]
fn passes<S: Steps>(steps: &S, result: u32) -> bool {
    if result == ENDS {
        steps.end_reading();
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
pub fn end_unread<D: PodDirection, S: Steps>(steps: &S) {
    if steps.parse_segment::<D>() && (D::EGRESS || steps.is_resolver()) {
        steps.end_reading();
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

/// Reads a TCP packet of a pod; whether it passes. `may_be_translated`: see [`admit_questions`](crate::names::stream::admit_questions).
#[must_use]
#[inline(always)]
pub fn read_questions<S: Steps>(steps: &S, may_be_translated: bool) -> bool {
    if !steps.parse_segment::<Egress>() {
        return true;
    }
    let result = steps.admit_questions(may_be_translated);
    if result != READS {
        return passes(steps, result);
    }
    for _ in 0..QUESTIONS {
        if steps.next_question() != MESSAGE_ENDS {
            break;
        }
        steps.record_question();
    }
    true
}

const _: () = assert!(STEPS >= 2 * RECORDS);
