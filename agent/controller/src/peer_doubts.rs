//! Peer slices with a write of unknown outcome.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time after which a request without an answer has no effect any more: API servers end requests after 60 s.
const LINGERS: Duration = Duration::from_secs(70);
/// Number from which on all slices are read at once.
const MANY: usize = 64;

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
    /// Whether the slice was read after the last failure.
    is_read: bool,
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
        let doubt = self.0.entry(name.to_owned()).or_insert(Doubt { is_read: false, until });
        *doubt = Doubt { is_read: false, until: doubt.until.max(until) };
    }

    /// Takes in that a slice was read.
    pub(super) fn is_read(&mut self, name: &str, now: Instant) {
        if let Some(doubt) = self.0.get_mut(name) {
            doubt.is_read = true;
            if doubt.until <= now {
                self.0.remove(name);
            }
        }
    }

    /// Whether a slice was not read after a failure; then its state is unknown.
    pub(super) fn is_unread(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|doubt| !doubt.is_read)
    }

    /// Returns the slices to read: all, or those that were not read since.
    pub(super) fn names(&self, all: bool) -> Vec<String> {
        let doubts = self.0.iter().filter(|(_, doubt)| all || !doubt.is_read);
        doubts.map(|(name, _)| name.clone()).collect()
    }

    /// Whether there are so many unread slices that all slices should be read.
    pub(super) fn are_many(&self) -> bool {
        self.0.values().filter(|doubt| !doubt.is_read).count() >= MANY
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
        assert_eq!(doubts.names(false), ["conflict", "lost"]);
        assert!(doubts.is_unread("lost") && !doubts.is_unread("refused"));
        ["conflict", "lost"].into_iter().for_each(|name| doubts.is_read(name, now));
        assert!(!doubts.is_unread("lost") && doubts.names(false).is_empty());
        assert_eq!(doubts.names(true), ["lost"], "before each heartbeat");
        doubts.failed("lost", conflict, now);
        assert!(doubts.is_unread("lost"));
        doubts.is_read("lost", now + LINGERS / 2);
        assert_eq!(doubts.names(true), ["lost"]);
        doubts.is_read("lost", now + LINGERS);
        assert!(doubts.names(true).is_empty());
    }
}
