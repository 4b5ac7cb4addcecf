//! Whether slices are renewed, and when all pods are followed instead.

use std::time::{Duration, Instant};

/// Times after which the controller's silence has effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerTimes {
    /// Silence that is reported. An agent that has not judged by slices yet follows all pods after it.
    pub reported: Duration,
    /// Silence after which all pods are followed; a random time is added.
    pub patience: Duration,
    /// Time for which slices must be renewed again before they are used again.
    pub steady: Duration,
}

impl Default for PeerTimes {
    fn default() -> Self {
        Self {
            reported: Duration::from_secs(10),
            patience: Duration::from_secs(30),
            steady: Duration::from_secs(10),
        }
    }
}

/// Renewal of the slices, as an agent sees it.
#[derive(Debug)]
pub(super) struct SliceHealth {
    times: PeerTimes,
    start: Instant,
    /// Number of the last heartbeat; the first one may be of any age.
    number: Option<i64>,
    /// `resourceVersion` of pods in the last renewal.
    pods_version: u64,
    /// Time of the last renewal.
    renewed: Option<Instant>,
    /// The same as a duration since the start, without outages; zero before the first renewal.
    renewed_at: Duration,
    /// Start of the present series of renewals without a silence of [`PeerTimes::reported`]; `None`: silence, an outage, or
    /// none yet.
    steady: Option<Instant>,
    /// Start of the present outage of the API server.
    outage: Option<Instant>,
    /// Length of all earlier outages.
    outages: Duration,
    /// Start of the present time in which slices are not usable, as a duration since the start, without outages.
    unusable: Option<Duration>,
    /// Whether slices were ever used.
    was_used: bool,
    /// Random time added to the patience.
    jitter: Duration,
}

impl SliceHealth {
    pub(super) const fn new(times: PeerTimes, now: Instant) -> Self {
        Self {
            times,
            start: now,
            number: None,
            pods_version: 0,
            renewed: None,
            renewed_at: Duration::ZERO,
            steady: None,
            outage: None,
            outages: Duration::ZERO,
            unusable: Some(Duration::ZERO),
            was_used: false,
            jitter: Duration::ZERO,
        }
    }

    /// Takes in a heartbeat; returns whether it is a renewal. The first one may be of any age.
    pub(super) fn beat(&mut self, number: i64, pods_version: u64, now: Instant) -> bool {
        let is_renewal = self.number.is_some_and(|before| before != number);
        self.number = Some(number);
        if is_renewal {
            if self.steady.is_none() || !self.is_renewed(now) {
                self.steady = Some(now);
            }
            self.renewed = Some(now);
            self.renewed_at = self.served(now);
            self.pods_version = pods_version;
        }
        is_renewal
    }

    /// Takes in whether the API server answers no kind. The controller cannot write then either, so an outage is no silence
    /// of the controller; nor is it a renewal.
    pub(super) fn set_outage(&mut self, is_outage: bool, now: Instant) {
        if is_outage {
            self.outage.get_or_insert(now);
            self.steady = None;
        } else if let Some(since) = self.outage.take() {
            self.outages += now.saturating_duration_since(since);
        }
    }

    /// Whether the API server answers no kind.
    pub(super) const fn is_outage(&self) -> bool {
        self.outage.is_some()
    }

    /// Returns the time since the start, without outages.
    pub(super) fn served(&self, now: Instant) -> Duration {
        let until = self.outage.unwrap_or(now);
        until.saturating_duration_since(self.start).saturating_sub(self.outages)
    }

    /// Takes in that slices are used, with a random time to add to the patience after the next silence.
    pub(super) const fn used(&mut self, jitter: Duration) {
        self.was_used = true;
        self.jitter = jitter;
    }

    /// Takes in whether slices are usable.
    pub(super) fn set_usable(&mut self, is_usable: bool, now: Instant) {
        let now = self.served(now);
        self.unusable = (!is_usable).then(|| self.unusable.unwrap_or(now));
    }

    /// Returns the time without renewal, if it is to be reported.
    pub(super) fn silence(&self, now: Instant) -> Option<Duration> {
        let silence = self.served(now).saturating_sub(self.renewed_at);
        (!self.is_outage() && silence >= self.times.reported).then_some(silence)
    }

    /// Returns whether slices are renewed.
    pub(super) fn is_renewed(&self, now: Instant) -> bool {
        self.renewed.is_some_and(|at| now.saturating_duration_since(at) < self.times.reported)
    }

    /// Returns whether slices have been renewed long enough to be used again.
    pub(super) fn is_steady(&self, now: Instant) -> bool {
        let steady =
            self.steady.is_some_and(|at| now.saturating_duration_since(at) >= self.times.steady);
        steady && self.is_renewed(now)
    }

    /// Returns whether slices contain every change of pods up to a `resourceVersion`.
    pub(super) const fn contain(&self, version: u64) -> bool {
        self.pods_version >= version
    }

    /// Returns whether all pods are to be followed: slices were not usable, or not renewed, for too long.
    pub(super) fn is_lost(&self, now: Instant) -> bool {
        let Some(since) = self.unusable else { return false };
        // What was renewed last is as old as that.
        let since = if self.is_renewed(now) { since } else { since.min(self.renewed_at) };
        let patience = if self.was_used { self.times.patience } else { self.times.reported };
        let silence = self.served(now).saturating_sub(since);
        !self.is_outage() && silence >= patience + self.jitter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn health(start: Instant) -> SliceHealth {
        SliceHealth::new(PeerTimes::default(), start)
    }

    #[test]
    fn the_first_heartbeat_may_be_of_any_age() {
        let start = Instant::now();
        let mut health = health(start);
        assert!(!health.beat(7, 0, start) && !health.is_renewed(start));
        assert!(!health.beat(7, 0, start + SECOND) && !health.is_renewed(start + SECOND));
        assert!(health.beat(8, 5, start + 2 * SECOND) && health.is_renewed(start + 2 * SECOND));
        assert!(health.contain(5) && !health.contain(6));
        assert!(!health.is_steady(start + 2 * SECOND));
        (3..13).for_each(|n| _ = health.beat(6 + n, 5, start + (n as u32) * SECOND));
        assert!(health.is_steady(start + 12 * SECOND));
    }

    #[test]
    fn an_outage_is_neither_a_silence_nor_a_renewal() {
        let start = Instant::now();
        let at = |seconds: u32| start + seconds * SECOND;
        let mut health = health(start);
        health.beat(1, 0, start);
        health.beat(2, 0, start);
        health.used(5 * SECOND);
        health.set_usable(true, start);
        assert_eq!(health.silence(at(9)), None);
        assert_eq!(health.silence(at(10)), Some(10 * SECOND));
        health.set_usable(false, at(10));
        assert!(!health.is_lost(at(34)));
        assert!(health.is_lost(at(35)));
        health.set_outage(true, at(20));
        assert!(!health.is_lost(at(90)));
        assert_eq!(health.silence(at(90)), None);
        health.set_outage(false, at(100));
        // The controller is silent as before.
        assert!(!health.is_renewed(at(100)) && !health.is_steady(at(100)));
        assert_eq!(health.silence(at(101)), Some(21 * SECOND));
        assert!(!health.is_lost(at(114)));
        assert!(health.is_lost(at(115)));
    }

    #[test]
    fn outages_one_after_the_other_hide_no_silence() {
        let start = Instant::now();
        let mut health = health(start);
        health.used(Duration::ZERO);
        for minute in 0..4 {
            let at = start + 60 * minute * SECOND;
            assert_eq!(health.is_lost(at + 9 * SECOND), minute == 3, "36 s of silence");
            health.set_outage(true, at + 9 * SECOND);
            health.set_outage(false, at + 60 * SECOND);
        }
    }

    #[test]
    fn after_an_outage_slices_have_to_be_renewed_anew() {
        let start = Instant::now();
        let at = |seconds: u32| start + seconds * SECOND;
        let mut health = health(start);
        (0..20).for_each(|n| _ = health.beat(n.into(), 0, at(n)));
        assert!(health.is_steady(at(19)));
        health.set_outage(true, at(20));
        health.set_outage(false, at(21));
        assert!(health.is_renewed(at(21)) && !health.is_steady(at(21)));
        (22..33).for_each(|n| _ = health.beat(n.into(), 0, at(n)));
        assert!(!health.is_steady(at(31)) && health.is_steady(at(32)));
    }

    #[test]
    fn slices_that_are_renewed_and_not_usable_are_lost_after_the_same_time() {
        let start = Instant::now();
        let at = |seconds: u32| start + seconds * SECOND;
        let mut health = health(start);
        health.used(Duration::ZERO);
        (0..50).for_each(|n| _ = health.beat(n.into(), 0, at(n)));
        health.set_usable(true, at(10));
        health.set_usable(false, at(15));
        health.set_usable(false, at(30));
        assert!(!health.is_lost(at(44)) && health.is_lost(at(45)));
        health.set_usable(true, at(46));
        assert!(!health.is_lost(at(49)));
    }
}
