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
    /// Number of the last heartbeat, and whether it was seen to change.
    number: Option<i64>,
    /// Time of the last renewal; before the first one, of the start. An outage of the API server moves it, since the
    /// controller cannot write then either.
    renewed: Instant,
    /// Start of the present series of renewals without a silence of [`PeerTimes::reported`]; `None`: silence, or none yet.
    steady: Option<Instant>,
    /// Whether the API server does not answer.
    is_outage: bool,
    /// Whether slices were ever used.
    was_used: bool,
    /// Random time added to the patience.
    jitter: Duration,
}

impl SliceHealth {
    pub(super) const fn new(times: PeerTimes, now: Instant) -> Self {
        Self {
            times,
            number: None,
            renewed: now,
            steady: None,
            is_outage: false,
            was_used: false,
            jitter: Duration::ZERO,
        }
    }

    /// Takes in a heartbeat; returns whether it is a renewal. The first one may be of any age.
    pub(super) fn beat(&mut self, number: i64, now: Instant) -> bool {
        let is_renewal = self.number.is_some_and(|before| before != number);
        self.number = Some(number);
        if is_renewal {
            if self.steady.is_none() || now.duration_since(self.renewed) >= self.times.reported {
                self.steady = Some(now);
            }
            self.renewed = now;
        }
        is_renewal
    }

    /// Takes in whether the API server answers.
    pub(super) fn set_outage(&mut self, is_outage: bool, now: Instant) {
        if self.is_outage || is_outage {
            self.renewed = self.renewed.max(now);
        }
        self.is_outage = is_outage;
    }

    /// Takes in that slices are used, with a random time to add to the patience after the next silence.
    pub(super) const fn used(&mut self, jitter: Duration) {
        self.was_used = true;
        self.jitter = jitter;
    }

    /// Returns the time without renewal, if it is to be reported.
    pub(super) fn silence(&self, now: Instant) -> Option<Duration> {
        let silence = now.duration_since(self.renewed);
        (!self.is_outage && silence >= self.times.reported).then_some(silence)
    }

    /// Returns whether slices are renewed.
    pub(super) fn is_renewed(&self, now: Instant) -> bool {
        self.steady.is_some() && now.duration_since(self.renewed) < self.times.reported
    }

    /// Returns whether slices have been renewed long enough to be used again.
    pub(super) fn is_steady(&self, now: Instant) -> bool {
        self.is_renewed(now)
            && self.steady.is_some_and(|since| now.duration_since(since) >= self.times.steady)
    }

    /// Returns whether all pods are to be followed, if slices have been renewed but unusable since a time.
    pub(super) fn is_lost(&self, unusable: Instant, now: Instant) -> bool {
        let since = if self.is_renewed(now) { unusable } else { unusable.min(self.renewed) };
        let patience = if self.was_used { self.times.patience } else { self.times.reported };
        !self.is_outage && now.duration_since(since) >= patience + self.jitter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_first_heartbeat_may_be_of_any_age() {
        let start = Instant::now();
        let mut health = SliceHealth::new(PeerTimes::default(), start);
        assert!(!health.beat(7, start) && !health.is_renewed(start));
        assert!(!health.beat(7, start + SECOND) && !health.is_renewed(start + SECOND));
        assert!(health.beat(8, start + 2 * SECOND) && health.is_renewed(start + 2 * SECOND));
        assert!(!health.is_steady(start + 2 * SECOND));
        (3..13).for_each(|n| _ = health.beat(6 + n, start + (n as u32) * SECOND));
        assert!(health.is_steady(start + 12 * SECOND));
    }

    #[test]
    fn silence_is_noticed_unless_the_server_is_away() {
        let start = Instant::now();
        let mut health = SliceHealth::new(PeerTimes::default(), start);
        health.beat(1, start);
        health.beat(2, start);
        health.used(5 * SECOND);
        assert_eq!(health.silence(start + 9 * SECOND), None);
        assert_eq!(health.silence(start + 10 * SECOND), Some(10 * SECOND));
        assert!(!health.is_lost(start + 10 * SECOND, start + 34 * SECOND));
        assert!(health.is_lost(start + 10 * SECOND, start + 35 * SECOND));
        health.set_outage(true, start + 60 * SECOND);
        assert_eq!(health.silence(start + 100 * SECOND), None);
        health.set_outage(false, start + 100 * SECOND);
        assert_eq!(health.silence(start + 109 * SECOND), None);
        assert!(health.silence(start + 110 * SECOND).is_some());
    }
}
