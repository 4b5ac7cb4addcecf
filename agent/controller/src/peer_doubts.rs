//! Peer slices with a write of unknown outcome.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time after which a request without an answer has no effect any more: API servers end requests after 60 s.
const LINGERS: Duration = Duration::from_secs(70);
/// Number from which on all slices are read at once.
pub(super) const MANY: usize = 64;

/// Effect of a failed write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteFailure {
    /// The server refused it.
    None,
    /// The server refused it, since its state of the slice is another one than the known one.
    Conflict,
    /// It may have taken effect, or may do so later.
    Unknown,
}

impl WriteFailure {
    /// Returns the effect of a write that failed.
    pub(super) fn from_error(error: &kube::Error) -> Self {
        let kube::Error::Api(status) = error else { return Self::Unknown };
        match status.code {
            404 | 409 => Self::Conflict,
            400..=407 | 410..500 => Self::None,
            _ => Self::Unknown,
        }
    }
}

/// Slices to be read again.
#[derive(Debug, Default)]
pub(super) struct PeerDoubts(BTreeMap<String, Doubt>);

#[derive(Debug)]
struct Doubt {
    /// Beginning of the last read after the last failure.
    read: Option<Instant>,
    /// Time until which it may change.
    until: Instant,
}

impl PeerDoubts {
    /// Takes in that a write of a slice failed.
    pub(super) fn failed(&mut self, name: &str, outcome: WriteFailure, now: Instant) {
        let until = match outcome {
            WriteFailure::None => return,
            WriteFailure::Conflict => now,
            WriteFailure::Unknown => now + LINGERS,
        };
        let doubt = self.0.entry(name.to_owned()).or_insert(Doubt { read: None, until });
        *doubt = Doubt { read: None, until: doubt.until.max(until) };
    }

    /// Takes in that a slice was read, by a read with this beginning.
    pub(super) fn is_read(&mut self, name: &str, began: Instant) {
        if let Some(doubt) = self.0.get_mut(name) {
            doubt.read = Some(began);
            if doubt.until <= began {
                self.0.remove(name);
            }
        }
    }

    /// Whether a slice was not read after a failure; then its state is unknown.
    pub(super) fn is_unread(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|doubt| doubt.read.is_none())
    }

    /// Returns the slices that were not read since their last failure, or not since this time.
    pub(super) fn unread(&self, since: Option<Instant>) -> Vec<String> {
        let is_unread =
            |doubt: &Doubt| doubt.read.is_none_or(|read| since.is_some_and(|since| read < since));
        self.0.iter().filter(|(_, doubt)| is_unread(doubt)).map(|(name, _)| name.clone()).collect()
    }

    /// Whether there are so many unread slices that all slices should be read.
    pub(super) fn are_many(&self) -> bool {
        self.0.values().filter(|doubt| doubt.read.is_none()).count() >= MANY
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_write_without_an_answer_is_doubted_until_no_server_can_carry_it_out() {
        let (mut doubts, now) = (PeerDoubts::default(), Instant::now());
        let api = |code: u16| {
            WriteFailure::from_error(&kube::Error::Api(Box::new(
                Status::failure("", "").with_code(code),
            )))
        };
        let outcomes = [422, 409, 404, 503, 408].map(api);
        let [refused, conflict, gone, unavailable, late] = outcomes;
        assert_eq!(
            (refused, conflict, gone),
            (WriteFailure::None, WriteFailure::Conflict, WriteFailure::Conflict)
        );
        assert_eq!((unavailable, late), (WriteFailure::Unknown, WriteFailure::Unknown));
        let lost = WriteFailure::from_error(&kube::Error::Service("no answer in time".into()));
        doubts.failed("refused", refused, now);
        doubts.failed("conflict", conflict, now);
        doubts.failed("lost", lost, now);
        assert_eq!(doubts.unread(None), ["conflict", "lost"]);
        assert!(doubts.is_unread("lost") && !doubts.is_unread("refused"));
        ["conflict", "lost"].into_iter().for_each(|name| doubts.is_read(name, now));
        assert!(!doubts.is_unread("lost") && doubts.unread(Some(now)).is_empty());
        let beat = now + Duration::from_secs(3);
        assert_eq!(doubts.unread(Some(beat)), ["lost"], "before each heartbeat");
        doubts.failed("lost", conflict, now);
        assert!(doubts.is_unread("lost"));
        doubts.is_read("lost", now + LINGERS / 2);
        assert_eq!(doubts.unread(Some(now + LINGERS)), ["lost"]);
        doubts.is_read("lost", now + LINGERS);
        assert!(doubts.unread(Some(now + 2 * LINGERS)).is_empty());
    }
}
