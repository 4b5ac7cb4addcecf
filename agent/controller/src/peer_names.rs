//! Names in peer slices: those that policies have, a while longer.
//!
//! ```text
//! policies ─► needed ─► coming ────────► index ─────────► fading ─────────► gone
//!                       slices get it    agents use it    slices keep it
//! ```
//!
//! A series of names that come is complete before the next one begins, so no policy delays another's names. Slices keep a
//! name for [`FADING`] after its end in the index: an agent that knows a newer policy has that time to learn of the end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use netpold_core::cluster::ObjectKey;
use netpold_slices::{MAX_NAMES, REDUCED_AFTER, Vocabulary};

/// Time for which a name stays in the index after the last policy with it.
const KEPT: Duration = Duration::from_mins(10);
/// Time for which slices keep a name after its end in the index.
const FADING: Duration = REDUCED_AFTER.saturating_add(Duration::from_mins(1));
/// Shortest time between the beginnings of two series of names.
const PACE: Duration = Duration::from_secs(1);
/// Most names in slices: as many fading ones as the index has.
const MAX_ALL: usize = 2 * MAX_NAMES;

/// Name, with whether it is a port's.
type Name = (bool, String);

/// Names in slices, and in the index.
#[derive(Debug, Default)]
pub(super) struct PeerNames {
    /// Names of each policy, with its namespace.
    policies: BTreeMap<ObjectKey, (String, Vocabulary)>,
    are_policies_new: bool,
    needed: Vocabulary,
    index: Vocabulary,
    /// Names beside the index's that slices get.
    coming: Vocabulary,
    began: Option<Instant>,
    /// Names of the index that no policy has, with the time of the last policy's end.
    unused: BTreeMap<Name, Instant>,
    /// Names that slices have and the index lacks, with the time of their end in the index.
    fading: BTreeMap<Name, Instant>,
}

impl PeerNames {
    /// Sets the names of a policy; `None`: it is gone.
    pub(super) fn set(&mut self, key: ObjectKey, names: Option<(String, Vocabulary)>) {
        let before = match names.clone() {
            Some(names) => self.policies.insert(key, names),
            None => self.policies.remove(&key),
        };
        self.are_policies_new |= before != names;
    }

    /// Continues with the index of the last writer, and with the names in its slices.
    pub(super) fn take_over(&mut self, index: Vocabulary, found: &Vocabulary, now: Instant) {
        self.fading = found.without(&index).all().map(|name| (owned(name), now)).collect();
        self.index = index;
        self.coming = Vocabulary::default();
        self.unused.clear();
        self.began = None;
        self.are_policies_new = true;
        self.look(false, now);
    }

    /// Returns the names that the index should have.
    pub(super) const fn index(&self) -> &Vocabulary {
        &self.index
    }

    /// Returns the names that slices should have.
    pub(super) fn of_slices(&self) -> Vocabulary {
        let mut all = self.index.clone();
        all.extend(self.coming.clone());
        let fading = self.fading.keys().map(|(is_port, name)| (*is_port, name.as_str()));
        all.add_within(fading, usize::MAX);
        all
    }

    /// Decides about the names. `are_written`: all slices have those of [`PeerNames::of_slices`].
    pub(super) fn look(&mut self, are_written: bool, now: Instant) {
        if std::mem::take(&mut self.are_policies_new) {
            let all = self.policies.values().map(|(namespace, names)| (namespace.as_str(), names));
            self.needed = Vocabulary::of_all(all);
        }
        if are_written {
            self.index.extend(std::mem::take(&mut self.coming));
        }
        self.end_names(now);
        let is_due = self.began.is_none_or(|began| now.duration_since(began) >= PACE);
        if self.coming.is_empty() && is_due && !self.index.covers(&self.needed) {
            self.begin_names(now);
        }
    }

    fn begin_names(&mut self, now: Instant) {
        self.began = Some(now);
        let missing = self.needed.without(&self.index);
        // Slices have the fading ones.
        let limit = MAX_ALL.saturating_sub(self.index.len() + self.fading.len());
        let limit = limit.min(MAX_NAMES.saturating_sub(self.index.len()));
        self.coming.add_within(missing.all(), limit);
        for name in self.coming.all() {
            self.fading.remove(&owned(name));
        }
    }

    /// Ends the names in the index that no policy has had for a time, or that leave others no room, and those in slices.
    fn end_names(&mut self, now: Instant) {
        let unused = self.index.without(&self.needed);
        self.unused.retain(|(is_port, name), _| has(&unused, (*is_port, name)));
        for name in unused.all() {
            self.unused.entry(owned(name)).or_insert(now);
        }
        let lacks_room = self.needed.without(&self.index).len() + self.index.len() > MAX_NAMES;
        let ends = |since: &Instant| lacks_room || now.duration_since(*since) >= KEPT;
        let ended: Vec<Name> =
            self.unused.extract_if(.., |_, since| ends(since)).map(|it| it.0).collect();
        for name in ended {
            let names =
                if name.0 { &mut self.index.port_names } else { &mut self.index.label_keys };
            names.remove(&name.1);
            self.fading.insert(name, now);
        }
        self.fading.retain(|_, since| now.duration_since(*since) < FADING);
    }
}

fn owned((is_port, name): netpold_slices::Name<'_>) -> Name {
    (is_port, name.to_owned())
}

fn has(names: &Vocabulary, (is_port, name): netpold_slices::Name<'_>) -> bool {
    if is_port { names.port_names.contains(name) } else { names.label_keys.contains(name) }
}

#[cfg(test)]
mod tests {
    use netpold_core::model::{Change, Key};

    use super::*;

    fn names(labels: &[&str]) -> Vocabulary {
        let label_keys = labels.iter().map(|&label| label.to_owned()).collect();
        Vocabulary { label_keys, ..Vocabulary::default() }
    }

    fn set(all: &mut PeerNames, namespace: &str, name: &str, labels: Option<&[&str]>) {
        let key = ObjectKey::of(&Change::PolicyGone(Key::new(namespace, name)));
        all.set(key, labels.map(|labels| (namespace.to_owned(), names(labels))));
    }

    #[test]
    fn a_series_of_names_is_complete_before_the_next_one_begins() {
        let (mut all, now) = (PeerNames::default(), Instant::now());
        set(&mut all, "x", "p", Some(&["a"]));
        all.look(false, now);
        assert_eq!((all.of_slices(), all.index().len()), (names(&["a"]), 0));
        // Somebody adds a name again and again.
        for number in 0..5 {
            set(&mut all, "x", &format!("q{number}"), Some(&[&format!("b{number}")]));
            all.look(false, now + PACE * 2);
            assert_eq!(all.of_slices(), names(&["a"]), "slices lack the first one");
        }
        all.look(true, now + PACE * 2);
        assert_eq!((all.index(), all.of_slices().len()), (&names(&["a"]), 6));
    }

    #[test]
    fn each_name_goes_at_its_own_time_first_from_the_index_and_later_from_slices() {
        let (mut all, now) = (PeerNames::default(), Instant::now());
        set(&mut all, "x", "p", Some(&["a"]));
        set(&mut all, "x", "q", Some(&["b"]));
        all.look(false, now);
        all.look(true, now);
        set(&mut all, "x", "p", None);
        all.look(false, now);
        set(&mut all, "x", "q", None);
        all.look(false, now + KEPT / 2);
        assert_eq!(all.index().len(), 2);
        all.look(false, now + KEPT);
        assert_eq!((all.index(), all.of_slices()), (&names(&["b"]), names(&["a", "b"])));
        set(&mut all, "x", "q", Some(&["b"]));
        let later = now + KEPT + FADING;
        all.look(false, later);
        assert_eq!((all.index(), all.of_slices()), (&names(&["b"]), names(&["b"])));
        set(&mut all, "x", "q", None);
        all.look(false, later);
        all.look(false, later + KEPT);
        assert_eq!((all.index().len(), all.of_slices()), (0, names(&["b"])));
        set(&mut all, "x", "q", Some(&["b"]));
        all.look(false, later + KEPT);
        all.look(false, later + KEPT + FADING * 2);
        assert_eq!(all.of_slices(), names(&["b"]), "it came back in time");
    }

    #[test]
    fn names_without_use_leave_room_and_no_list_outgrows_its_bound() {
        let (mut all, mut now) = (PeerNames::default(), Instant::now());
        for round in 0..5 {
            for namespace in 0..40 {
                let labels: Vec<String> =
                    (0..120).map(|n| format!("{round}-{namespace}-{n}")).collect();
                let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
                set(&mut all, &format!("n{namespace}"), "p", Some(&labels));
            }
            for _ in 0..3 {
                now += PACE;
                all.look(true, now);
            }
            assert!(all.index().len() <= MAX_NAMES && all.of_slices().len() <= MAX_ALL);
        }
        // Each namespace has an equal share, and gets it once the others' former names have gone.
        now += FADING;
        (0..3).for_each(|step| all.look(true, now + PACE * step));
        let share = |namespace: usize| {
            let begins = format!("4-{namespace}-");
            all.index().label_keys.iter().filter(|name| name.starts_with(&begins)).count()
        };
        assert!((0..40).all(|namespace| share(namespace) == MAX_NAMES / 40));
    }

    #[test]
    fn a_new_leader_keeps_names_that_slices_have() {
        let (mut all, now) = (PeerNames::default(), Instant::now());
        set(&mut all, "x", "p", Some(&["a"]));
        all.take_over(names(&["a"]), &names(&["a", "b"]), now);
        assert_eq!((all.index(), all.of_slices()), (&names(&["a"]), names(&["a", "b"])));
        all.look(true, now + FADING);
        assert_eq!(all.of_slices(), names(&["a"]));
    }
}
