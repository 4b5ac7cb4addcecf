//! Observes the enforced state after each step of the engine, and for how long the desired state has been out of force.

use std::sync::Arc;
use std::time::{Duration, Instant};

use netpold_core::model::Key;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::published::{AgentState, PASSING};
use crate::engine::enforcement::PodEnforcement;

/// Least time between two observations: each holds the engine's lock.
const PACE: Duration = Duration::from_millis(200);
/// An observation may hold that lock for one part in this many of the time. The wait for the lock does not count: it
/// takes 15 s while a slow machine loads the programs.
const SHARE: u32 = 20;
/// Longest time between two observations without a notification.
const IDLE: Duration = Duration::from_secs(5);

/// Observed state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ObservedState {
    pub(super) state: AgentState,
    /// Whether the source's state has been in force since the agent started.
    pub(super) begun: bool,
    /// Time since when no desired revision has come into force; `None`: all are in force.
    pub(super) behind_since: Option<Instant>,
}

impl ObservedState {
    /// Returns whether all of the source's state is in force.
    pub(super) fn is_current(&self) -> bool {
        self.state.in_sync && self.state.enforcement.behind.is_none()
    }

    /// Returns whether the desired state has been out of force for [`PASSING`].
    pub(super) fn is_behind(&self) -> bool {
        self.behind_since.is_some_and(|since| since.elapsed() >= PASSING)
    }

    /// Returns why part of the source's state is not in force.
    pub(super) fn reason_not_in_force(&self) -> Option<&str> {
        let unknown = (!self.state.in_sync).then_some("the object source is not in sync yet");
        unknown.or(self.state.enforcement.behind.as_deref())
    }

    pub(super) fn pod(&self, key: &Key, uid: &str) -> Option<&PodEnforcement> {
        self.state.enforcement.pods.get(key).filter(|pod| pod.uid == uid)
    }

    /// Returns the state after another observation. A newly enforced revision is progress: under endless changes, one
    /// update is always pending.
    fn next(&self, state: AgentState, now: Instant) -> Self {
        let revision = |state: &AgentState| state.enforcement.revision.enforced;
        let progress = revision(&state) != revision(&self.state);
        let mut next = Self { state, begun: self.begun, behind_since: None };
        if next.is_current() {
            next.begun = true;
        } else {
            next.behind_since = self.behind_since.filter(|_| !progress).or(Some(now));
        }
        next
    }
}

/// Observes the agent and publishes its state to the writers.
pub(super) struct StateObserver<F> {
    state: Arc<F>,
    seen: watch::Sender<Arc<ObservedState>>,
}

impl<F: Fn() -> (AgentState, Duration) + Send + Sync + 'static> StateObserver<F> {
    pub(super) fn new(state: F, seen: watch::Sender<Arc<ObservedState>>) -> Self {
        Self { state: Arc::new(state), seen }
    }

    /// Observes after each notification, until all receivers are dropped.
    pub(super) async fn run(self, ring: Arc<Notify>) {
        while !self.seen.is_closed() {
            let state = Arc::clone(&self.state);
            let Ok((state, held)) = tokio::task::spawn_blocking(move || state()).await else {
                return;
            };
            self.seen.send_if_modified(|seen| {
                let next = seen.next(state, Instant::now());
                let modified = **seen != next;
                *seen = Arc::new(next);
                modified
            });
            sleep(PACE.max(held * SHARE)).await;
            // After a timeout it observes without a notification.
            let _ = timeout(IDLE, ring.notified()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use netpold_api::status::Revision;

    use super::*;
    use crate::engine::enforcement::EnforcementState;

    fn state(in_sync: bool, behind: Option<&str>, enforced: u64) -> AgentState {
        let revision = Revision { desired: enforced, enforced };
        let behind = behind.map(str::to_owned);
        let enforcement = EnforcementState { revision, behind, ..EnforcementState::default() };
        AgentState { enforcement, problems: Vec::new(), in_sync }
    }

    #[test]
    fn nothing_has_begun_before_everything_is_known_and_in_force() {
        let now = Instant::now();
        let seen = ObservedState::default().next(state(false, None, 1), now);
        assert!(!seen.begun && !seen.is_current());
        let seen = seen.next(state(true, Some("writing"), 1), now);
        assert!(!seen.begun && !seen.is_current());
        let seen = seen.next(state(true, None, 1), now).next(state(true, Some("writing"), 1), now);
        assert!(seen.begun && !seen.is_current() && !seen.is_behind());
    }

    #[test]
    fn an_update_after_another_is_not_behind() {
        let Some(long_ago) = Instant::now().checked_sub(2 * PASSING) else { return };
        let seen = ObservedState::default().next(state(true, Some("writing"), 1), long_ago);
        let seen = seen.next(state(true, Some("writing"), 1), Instant::now());
        assert!(seen.is_behind(), "nothing came into force");
        let seen = seen.next(state(true, Some("writing"), 2), Instant::now());
        assert!(!seen.is_behind());
    }

    #[tokio::test]
    async fn a_look_that_waited_for_the_lock_is_followed_by_another_at_once() {
        const WAITED: Duration = Duration::from_millis(500);
        let looks = AtomicU64::new(0);
        let state = move || {
            let revision = looks.fetch_add(1, Ordering::Relaxed);
            if revision == 0 {
                std::thread::sleep(WAITED);
            }
            (state(true, None, revision), Duration::ZERO)
        };
        let (sender, mut seen) = watch::channel(Arc::new(ObservedState::default()));
        let ring = Arc::new(Notify::new());
        let observer = tokio::spawn(StateObserver::new(state, sender).run(Arc::clone(&ring)));
        assert!(seen.wait_for(|seen| seen.begun).await.is_ok());
        ring.notify_one();
        let second = seen.wait_for(|seen| seen.state.enforcement.revision.enforced > 0);
        assert!(timeout(WAITED * SHARE / 2, second).await.is_ok());
        observer.abort();
    }
}
