//! Queue of policies for evaluation. Namespaces take turns: a namespace with thousands of constantly changing policies
//! delays the policy of another namespace by one write.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use netpold_core::model::Key;

/// Delay before an evaluation, so that consecutive changes of a policy cause one write.
const GATHER: Duration = Duration::from_millis(100);
/// Minimum time between two writes of one policy.
const PAUSE: Duration = Duration::from_secs(1);
/// [`GATHER`] of ClusterNetworkPolicies: their evaluation looks at all namespaces, and changes of pods come by the hundred.
const CLUSTER_GATHER: Duration = Duration::from_secs(2);
/// [`PAUSE`] of ClusterNetworkPolicies: every agent watches these objects.
const CLUSTER_PAUSE: Duration = Duration::from_secs(10);
/// Size of `written` at which expired entries are removed.
const REMEMBERED: usize = 10_000;

/// Returns the delay before an evaluation of a policy, and the minimum time between two writes.
const fn delays(key: &Key) -> (Duration, Duration) {
    match key.namespace.is_empty() {
        true => (CLUSTER_GATHER, CLUSTER_PAUSE),
        false => (GATHER, PAUSE),
    }
}

/// Queue of policies for evaluation.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// All policies in the queue.
    waiting: BTreeSet<Key>,
    /// Policies that are not due yet, by due time.
    later: BTreeSet<(Instant, Key)>,
    /// Due policies by namespace, oldest first. No list is empty.
    due: BTreeMap<String, VecDeque<String>>,
    /// Namespace of the last policy taken.
    last: String,
    /// Time of the last write of each policy.
    written: BTreeMap<Key, Instant>,
}

impl Queue {
    /// Adds a policy, due after its [`delays`].
    pub(super) fn push(&mut self, key: Key, now: Instant) {
        let (gather, pause) = delays(&key);
        let paused = self.written.get(&key).map_or(now, |written| *written + pause);
        self.push_at(key, paused.max(now + gather));
    }

    /// Adds a policy that is due at a given time, unless it is in the queue already.
    pub(super) fn push_at(&mut self, key: Key, at: Instant) {
        if !self.waiting.insert(key.clone()) {
            return;
        }
        self.later.insert((at, key));
    }

    /// Removes and returns the next due policy.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Key> {
        while self.later.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.later.pop_first() else { break };
            self.due.entry(key.namespace).or_default().push_back(key.name);
        }
        let after = (std::ops::Bound::Excluded(self.last.as_str()), std::ops::Bound::Unbounded);
        let next = self.due.range::<str, _>(after).next().or_else(|| self.due.iter().next());
        let namespace = next.map(|(namespace, _)| namespace.clone())?;
        let names = self.due.get_mut(&namespace)?;
        let name = names.pop_front()?;
        if names.is_empty() {
            self.due.remove(&namespace);
        }
        self.last.clone_from(&namespace);
        let key = Key { namespace, name };
        self.waiting.remove(&key);
        Some(key)
    }

    /// Returns the time of the next due policy; `None`: the queue is empty.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        match self.due.is_empty() {
            true => self.later.first().map(|(at, _)| *at),
            false => Some(now),
        }
    }

    /// Returns the number of policies in the queue.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Records the write of a policy.
    pub(super) fn written(&mut self, key: Key, now: Instant) {
        if self.written.len() >= REMEMBERED {
            self.written.retain(|key, at| *at + delays(key).1 > now);
        }
        self.written.insert(key, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_take_turns() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        (0..3).for_each(|n| queue.push(Key::new("crowd", format!("p{n}")), now));
        queue.push(Key::new("alone", "p"), now);
        queue.push(Key::new("alone", "p"), now);
        assert_eq!((queue.pop(now), queue.len()), (None, 4));
        let then = now + GATHER;
        let order: Vec<String> =
            std::iter::from_fn(|| queue.pop(then)).map(|key| key.to_string()).collect();
        assert_eq!(order, ["alone/p", "crowd/p0", "crowd/p1", "crowd/p2"]);
        (0..3).for_each(|n| queue.push(Key::new("crowd", format!("p{n}")), then));
        let then = then + GATHER;
        assert_eq!(queue.pop(then), Some(Key::new("crowd", "p0")));
        queue.push_at(Key::new("alone", "p"), then);
        assert_eq!(queue.pop(then), Some(Key::new("alone", "p")), "before the others of the crowd");
    }

    #[test]
    fn a_policy_is_not_written_all_the_time() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let key = Key::new("x", "p");
        queue.written(key.clone(), now);
        queue.push(key.clone(), now);
        assert_eq!(queue.next(now), Some(now + PAUSE));
        assert_eq!((queue.pop(now + GATHER), queue.pop(now + PAUSE)), (None, Some(key)));
    }
}
