//! The address space, divided by what blocks grant in all specs together.
//!
//! Where some spec's blocks grant something else from a prefix on, there is a place. What each spec's
//! blocks grant at a place is its key; places with equal keys are one group, and an address has the
//! group of the longest place that holds it. A list of 100,000 blocks makes one group, not 100,000.
//!
//! When a policy is edited, its spec gives way to another and the keys of its places change, but what
//! they have in common does not: such a group keeps its number, and only places that part from it
//! or join it are looked at again. In the rows of specs that stay, a group that keeps its number
//! keeps its meaning too, since these specs' parts of the keys stay the same.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::compile::blocks::NOTHING;
use crate::compile::peers::AtomId;
use crate::compile::prefix::{Prefix, PrefixMap};
use crate::compile::spec::Spec;

/// Set in the numbers of groups.
const GROUP: AtomId = 1 << 30;
/// The group of what no block grants anything. It is never part of a signature.
pub(crate) const NO_GROUP: AtomId = GROUP;

/// Number of a spec in use; never reused.
pub(crate) type SpecId = u32;

/// What the specs' blocks grant: by spec, in order, the number of a value in its
/// [`crate::compile::blocks::BlockMap`]. Specs that grant nothing are left out.
type Key = Vec<(SpecId, u32)>;

/// A prefix at which what blocks grant changes.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// How many specs have a change here.
    specs: u32,
    /// `None`: it is new.
    group: Option<AtomId>,
}

#[derive(Debug)]
struct Group {
    key: Key,
    /// Its first place: it stands for all.
    like: Prefix,
    /// It has no place any more.
    ended: bool,
}

/// What a settling makes of a group's places that have the same new specs' values.
type Target = usize;

/// A key that places have from now on.
struct Wanted {
    key: Key,
    like: Prefix,
    group: Option<AtomId>,
}

/// The groups in use.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    next: AtomId,
    free: BTreeSet<AtomId>,
    places: PrefixMap<Place>,
    groups: HashMap<AtomId, Group>,
    acquired: Vec<(SpecId, Arc<Spec>)>,
    released: Vec<(SpecId, Arc<Spec>)>,
    /// Places looked at, ever.
    pub(crate) work: u64,
}

impl Groups {
    /// A spec is in use from now on.
    pub(crate) fn acquire(&mut self, id: SpecId, spec: &Arc<Spec>) {
        if !spec.blocks.changes.is_empty() {
            self.acquired.push((id, spec.clone()));
        }
    }

    /// A spec is not in use any more.
    pub(crate) fn release(&mut self, id: SpecId, spec: &Arc<Spec>) {
        if spec.blocks.changes.is_empty() {
            return;
        }
        match self.acquired.iter().position(|(acquired, _)| *acquired == id) {
            Some(place) => drop(self.acquired.remove(place)),
            None => self.released.push((id, spec.clone())),
        }
    }

    /// Divides the address space anew. Returns the places whose group is another than before, in order;
    /// none where there is no place any more.
    pub(crate) fn settle(&mut self) -> Vec<(Prefix, Option<AtomId>)> {
        let (acquired, released) =
            (std::mem::take(&mut self.acquired), std::mem::take(&mut self.released));
        if acquired.is_empty() && released.is_empty() {
            return Vec::new();
        }
        for (prefix, _) in released.iter().flat_map(|(_, spec)| &spec.blocks.changes) {
            if let Some(place) = self.places.get_mut(*prefix) {
                place.specs -= 1;
            }
        }
        let mut changes: Vec<(Prefix, SpecId, u32)> = Vec::new();
        for (id, spec) in &acquired {
            changes
                .extend(spec.blocks.changes.iter().map(|(prefix, value)| (*prefix, *id, *value)));
        }
        changes.sort_unstable();
        for (prefix, ..) in &changes {
            self.places.entry(*prefix).specs += 1;
        }
        let gone = released.iter().map(|(id, _)| *id).collect();
        let (mut wanted, of_places) = self.divide(&changes, gone);
        self.number(&mut wanted, &of_places);
        self.install(wanted, of_places)
    }

    /// The keys of all places, in their order; none for those that end.
    fn divide(
        &mut self,
        changes: &[(Prefix, SpecId, u32)],
        mut gone: Vec<SpecId>,
    ) -> (Vec<Wanted>, Vec<(Prefix, Place, Option<Target>)>) {
        gone.sort_unstable();
        let mut new = NewParts::default();
        let (mut wanted, mut of_places) = (Vec::new(), Vec::new());
        let mut targets: HashMap<(AtomId, usize), Target> = HashMap::new();
        let mut by_key: HashMap<Key, Target> = HashMap::new();
        let mut open: Vec<(Prefix, AtomId, usize)> = Vec::new();
        let mut next = 0;
        for (prefix, place) in self.places.iter() {
            self.work += 1;
            while open.pop_if(|(outer, ..)| !outer.holds(prefix)).is_some() {}
            let (group, part) = open.last().map_or((NO_GROUP, 0), |outer| (outer.1, outer.2));
            let group = place.group.unwrap_or(group);
            let here = changes[next..].iter().take_while(|change| change.0 == prefix).count();
            let part = new.changed(part, &changes[next..next + here]);
            next += here;
            open.push((prefix, group, part));
            let target = (place.specs > 0).then(|| {
                *targets.entry((group, part)).or_insert_with(|| {
                    let old = self.groups.get(&group).map_or(&[][..], |group| &group.key);
                    let stays = old.iter().filter(|(id, _)| gone.binary_search(id).is_err());
                    // New specs have greater numbers than those before.
                    let key: Key = stays.chain(&new.parts[part]).copied().collect();
                    *by_key.entry(key).or_insert_with_key(|key| {
                        wanted.push(Wanted { key: key.clone(), like: prefix, group: None });
                        wanted.len() - 1
                    })
                })
            });
            of_places.push((prefix, *place, target));
        }
        (wanted, of_places)
    }

    /// Gives each key a group: the one there is, else that which most of its places come from if nobody
    /// stayed in it, else a new one.
    fn number(&mut self, wanted: &mut [Wanted], of_places: &[(Prefix, Place, Option<Target>)]) {
        let by_key: HashMap<&Key, AtomId> = self
            .groups
            .iter()
            .filter(|(_, group)| !group.ended)
            .map(|(id, group)| (&group.key, *id))
            .collect();
        let mut taken: HashMap<AtomId, Target> = HashMap::new();
        for (target, key) in wanted.iter_mut().enumerate() {
            key.group = by_key.get(&key.key).copied();
            key.group = key.group.or_else(|| key.key.is_empty().then_some(NO_GROUP));
            taken.extend(key.group.map(|group| (group, target)));
        }
        let mut from: HashMap<(Target, AtomId), u32> = HashMap::new();
        for (_, place, target) in of_places {
            if let (Some(group), Some(target)) = (place.group, target) {
                *from.entry((*target, group)).or_default() += 1;
            }
        }
        let mut most: Vec<(u32, Target, AtomId)> =
            from.into_iter().map(|((target, group), count)| (count, target, group)).collect();
        most.sort_unstable_by_key(|(count, target, group)| {
            (std::cmp::Reverse(*count), *target, *group)
        });
        for (_, target, group) in most {
            if wanted[target].group.is_none() && group != NO_GROUP && !taken.contains_key(&group) {
                wanted[target].group = Some(group);
                taken.insert(group, target);
            }
        }
        for key in wanted.iter_mut().filter(|key| key.group.is_none()) {
            key.group = Some(self.free.pop_first().unwrap_or_else(|| {
                self.next += 1;
                self.next | GROUP
            }));
        }
    }

    fn install(
        &mut self,
        wanted: Vec<Wanted>,
        of_places: Vec<(Prefix, Place, Option<Target>)>,
    ) -> Vec<(Prefix, Option<AtomId>)> {
        let mut changed = Vec::new();
        for (prefix, place, target) in of_places {
            let group = target.and_then(|target| wanted[target].group);
            if group.is_none() {
                self.places.remove(prefix);
            } else if let Some(place) = self.places.get_mut(prefix) {
                place.group = group;
            }
            if place.group != group {
                changed.push((prefix, group));
            }
        }
        self.groups.values_mut().for_each(|group| group.ended = true);
        for Wanted { key, like, group } in wanted {
            if let Some(id) = group.filter(|id| *id != NO_GROUP) {
                self.groups.insert(id, Group { key, like, ended: false });
            }
        }
        changed
    }

    /// The number of the value that a spec's blocks have in a group; `id`: the spec's, if it is in
    /// use. Of what is in use no longer, group or spec, it is told by the group's first place.
    pub(crate) fn value(&self, group: AtomId, id: Option<SpecId>, spec: &Spec) -> u32 {
        let Some(group) = self.groups.get(&group) else { return NOTHING };
        match id.filter(|_| !group.ended) {
            Some(id) => {
                let found = group.key.binary_search_by_key(&id, |(id, _)| *id);
                found.map_or(NOTHING, |place| group.key[place].1)
            }
            None => spec.blocks.at(group.like),
        }
    }

    /// The first place of a group.
    pub(crate) fn like(&self, group: AtomId) -> Option<Prefix> {
        self.groups.get(&group).map(|group| group.like)
    }

    /// Ends the update: forgets groups without places.
    pub(crate) fn sweep(&mut self) {
        let ended = self.groups.extract_if(|_, group| group.ended);
        self.free.extend(ended.map(|(id, _)| id));
    }
}

/// What the new specs' blocks grant, each distinct combination once.
struct NewParts {
    parts: Vec<Key>,
    by_key: HashMap<Key, usize>,
}

impl Default for NewParts {
    fn default() -> Self {
        Self { parts: vec![Key::new()], by_key: HashMap::from([(Key::new(), 0)]) }
    }
}

impl NewParts {
    /// A combination with these changes, which are in the order of the specs.
    fn changed(&mut self, part: usize, changes: &[(Prefix, SpecId, u32)]) -> usize {
        if changes.is_empty() {
            return part;
        }
        let mut key = self.parts[part].clone();
        for (_, id, value) in changes {
            match key.binary_search_by_key(id, |(id, _)| *id) {
                Ok(place) if *value == NOTHING => drop(key.remove(place)),
                Ok(place) => key[place].1 = *value,
                Err(_) if *value == NOTHING => {}
                Err(place) => key.insert(place, (*id, *value)),
            }
        }
        let parts = &mut self.parts;
        *self.by_key.entry(key).or_insert_with_key(|key| {
            parts.push(key.clone());
            parts.len() - 1
        })
    }
}

/// Whether this is the number of a group.
pub(crate) fn is_group(id: AtomId) -> bool {
    id & GROUP != 0
}
