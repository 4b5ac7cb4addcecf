//! Names in peer slices: those that policies have, a while longer.
//!
//! ```text
//! policies ─► needed ─► coming ────────► index ─────────► fading ─────────► gone
//!                       slices get it    agents use it    slices keep it
//! ```
//!
//! A series of names that come is complete before the next one begins, so no policy delays another's names. With 10,000
//! slices that takes a minute; meanwhile the index announces these names and those that come next. Slices keep a
//! name for [`FADING`] after its end in the index: an agent that knows a newer policy has that time to learn of the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netpold_api::peer_slice::PeerVocabulary;
use netpold_core::cluster::ObjectKey;
use netpold_slices::{MAX_NAMES, REDUCED_AFTER, Vocabulary};

use crate::peer_charges::{OwnedName, PeerCharges, PolicyVocabularies, bounded, owned};

/// Time for which a name stays in the index after the last policy with it.
const KEPT: Duration = Duration::from_mins(10);
/// Time for which slices keep a name after its end in the index.
const FADING: Duration = REDUCED_AFTER.saturating_add(Duration::from_mins(1));
/// Shortest time between the beginnings of two series of names.
const PACE: Duration = Duration::from_secs(1);
/// Time after which a series of names takes long: agents wait for its names if the index announces them.
const LONG: Duration = Duration::from_secs(2);
/// Shortest time between two ends of names: each has all slices with them written anew.
const ENDS: Duration = Duration::from_mins(1);

/// Names in slices, and in the index.
#[derive(Debug, Default)]
pub(super) struct PeerNames {
    policies: PolicyVocabularies,
    are_policies_new: bool,
    charges: PeerCharges,
    needed: Vocabulary,
    index: Vocabulary,
    /// Names beside the index's that slices get.
    coming: Vocabulary,
    began: Option<Instant>,
    /// Names in the index as those to come, and the time of the announcement.
    announced: Option<(Vocabulary, Instant)>,
    /// Time of the last end of names whose time had come.
    ended: Option<Instant>,
    /// Names of the index that no policy has, with the time of the last policy's end.
    unused: BTreeMap<OwnedName, Instant>,
    /// Names that slices have and the index lacks, with the time of their end in the index.
    fading: BTreeMap<OwnedName, Instant>,
    /// Namespaces with names that their other names leave no room.
    crowded: BTreeSet<String>,
}

impl PeerNames {
    /// Sets the names of a policy; `None`: it is gone.
    pub(super) fn set(&mut self, key: ObjectKey, names: Option<(String, Vocabulary)>) {
        let names = names.map(|(namespace, names)| {
            let names = bounded(&namespace, &names);
            (namespace, names)
        });
        let before = match names.clone() {
            Some(names) => self.policies.insert(key, names),
            None => self.policies.remove(&key),
        };
        self.are_policies_new |= before != names;
    }

    /// Continues with the index of the last writer, and with the names in its slices.
    pub(super) fn take_over(&mut self, index: &PeerVocabulary, found: &Vocabulary, now: Instant) {
        self.index = Vocabulary::from(index);
        self.crowded.clone_from(&index.crowded_namespaces);
        let fading = found.without(&self.index);
        self.fading = fading.all().map(|name| (owned(name), now)).collect();
        self.coming = Vocabulary::default();
        self.charges = PeerCharges::default();
        self.unused.clear();
        (self.began, self.ended, self.announced) = (None, None, None);
        self.are_policies_new = true;
        self.decide_names(false, now);
    }

    /// Returns the content of the index.
    pub(super) fn index(&self) -> PeerVocabulary {
        let index = PeerVocabulary::from(&self.index);
        let announced = self.announced.as_ref().map(|(names, _)| names.clone());
        let Vocabulary { label_keys, port_names } = announced.unwrap_or_default();
        PeerVocabulary {
            crowded_namespaces: self.crowded.clone(),
            coming_label_keys: label_keys,
            coming_port_names: port_names,
            ..index
        }
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
    pub(super) fn decide_names(&mut self, are_written: bool, now: Instant) {
        if std::mem::take(&mut self.are_policies_new) {
            let (index, coming, fading) = (&self.index, &self.coming, &self.fading);
            self.charges.set_needed(&self.policies, |name| {
                has(index, name) || has(coming, name) || fading.contains_key(name)
            });
            let needed = self.charges.needed().iter();
            let needed = needed.map(|(is_port, name)| (*is_port, name.as_str()));
            self.needed = Vocabulary::default();
            self.needed.add_within(needed, MAX_NAMES);
        }
        if are_written {
            self.index.extend(std::mem::take(&mut self.coming));
        }
        self.end_names(now);
        let is_due = self.began.is_none_or(|began| now.duration_since(began) >= PACE);
        if self.coming.is_empty() && is_due && !self.index.covers(&self.needed) {
            self.begin_names(now);
        }
        self.announce_names(now);
    }

    /// Announces the names of a series that takes long, and those that wait for its end.
    fn announce_names(&mut self, now: Instant) {
        let is_long = self.began.is_some_and(|began| now.duration_since(began) >= LONG);
        if self.coming.is_empty() || !is_long {
            self.announced = None;
            return;
        }
        let is_recent = |(_, at): &(Vocabulary, Instant)| now.saturating_duration_since(*at) < PACE;
        if !self.announced.as_ref().is_some_and(is_recent) {
            let mut names = Vocabulary::default();
            let missing = self.missing().map(|(is_port, name)| (*is_port, name.as_str()));
            names.add_within(missing, MAX_NAMES);
            self.announced = Some((names, now));
        }
    }

    /// Begins the series of all missing names for which their namespaces have room.
    fn begin_names(&mut self, now: Instant) {
        self.began = Some(now);
        let in_index: Vec<OwnedName> = self.index.all().map(owned).collect();
        let (index, fading) = (&self.index, &self.fading);
        let mut room = self.charges.room(in_index.into_iter().chain(fading.keys().cloned()));
        let mut comes = Vec::new();
        for name in self.charges.needed().iter().filter(|name| !has(index, name)) {
            if index.len() + comes.len() >= MAX_NAMES {
                break;
            }
            let namespaces = self.charges.namespaces(name);
            // Slices have the fading ones.
            if fading.contains_key(name) {
                comes.push(name.clone());
            } else if let Some(namespace) = room.payer(namespaces) {
                room.add(Some(namespace));
                comes.push(name.clone());
            } else {
                self.crowded.extend(namespaces.iter().map(ToString::to_string));
            }
        }
        for name in comes {
            self.fading.remove(&name);
            self.coming.add_within([(name.0, name.1.as_str())], usize::MAX);
        }
    }

    /// Ends the names in the index that no policy has had for a time, or that leave others no room, and those in slices.
    fn end_names(&mut self, now: Instant) {
        let unused = self.index.without(&self.needed);
        self.unused.retain(|name, _| has(&unused, name));
        for name in unused.all() {
            self.unused.entry(owned(name)).or_insert(now);
        }
        self.displace_names(now);
        if self.ended.is_some_and(|ended| now.duration_since(ended) < ENDS) {
            return;
        }
        let is_old = |_: &OwnedName, since: &mut Instant| now.duration_since(*since) >= KEPT;
        let ended: Vec<OwnedName> = self.unused.extract_if(.., is_old).map(|it| it.0).collect();
        let is_gone = |_: &OwnedName, since: &mut Instant| now.duration_since(*since) >= FADING;
        let gone = self.fading.extract_if(.., is_gone).count();
        let missing = self.missing().flat_map(|name| self.charges.namespaces(name));
        let missing: BTreeSet<&str> = missing.map(|namespace| &**namespace).collect();
        let is_missing = |namespace: &&String| missing.contains(namespace.as_str());
        let crowded: BTreeSet<String> = self.crowded.iter().filter(is_missing).cloned().collect();
        if !ended.is_empty() || gone > 0 || crowded != self.crowded {
            (self.ended, self.crowded) = (Some(now), crowded);
        }
        ended.into_iter().for_each(|name| self.fade(name, now));
    }

    /// Ends unused names before their time, if they leave others no room.
    fn displace_names(&mut self, now: Instant) {
        let charges = &self.charges;
        let lacks_room = self.missing().count() + self.index.len() > MAX_NAMES;
        let cluster_wide = self.unused.keys().filter(|name| charges.is_cluster_wide(name)).count();
        let lacks_cluster_wide = charges.cluster_wide() + cluster_wide > MAX_NAMES;
        let is_displaced = |name: &OwnedName, _: &mut Instant| {
            // Tenants displace no name of ClusterNetworkPolicies.
            if charges.is_cluster_wide(name) {
                return lacks_cluster_wide;
            }
            let namespaces = charges.namespaces(name);
            let is_crowded = |namespace: &Arc<str>| self.crowded.contains(&**namespace);
            lacks_room || !namespaces.is_empty() && namespaces.iter().all(is_crowded)
        };
        let displaced: Vec<OwnedName> =
            self.unused.extract_if(.., is_displaced).map(|it| it.0).collect();
        displaced.into_iter().for_each(|name| self.fade(name, now));
    }

    /// Ends a name in the index.
    fn fade(&mut self, name: OwnedName, now: Instant) {
        let names = if name.0 { &mut self.index.port_names } else { &mut self.index.label_keys };
        names.remove(&name.1);
        self.fading.insert(name, now);
    }

    /// Returns the names in policies that the index lacks.
    fn missing(&self) -> impl Iterator<Item = &OwnedName> {
        self.charges.needed().iter().filter(|name| !has(&self.index, name))
    }
}

fn has(names: &Vocabulary, (is_port, name): &OwnedName) -> bool {
    if *is_port { names.port_names.contains(name) } else { names.label_keys.contains(name) }
}

#[cfg(test)]
mod tests {
    use netpold_core::model::{Change, Key};
    use netpold_slices::NAMESPACE_NAMES;

    use super::*;
    use crate::peer_charges::MAX_ALL;

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
        all.decide_names(false, now);
        assert_eq!((all.of_slices(), all.index.len()), (names(&["a"]), 0));
        // Somebody adds a name again and again.
        for number in 0..5 {
            set(&mut all, "x", &format!("q{number}"), Some(&[&format!("b{number}")]));
            all.decide_names(false, now + PACE * 2);
            assert_eq!(all.of_slices(), names(&["a"]), "slices lack the first one");
        }
        all.decide_names(true, now + PACE * 2);
        assert_eq!((&all.index, all.of_slices().len()), (&names(&["a"]), 6));
    }

    #[test]
    fn names_are_announced_while_a_series_takes_long() {
        let (mut all, now) = (PeerNames::default(), Instant::now());
        set(&mut all, "x", "p", Some(&["a"]));
        all.decide_names(false, now);
        set(&mut all, "x", "q", Some(&["b"]));
        all.decide_names(false, now + LONG / 2);
        let announced = |all: &PeerNames| Vec::from_iter(all.index().coming_label_keys);
        assert_eq!(announced(&all), Vec::<String>::new(), "it may be short");
        all.decide_names(false, now + LONG);
        assert_eq!(announced(&all), ["a", "b"], "b waits for its end");
        set(&mut all, "x", "r", Some(&["c"]));
        all.decide_names(false, now + LONG + PACE / 2);
        assert_eq!(announced(&all), ["a", "b"], "the index is not written for each new policy");
        all.decide_names(false, now + LONG + PACE);
        assert_eq!(announced(&all), ["a", "b", "c"]);
        all.decide_names(true, now + LONG + PACE);
        assert_eq!((announced(&all), all.index.len()), (Vec::<String>::new(), 1));
    }

    #[test]
    fn each_name_goes_at_its_own_time_first_from_the_index_and_later_from_slices() {
        let (mut all, now) = (PeerNames::default(), Instant::now());
        set(&mut all, "x", "p", Some(&["a"]));
        set(&mut all, "x", "q", Some(&["b"]));
        all.decide_names(false, now);
        all.decide_names(true, now);
        set(&mut all, "x", "p", None);
        all.decide_names(false, now);
        set(&mut all, "x", "q", None);
        all.decide_names(false, now + KEPT / 2);
        assert_eq!(all.index.len(), 2);
        all.decide_names(false, now + KEPT);
        assert_eq!((&all.index, all.of_slices()), (&names(&["b"]), names(&["a", "b"])));
        set(&mut all, "x", "q", Some(&["b"]));
        let later = now + KEPT + FADING;
        all.decide_names(false, later);
        assert_eq!((&all.index, all.of_slices()), (&names(&["b"]), names(&["b"])));
        set(&mut all, "x", "q", None);
        all.decide_names(false, later);
        all.decide_names(false, later + KEPT);
        assert_eq!((all.index.len(), all.of_slices()), (0, names(&["b"])));
        set(&mut all, "x", "q", Some(&["b"]));
        all.decide_names(false, later + KEPT);
        all.decide_names(false, later + KEPT + FADING * 2);
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
                all.decide_names(true, now);
            }
            assert!(all.index.len() <= MAX_NAMES && all.of_slices().len() <= MAX_ALL);
        }
        // Each namespace has an equal share, and gets it once the others' former names have gone.
        now += FADING;
        (0..3).for_each(|step| all.decide_names(true, now + PACE * step));
        let share = |namespace: usize| {
            let begins = format!("4-{namespace}-");
            all.index.label_keys.iter().filter(|name| name.starts_with(&begins)).count()
        };
        assert!((0..40).all(|namespace| share(namespace) == MAX_NAMES / 40));
    }

    #[test]
    fn a_new_leader_keeps_names_that_slices_have() {
        let (mut all, now) = (PeerNames::default(), Instant::now());
        set(&mut all, "x", "p", Some(&["a"]));
        all.take_over(&(&names(&["a"])).into(), &names(&["a", "b"]), now);
        assert_eq!((&all.index, all.of_slices()), (&names(&["a"]), names(&["a", "b"])));
        all.decide_names(true, now + FADING);
        assert_eq!(all.of_slices(), names(&["a"]));
    }

    /// A tenant's policy with 100 labels that no policy had before.
    fn turn_over(all: &mut PeerNames, namespace: &str, turn: usize) {
        let labels: Vec<String> = (0..100).map(|n| format!("{namespace}-{turn}-{n}")).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        set(all, namespace, "p", Some(&labels));
    }

    #[test]
    fn tenants_that_turn_over_names_delay_only_their_own() {
        for tenants in [1, 60] {
            let (mut all, mut now) = (PeerNames::default(), Instant::now());
            set(&mut all, "", "cluster", Some(&["admin", "former"]));
            set(&mut all, "", "cluster", Some(&["admin"]));
            for turn in 0..100 {
                (0..tenants).for_each(|n| turn_over(&mut all, &format!("t{n:02}"), turn));
                now += PACE;
                all.decide_names(true, now);
            }
            let labels: Vec<String> = (0..20).map(|n| format!("label-{n}")).collect();
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            set(&mut all, "z", "p", Some(&labels));
            set(&mut all, "", "second", Some(&["another"]));
            for _ in 0..2 {
                now += PACE;
                all.decide_names(true, now);
            }
            let keys = &all.index.label_keys;
            let lacking =
                labels.iter().chain(&["admin", "another"]).find(|&&it| !keys.contains(it));
            assert_eq!(lacking, None, "{tenants} tenants");
            // Agents with the tenant's pods do not follow all pods for these.
            assert!(all.index().crowded_namespaces.contains("t00"));
            assert!(!all.index().crowded_namespaces.contains("z"));
            let of_tenant = all.of_slices().label_keys;
            let of_tenant = of_tenant.iter().filter(|name| name.starts_with("t00-")).count();
            assert!((1..=200).contains(&of_tenant), "{of_tenant}");
        }
    }

    #[test]
    fn a_name_that_a_crowded_namespace_has_too_comes_for_the_others() {
        let (mut all, mut now) = (PeerNames::default(), Instant::now());
        for turn in 0..10 {
            turn_over(&mut all, "a", turn);
            now += PACE;
            all.decide_names(true, now);
        }
        assert!(all.index().crowded_namespaces.contains("a"));
        set(&mut all, "a", "shared", Some(&["0-app"]));
        set(&mut all, "b", "p", Some(&["0-app"]));
        (1..3).for_each(|step| all.decide_names(true, now + PACE * step));
        assert!(all.index.label_keys.contains("0-app"));
        assert!(!all.index().crowded_namespaces.contains("b"));
    }

    #[test]
    fn of_a_policy_with_many_names_only_those_that_can_be_in_slices_are_kept() {
        let mut all = PeerNames::default();
        let many: Vec<String> = (0..3 * MAX_NAMES).map(|number| format!("l{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        set(&mut all, "x", "p", Some(&many));
        set(&mut all, "", "cluster", Some(&many));
        let kept: Vec<usize> = all.policies.values().map(|(_, names)| names.len()).collect();
        assert_eq!(kept.iter().sum::<usize>(), NAMESPACE_NAMES + MAX_NAMES);
    }

    #[test]
    fn tenants_displace_no_name_of_cluster_policies() {
        let (mut all, mut now) = (PeerNames::default(), Instant::now());
        set(&mut all, "", "cluster", Some(&["admin"]));
        (0..2).for_each(|step| all.decide_names(true, now + PACE * step));
        set(&mut all, "", "cluster", None);
        (0..30).for_each(|n| turn_over(&mut all, &format!("t{n:02}"), 0));
        for _ in 0..3 {
            now += PACE;
            all.decide_names(true, now);
        }
        assert_eq!(all.index.len(), MAX_NAMES);
        assert!(all.index.label_keys.contains("admin"), "the policy may come back");
        let many: Vec<String> = (0..MAX_NAMES).map(|n| format!("admin-{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        set(&mut all, "", "many", Some(&many));
        for _ in 0..3 {
            now += PACE;
            all.decide_names(true, now);
        }
        assert_eq!(all.index, names(&many), "they come first");
    }

    #[test]
    fn names_end_together_at_most_once_a_minute() {
        let (mut all, mut now) = (PeerNames::default(), Instant::now());
        // A policy a second, for two minutes.
        let labels: Vec<String> = (0..90).map(|n| format!("l{n}")).collect();
        let policy = |all: &mut PeerNames, n: usize, there: bool| {
            set(all, "x", &format!("p{n}"), there.then_some(&[labels[n].as_str()]));
        };
        (0..90).for_each(|n| policy(&mut all, n, true));
        for _ in 0..2 {
            now += PACE;
            all.decide_names(true, now);
        }
        let (mut index, mut slices, mut steps) = (0, 0, 0);
        while !all.of_slices().is_empty() {
            if steps < 90 {
                policy(&mut all, steps, false);
            }
            let before = (all.index.clone(), all.of_slices());
            now += PACE;
            all.decide_names(true, now);
            index += usize::from(all.index != before.0);
            slices += usize::from(all.of_slices() != before.1);
            steps += 1;
        }
        // The first name and the others of 90 s.
        assert!(index <= 3 && slices <= 3, "{index} changes of the index, {slices} of slices");
    }
}
