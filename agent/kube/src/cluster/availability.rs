//! Availability of a kind on its server: the status, and the meaning of failures.

use std::time::Duration;

use netpold_api::source::KindStatus;
use netpold_api::unix_time::unix_time;

use super::failure::Failure;
use super::kind::Absence;

/// Refusals in a row after which an optional kind counts as refused: a starting server does not have its RBAC rules and
/// CRDs yet.
const REFUSALS: u32 = 3;
/// Answers in a row that the server does not serve an optional kind after which the known objects are removed.
const ABSENCES: u32 = 2;

/// Availability of one kind.
#[derive(Debug)]
pub(super) struct Availability {
    absence: Absence,
    /// Number of answers in a row that the kind is not served or not allowed.
    missing: u32,
    pub(super) status: KindStatus,
}

/// Meaning of a failure for the known objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureMeaning {
    /// None: a later request may succeed.
    Nothing,
    /// The known objects are complete: nothing waits for a list.
    KnownIsAll,
    /// The known objects no longer exist.
    AllGone,
}

impl Availability {
    /// Creates the state of the kind of this name before any answer.
    pub(super) fn new(kind: String, absence: Absence) -> Self {
        Self { absence, missing: 0, status: KindStatus { kind, ..KindStatus::default() } }
    }

    /// Records a good answer of the server.
    pub(super) fn heard(&mut self) {
        self.status.last_event = Some(unix_time().as_secs());
        self.status.served = true;
        self.status.error = None;
        self.status.unreachable = false;
        self.missing = 0;
    }

    /// Returns the pause before another request for a kind that the server does not serve.
    pub(super) const fn pause(&self) -> Duration {
        self.absence.pause(self.missing)
    }

    /// Returns whether the server is known not to serve the kind, so that another such answer changes nothing.
    pub(super) const fn is_absent(&self) -> bool {
        self.missing >= ABSENCES && self.status.in_sync && !self.status.served
    }

    /// Records a failed request. `text` describes the failure for people; `known` is the number of known objects.
    pub(super) fn failed(
        &mut self,
        failure: &Failure,
        text: String,
        known: usize,
    ) -> FailureMeaning {
        let absent = matches!(failure, Failure::NotServed);
        let refused = matches!(failure, Failure::Forbidden(_) | Failure::NoPath(_));
        self.missing = if absent || refused { self.missing.saturating_add(1) } else { 0 };
        self.status.unreachable = failure.is_unreachable();
        if !(absent && self.absence == Absence::Usual) {
            self.status.restarts += 1;
        }
        match self.absence {
            Absence::Unusual if absent => {
                self.status.served = false;
                self.status.in_sync = true;
                self.status.error = Some(format!("{text}; it counts as empty"));
                FailureMeaning::KnownIsAll
            }
            Absence::Usual if absent => {
                self.status.served = false;
                self.status.error = None;
                self.status.last_event = None;
                if known > 0 && self.missing < ABSENCES {
                    return FailureMeaning::Nothing;
                }
                self.status.in_sync = true;
                FailureMeaning::AllGone
            }
            Absence::Usual if refused && self.missing >= REFUSALS => {
                let outcome = "its last known objects stay, everything else is enforced without it";
                self.status.error = Some(format!("{text}; {outcome}"));
                FailureMeaning::KnownIsAll
            }
            Absence::Wrong | Absence::Unusual | Absence::Usual => {
                self.status.error = Some(text);
                FailureMeaning::Nothing
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the meaning of a failure that occurs `times` in a row, and the error then shown.
    fn after(absence: Absence, failure: &Failure, times: u32) -> (FailureMeaning, Option<String>) {
        let mut kind = Availability::new("pods".into(), absence);
        kind.heard();
        let mut failed = || kind.failed(failure, "no".into(), 1);
        let meaning = (1..times).fold(failed(), |_, _| failed());
        (meaning, kind.status.error)
    }

    #[test]
    fn what_a_failure_means_depends_on_the_kind_and_on_how_often_it_comes() {
        let (absent, refused) = (Failure::NotServed, Failure::Forbidden("no".into()));
        let error = |text: &str| Some(text.to_owned());
        assert_eq!(after(Absence::Wrong, &absent, 9), (FailureMeaning::Nothing, error("no")));
        let empty = error("no; it counts as empty");
        assert_eq!(after(Absence::Unusual, &absent, 1), (FailureMeaning::KnownIsAll, empty));
        assert_eq!(after(Absence::Unusual, &refused, 9), (FailureMeaning::Nothing, error("no")));
        assert_eq!(after(Absence::Usual, &absent, 1), (FailureMeaning::Nothing, None));
        assert_eq!(after(Absence::Usual, &absent, 2), (FailureMeaning::AllGone, None));
        assert_eq!(after(Absence::Usual, &refused, 2), (FailureMeaning::Nothing, error("no")));
        assert_eq!(after(Absence::Usual, &refused, 3).0, FailureMeaning::KnownIsAll);
    }

    #[test]
    fn only_answers_in_a_row_count() {
        let mut kind = Availability::new("pods".into(), Absence::Usual);
        let mut failed = |failure: Failure| kind.failed(&failure, "no".into(), 1);
        assert_eq!(failed(Failure::NotServed), FailureMeaning::Nothing);
        assert_eq!(failed(Failure::Unreachable("no".into())), FailureMeaning::Nothing);
        assert_eq!(failed(Failure::NotServed), FailureMeaning::Nothing);
        kind.heard();
        assert_eq!(
            kind.failed(&Failure::NotServed, "no".into(), 0),
            FailureMeaning::AllGone,
            "there was none"
        );
        assert_eq!((kind.status.restarts, kind.status.in_sync), (1, true));
    }

    #[test]
    fn what_is_known_to_be_absent_is_asked_for_less_often() {
        let mut kind = Availability::new("pods".into(), Absence::Usual);
        let mut seen = Vec::new();
        for _ in 0..9 {
            kind.failed(&Failure::NotServed, "no".into(), 0);
            seen.push((kind.is_absent(), kind.pause().as_secs()));
        }
        let pauses: Vec<u64> = seen.iter().map(|(_, pause)| *pause).collect();
        assert_eq!(pauses, [20, 20, 20, 50, 100, 200, 300, 300, 300]);
        assert!(seen.iter().skip(1).all(|(is_absent, _)| *is_absent) && !seen[0].0);
        kind.heard();
        kind.failed(&Failure::NoPath("no".into()), "no".into(), 3);
        assert!(!kind.is_absent(), "it was served: whether it still is has to be asked");
        assert_eq!(kind.pause().as_secs(), 20);
    }
}
