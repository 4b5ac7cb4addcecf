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
    /// Number of the last heartbeat, by a list or an event.
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
    /// Time of the API server's last answer from etcd.
    answered: Instant,
    /// Whether the API server answers no kind.
    is_outage: bool,
    /// Length of all outages that have ended.
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
            answered: now,
            is_outage: false,
            outages: Duration::ZERO,
            unusable: Some(Duration::ZERO),
            was_used: false,
            jitter: Duration::ZERO,
        }
    }

    /// Takes in a heartbeat; returns whether it is a renewal. A heartbeat in a list is not a renewal, since the
    /// controller may have ended long before. An event is one if its number differs from the last.
    pub(super) fn beat(
        &mut self,
        number: i64,
        pods_version: u64,
        is_listed: bool,
        now: Instant,
    ) -> bool {
        let is_renewal = !is_listed && self.number.is_some_and(|before| before != number);
        self.number = Some(number);
        if is_renewal {
            self.set_answered(now, false, now);
            if self.steady.is_none() || !self.is_renewed(now) {
                self.steady = Some(now);
            }
            self.renewed = Some(now);
            self.renewed_at = self.served();
            self.pods_version = pods_version;
        }
        is_renewal
    }

    /// Takes in the time of the API server's last answer, and whether every kind's last request failed. The controller
    /// cannot write while the server does not answer, so an outage is not silence of the controller; nor is it a
    /// renewal.
    pub(super) fn set_answered(&mut self, answered: Instant, is_failing: bool, now: Instant) {
        let hangs = self.times.reported * 3 / 2;
        let pause = answered.saturating_duration_since(self.answered);
        let was_outage = self.is_outage || pause >= hangs;
        if was_outage {
            self.outages += pause;
        }
        self.answered = self.answered.max(answered);
        self.is_outage = is_failing || now.saturating_duration_since(self.answered) >= hangs;
        if was_outage || self.is_outage {
            self.steady = None;
        }
    }

    /// Whether a request should show that the API server answers: another answer is overdue, or would have effects.
    pub(super) fn wants_answer(&self, now: Instant) -> bool {
        let pause = now.saturating_duration_since(self.answered);
        let with_answer = self.served() + pause;
        let is_reported = |served| self.silence_at(served) >= self.times.reported;
        let has_effects = is_reported(with_answer) != is_reported(self.served())
            || self.is_lost_at(with_answer, now) != self.is_lost_at(self.served(), now);
        pause >= self.times.reported || has_effects
    }

    /// Whether the API server answers no kind.
    pub(super) const fn is_outage(&self) -> bool {
        self.is_outage
    }

    /// Returns the time from the start to the API server's last answer, without outages.
    pub(super) fn served(&self) -> Duration {
        self.answered.saturating_duration_since(self.start).saturating_sub(self.outages)
    }

    /// Takes in that slices are used, with a random time to add to the patience after the next silence.
    pub(super) const fn used(&mut self, jitter: Duration) {
        self.was_used = true;
        self.jitter = jitter;
    }

    /// Takes in whether slices are usable.
    pub(super) fn set_usable(&mut self, is_usable: bool) {
        let now = self.served();
        self.unusable = (!is_usable).then(|| self.unusable.unwrap_or(now));
    }

    /// Returns the time without renewal, if it is to be reported.
    pub(super) fn silence(&self) -> Option<Duration> {
        let silence = self.silence_at(self.served());
        (!self.is_outage && silence >= self.times.reported).then_some(silence)
    }

    const fn silence_at(&self, served: Duration) -> Duration {
        served.saturating_sub(self.renewed_at)
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
        !self.is_outage && self.is_lost_at(self.served(), now)
    }

    fn is_lost_at(&self, served: Duration, now: Instant) -> bool {
        let Some(since) = self.unusable else { return false };
        // What was renewed last is as old as that.
        let since = if self.is_renewed(now) { since } else { since.min(self.renewed_at) };
        let patience = if self.was_used { self.times.patience } else { self.times.reported };
        served.saturating_sub(since) >= patience + self.jitter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn health(start: Instant) -> SliceHealth {
        SliceHealth::new(PeerTimes::default(), start)
    }

    /// Returns the silence, with an answer of the API server every second until this moment unless there is an outage.
    fn silence(health: &mut SliceHealth, at: Instant) -> Option<Duration> {
        while !health.is_outage() && health.answered < at {
            let answered = health.answered + SECOND;
            health.set_answered(answered, false, answered);
        }
        health.silence()
    }

    /// Returns whether slices are lost, in the same way.
    fn is_lost(health: &mut SliceHealth, at: Instant) -> bool {
        silence(health, at);
        health.is_lost(at)
    }

    #[test]
    fn the_first_heartbeat_may_be_of_any_age() {
        let start = Instant::now();
        let mut health = health(start);
        assert!(!health.beat(7, 0, false, start) && !health.is_renewed(start));
        assert!(!health.beat(7, 0, false, start + SECOND) && !health.is_renewed(start + SECOND));
        assert!(
            health.beat(8, 5, false, start + 2 * SECOND) && health.is_renewed(start + 2 * SECOND)
        );
        assert!(health.contain(5) && !health.contain(6));
        assert!(!health.is_steady(start + 2 * SECOND));
        (3..13).for_each(|n| _ = health.beat(6 + n, 5, false, start + (n as u32) * SECOND));
        assert!(health.is_steady(start + 12 * SECOND));
    }

    #[test]
    fn an_outage_is_neither_a_silence_nor_a_renewal() {
        let start = Instant::now();
        let at = |seconds: u32| start + seconds * SECOND;
        let mut health = health(start);
        health.beat(1, 0, false, start);
        health.beat(2, 0, false, start);
        health.used(5 * SECOND);
        health.set_usable(true);
        assert_eq!(silence(&mut health, at(9)), None);
        assert_eq!(silence(&mut health, at(10)), Some(10 * SECOND));
        health.set_usable(false);
        silence(&mut health, at(20));
        health.set_answered(at(20), true, at(20));
        assert!(!health.is_lost(at(90)));
        assert_eq!(health.silence(), None);
        health.set_answered(at(100), false, at(100));
        // The controller is silent as before.
        assert!(!health.is_renewed(at(100)) && !health.is_steady(at(100)));
        assert_eq!(silence(&mut health, at(101)), Some(21 * SECOND));
        assert!(!is_lost(&mut health, at(114)));
        assert!(is_lost(&mut health, at(115)));
    }

    #[test]
    fn outages_one_after_the_other_hide_no_silence() {
        let start = Instant::now();
        let mut health = health(start);
        health.used(Duration::ZERO);
        for minute in 0..4 {
            let at = start + 60 * minute * SECOND;
            assert_eq!(is_lost(&mut health, at + 9 * SECOND), minute == 3, "36 s of silence");
            health.set_answered(at + 9 * SECOND, true, at + 9 * SECOND);
            health.set_answered(at + 60 * SECOND, false, at + 60 * SECOND);
        }
    }

    #[test]
    fn a_server_that_hangs_is_no_silence_of_the_controller() {
        let start = Instant::now();
        let at = |seconds: u32| start + seconds * SECOND;
        let mut health = health(start);
        health.beat(1, 0, true, start);
        health.beat(2, 0, false, start);
        health.used(Duration::ZERO);
        health.set_usable(true);
        health.set_usable(false);
        assert!(!health.wants_answer(at(9)) && health.wants_answer(at(10)));
        // No request fails, and none is answered.
        health.set_answered(start, false, at(200));
        assert!(health.is_outage() && !health.is_lost(at(200)) && health.silence().is_none());
        // An agent that was stopped meanwhile learns of the end alone.
        for until in [300, 600] {
            health.set_answered(at(until), false, at(until));
            assert!(!health.is_outage() && !health.is_lost(at(until)));
            assert_eq!(health.silence(), None);
        }
        // The server answers, and the controller is silent.
        assert!((601..630).all(|second| !is_lost(&mut health, at(second))));
        assert_eq!(health.silence(), Some(29 * SECOND));
        assert!(health.wants_answer(at(630)), "the answer would have effects");
        assert!(is_lost(&mut health, at(630)));
    }

    #[test]
    fn a_heartbeat_of_a_list_is_no_renewal() {
        let start = Instant::now();
        let mut health = health(start);
        health.beat(1, 0, true, start);
        assert!(!health.beat(5, 9, true, start) && !health.contain(9));
        assert!(!health.beat(5, 9, false, start), "the same one");
        assert!(health.beat(6, 9, false, start) && health.contain(9));
    }

    #[test]
    fn after_an_outage_slices_have_to_be_renewed_anew() {
        let start = Instant::now();
        let at = |seconds: u32| start + seconds * SECOND;
        let mut health = health(start);
        (0..20).for_each(|n| _ = health.beat(n.into(), 0, false, at(n)));
        assert!(health.is_steady(at(19)));
        health.set_answered(at(20), true, at(20));
        health.set_answered(at(21), false, at(21));
        assert!(health.is_renewed(at(21)) && !health.is_steady(at(21)));
        (22..33).for_each(|n| _ = health.beat(n.into(), 0, false, at(n)));
        assert!(!health.is_steady(at(31)) && health.is_steady(at(32)));
    }

    #[test]
    fn slices_that_are_renewed_and_not_usable_are_lost_after_the_same_time() {
        let start = Instant::now();
        let at = |seconds: u32| start + seconds * SECOND;
        let mut health = health(start);
        health.used(Duration::ZERO);
        let beat = |health: &mut SliceHealth, n: u32| _ = health.beat(n.into(), 0, false, at(n));
        (0..16).for_each(|n| beat(&mut health, n));
        health.set_usable(true);
        health.set_usable(false);
        (16..45).for_each(|n| beat(&mut health, n));
        health.set_usable(false);
        assert!(!health.is_lost(at(44)));
        beat(&mut health, 45);
        assert!(health.is_lost(at(45)));
        health.set_usable(true);
        assert!(!health.is_lost(at(45)));
    }
}
