//! An outage of the API server: every kind fails, one of them keeps asking, and its success wakes the others.
//!
//! On its own, each kind would wait out a backoff of up to a minute after the server is back.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard};
use std::time::{Duration, Instant};

use netpold_core::lock::lock;
use tokio::sync::{Mutex, watch};
use tokio::time::{sleep, sleep_until};

/// Shortest pause between two requests of the kind that keeps asking; up to as much is added.
const ASKING: Duration = Duration::from_secs(1);
/// Time within which the other kinds return after the first one's success. Agents on all nodes notice the end of an
/// outage together, so each request is delayed by a random part of it.
const SPREAD: Duration = Duration::from_secs(1);

/// State of following a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Following {
    /// The server answers.
    Works,
    /// The last request failed.
    Fails,
    /// The server does not serve the kind; requests are rare, and this module ignores the kind.
    Rests,
}

/// State shared by all kinds of a cluster.
#[derive(Debug)]
pub(super) struct Outage {
    kinds: StdMutex<Vec<Following>>,
    /// Number of outages that have ended.
    ended: watch::Sender<u64>,
    /// Held by the kind that keeps asking, while it pauses.
    asking: Mutex<()>,
    /// Time of the last answer from etcd to any kind. A server that hangs fails no request for a time.
    answered: StdMutex<Instant>,
}

impl Outage {
    pub(super) fn new() -> Arc<Self> {
        let (ended, _) = watch::channel(0);
        let answered = StdMutex::new(Instant::now());
        Arc::new(Self { kinds: StdMutex::default(), ended, asking: Mutex::default(), answered })
    }

    /// Adds a kind in the state [`Following::Works`].
    pub(super) fn member(self: &Arc<Self>) -> OutageMember {
        self.member_in(Following::Works)
    }

    /// Adds a kind in a state. One that begins late begins with [`Following::Rests`], so that it hides no outage.
    pub(super) fn member_in(self: &Arc<Self>, state: Following) -> OutageMember {
        let mut kinds = self.kinds();
        kinds.push(state);
        OutageMember { outage: Arc::clone(self), number: kinds.len() - 1 }
    }

    /// Returns whether no kind works, and at least one fails.
    pub(super) fn is_on(&self) -> bool {
        is_outage(&self.kinds())
    }

    /// Returns the time of the server's last answer from etcd.
    pub(super) fn answered(&self) -> Instant {
        *lock(&self.answered)
    }

    /// Takes in an answer of the server from etcd.
    pub(super) fn set_answered(&self, at: Instant) {
        let mut answered = lock(&self.answered);
        *answered = at.max(*answered);
    }

    fn kinds(&self) -> MutexGuard<'_, Vec<Following>> {
        lock(&self.kinds)
    }
}

/// Returns whether no kind works, and at least one fails.
fn is_outage(kinds: &[Following]) -> bool {
    kinds.contains(&Following::Fails) && !kinds.contains(&Following::Works)
}

/// One kind's membership in an [`Outage`].
#[derive(Debug)]
pub(super) struct OutageMember {
    outage: Arc<Outage>,
    number: usize,
}

impl OutageMember {
    /// Sets the state of following the kind. The first kind that works again ends the outage.
    pub(super) fn set(&self, now: Following) {
        let mut kinds = self.outage.kinds();
        let was_outage = is_outage(&kinds);
        if let Some(kind) = kinds.get_mut(self.number) {
            *kind = now;
        }
        if was_outage && now == Following::Works {
            self.outage.ended.send_modify(|ended| *ended += 1);
        }
    }

    /// Takes in an answer from etcd. Events of a watch are none: an API server sends bookmarks without etcd too.
    pub(super) fn set_answered(&self) {
        self.outage.set_answered(Instant::now());
    }

    /// Waits before the next request: for `backoff`, or less in an outage.
    pub(super) async fn pause(&self, backoff: Duration) {
        let mut ended = self.outage.ended.subscribe();
        let until = tokio::time::Instant::now() + backoff;
        let outage = self.outage.is_on();
        if let Some(_asking) = outage.then(|| self.outage.asking.try_lock().ok()).flatten() {
            let soon = tokio::time::Instant::now() + ASKING + random_part(ASKING);
            return sleep_until(until.min(soon)).await;
        }
        tokio::select! {
            () = sleep_until(until) => {}
            Ok(()) = ended.changed() => sleep(random_part(SPREAD)).await,
        }
    }
}

/// A kind that is no longer followed does not count.
impl Drop for OutageMember {
    fn drop(&mut self) {
        self.set(Following::Rests);
    }
}

/// Returns a random part of a duration, since agents on all nodes see a change together.
#[must_use]
pub fn random_part(of: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) % 1000;
    of * u32::try_from(random).unwrap_or(0) / 1000
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::time::timeout;

    use super::*;

    /// Longer than any test.
    const BACKOFF: Duration = Duration::from_hours(1);
    const PATIENCE: Duration = Duration::from_mins(1);

    /// Sends requests to a server as a follower does, until the server answers.
    async fn follow(member: OutageMember, server: Arc<AtomicBool>) {
        while !server.load(Ordering::Relaxed) {
            member.set(Following::Fails);
            member.pause(BACKOFF).await;
        }
        member.set(Following::Works);
    }

    #[tokio::test]
    async fn every_kind_returns_after_an_outage() {
        let (outage, server) = (Outage::new(), Arc::new(AtomicBool::new(false)));
        let mut kinds = tokio::task::JoinSet::new();
        for member in (0..6).map(|_| outage.member()).collect::<Vec<_>>() {
            kinds.spawn(follow(member, Arc::clone(&server)));
        }
        sleep(Duration::from_millis(50)).await;
        server.store(true, Ordering::Relaxed);
        let all = timeout(PATIENCE, kinds.join_all()).await;
        assert!(all.is_ok(), "{:?}", outage.kinds());
    }

    /// A kind that fails alone keeps to its backoff: another kind's success does not wake it.
    #[tokio::test]
    async fn a_kind_that_fails_alone_waits() {
        let outage = Outage::new();
        let (alone, other) = (outage.member(), outage.member());
        alone.set(Following::Fails);
        let (began, backoff) = (Instant::now(), 2 * ASKING);
        let works = async {
            sleep(Duration::from_millis(50)).await;
            other.set(Following::Works);
        };
        tokio::join!(alone.pause(backoff), works);
        assert!(began.elapsed() >= backoff, "{:?}", began.elapsed());
    }

    /// A kind that the server does not serve neither causes an outage nor hides one.
    #[tokio::test]
    async fn a_kind_that_rests_counts_for_nothing() {
        let outage = Outage::new();
        let (rests, kind) = (outage.member(), outage.member());
        rests.set(Following::Rests);
        assert!(!is_outage(&outage.kinds()));
        kind.set(Following::Fails);
        assert!(timeout(PATIENCE, kind.pause(BACKOFF)).await.is_ok());
        kind.set(Following::Rests);
        assert!(!is_outage(&outage.kinds()));
    }

    #[test]
    fn a_kind_that_begins_in_an_outage_does_not_hide_it() {
        let outage = Outage::new();
        let kind = outage.member();
        kind.set(Following::Fails);
        let late = outage.member_in(Following::Rests);
        assert!(outage.is_on());
        let before = outage.answered();
        late.set(Following::Fails);
        assert!(outage.is_on() && outage.answered() == before);
        late.set(Following::Works);
        assert!(!outage.is_on() && outage.answered() == before, "an event may come without etcd");
        late.set_answered();
        assert!(outage.answered() > before);
    }
}
