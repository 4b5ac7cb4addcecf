//! The address space, divided by what the ipBlocks of all direction policies allow.
//!
//! A place is a prefix at which the blocks of some direction policy begin to allow something else. The
//! key of a place is what the blocks of each direction policy allow there. Places with equal keys form one
//! group, and an address belongs to the group of the longest place that contains it. So a list of 100,000
//! blocks makes one group, not 100,000.
//!
//! An edited policy becomes a new direction policy. The keys of its places change, but what they have in
//! common does not: such a group keeps its number, and only places that leave or join it are looked at
//! again. In the rows of unchanged direction policies a group that keeps its number also keeps its
//! meaning, because their part of the key is unchanged.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::compile::sets::set::{GROUP, NO_GROUP, SetId};
use crate::ports::blocks::{Changes, NOTHING};
use crate::prefix::{Family, Prefix, PrefixMap};

/// Number of a direction policy in use; never reused.
pub(crate) type PolicyId = u32;

/// What the direction policies' blocks grant: by direction policy, in order, the number of a value in its
/// [`crate::ports::blocks::BlockMap`]. Direction policies that grant nothing are left out.
type Key = Vec<(PolicyId, u32)>;

/// A prefix at which what blocks grant changes.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// How many direction policies have a change here.
    direction_policies: u32,
    /// `None`: it is new.
    group: Option<SetId>,
}

#[derive(Debug)]
struct Group {
    key: Key,
    /// One of its places, now or before: it stands for all.
    representative: Prefix,
    /// 0: it ends with this update.
    places: u32,
}

/// Number of a key that places have from now on.
type Target = usize;

/// The groups in use.
#[derive(Debug, Default)]
pub(crate) struct BlockGroups {
    next: SetId,
    free: BTreeSet<SetId>,
    places: PrefixMap<Place>,
    groups: HashMap<SetId, Group>,
    by_key: HashMap<Key, SetId>,
    /// Those that lost their last place in this update (some may have got another since).
    ended: Vec<SetId>,
    acquired: Vec<(PolicyId, Arc<Changes>)>,
    released: Vec<(PolicyId, Arc<Changes>)>,
    /// Places looked at, ever.
    pub(crate) work: u64,
}

/// The places of a settling in their order, each with the key that it is to have; none: it ends.
#[derive(Default)]
struct Divided {
    places: Vec<(Prefix, Place, Option<Target>)>,
    keys: Vec<Key>,
    by_key: HashMap<Key, Target>,
    /// By the group and the new direction policies' values that a place has.
    targets: HashMap<(SetId, usize), Target>,
    new: NewParts,
}

impl BlockGroups {
    /// A direction policy is in use from now on.
    pub(crate) fn acquire(&mut self, id: PolicyId, changes: &Arc<Changes>) {
        if !changes.0.is_empty() {
            self.acquired.push((id, changes.clone()));
        }
    }

    /// A direction policy is not in use any more.
    pub(crate) fn release(&mut self, id: PolicyId, changes: &Arc<Changes>) {
        if changes.0.is_empty() {
            return;
        }
        match self.acquired.iter().position(|(acquired, _)| *acquired == id) {
            Some(place) => drop(self.acquired.remove(place)),
            None => self.released.push((id, changes.clone())),
        }
    }

    /// Divides what the direction policies that came or went grant anything anew. Returns the places
    /// whose group is another than before, in order; none where there is no place any more.
    pub(crate) fn settle(&mut self) -> Vec<(Prefix, Option<SetId>)> {
        let (acquired, released) =
            (std::mem::take(&mut self.acquired), std::mem::take(&mut self.released));
        let prefixes = |direction_policies: &[(PolicyId, Arc<Changes>)]| -> Vec<Prefix> {
            direction_policies
                .iter()
                .flat_map(|(_, direction_policy)| &direction_policy.0)
                .map(|change| change.0)
                .collect()
        };
        let (begun, ended) = (prefixes(&acquired), prefixes(&released));
        for prefix in &ended {
            if let Some(place) = self.places.get_mut(*prefix) {
                place.direction_policies -= 1;
            }
        }
        begun.iter().for_each(|prefix| self.places.entry(*prefix).direction_policies += 1);
        let mut changes: Vec<(Prefix, PolicyId, u32)> = Vec::new();
        for (id, direction_policy) in &acquired {
            changes.extend(direction_policy.0.iter().map(|(at, value)| (*at, *id, *value)));
        }
        changes.sort_unstable();
        let mut gone: Vec<PolicyId> = released.iter().map(|(id, _)| *id).collect();
        gone.sort_unstable();
        let mut divided = Divided::default();
        for region in outermost(begun.into_iter().chain(ended).collect()) {
            self.divide(region, &changes, &gone, &mut divided);
        }
        self.work += divided.places.len() as u64;
        let groups = self.number(&divided);
        self.install(&divided.places, &groups)
    }

    /// Finds the keys of a region's places.
    fn divide(
        &self,
        region: Prefix,
        changes: &[(Prefix, PolicyId, u32)],
        gone: &[PolicyId],
        divided: &mut Divided,
    ) {
        let around = self.places.parent(region).and_then(|place| place.group);
        let mut open: Vec<(Prefix, SetId, usize)> = Vec::new();
        let mut next = changes.partition_point(|change| change.0 < region);
        for (prefix, place) in self.places.under(region) {
            while open.pop_if(|(outer, ..)| !outer.holds(prefix)).is_some() {}
            let outer = (around.unwrap_or(NO_GROUP), NewParts::EMPTY);
            let (group, part) = open.last().map_or(outer, |outer| (outer.1, outer.2));
            let group = place.group.unwrap_or(group);
            let here = changes[next..].iter().take_while(|change| change.0 == prefix).count();
            let part = divided.new.changed(part, &changes[next..next + here]);
            next += here;
            open.push((prefix, group, part));
            let target = (place.direction_policies > 0).then(|| {
                let Divided { targets, by_key, keys, new, .. } = &mut *divided;
                *targets.entry((group, part)).or_insert_with(|| {
                    let old = self.groups.get(&group).map_or(&[][..], |group| &group.key);
                    let stays = old.iter().filter(|(id, _)| gone.binary_search(id).is_err());
                    // New direction policies have greater numbers than those before.
                    let key: Key = stays.chain(&new.parts[part]).copied().collect();
                    *by_key.entry(key).or_insert_with_key(|key| {
                        keys.push(key.clone());
                        keys.len() - 1
                    })
                })
            });
            divided.places.push((prefix, *place, target));
        }
    }

    /// Takes the places out of their groups and gives each key one: that which there is, else that which
    /// most of its places come from if nobody stayed in it, else a new one.
    fn number(&mut self, divided: &Divided) -> Vec<SetId> {
        let mut from: HashMap<(Target, SetId), u32> = HashMap::new();
        for (_, place, target) in &divided.places {
            let Some(id) = place.group.filter(|id| *id != NO_GROUP) else { continue };
            if let Some(target) = target {
                *from.entry((*target, id)).or_default() += 1;
            }
            if let Some(group) = self.groups.get_mut(&id) {
                group.places -= 1;
                if group.places == 0 {
                    self.ended.push(id);
                }
            }
        }
        let known = |key: &Key| match key.is_empty() {
            true => Some(NO_GROUP),
            false => self.by_key.get(key).copied(),
        };
        let mut groups: Vec<Option<SetId>> = divided.keys.iter().map(known).collect();
        let mut taken: HashSet<SetId> = groups.iter().flatten().copied().collect();
        let mut most: Vec<(u32, Target, SetId)> =
            from.into_iter().map(|((target, id), count)| (count, target, id)).collect();
        most.sort_unstable_by_key(|(count, target, id)| (Reverse(*count), *target, *id));
        for (_, target, id) in most {
            let is_left = self.groups.get(&id).is_some_and(|group| group.places == 0);
            if groups[target].is_none() && is_left && taken.insert(id) {
                groups[target] = Some(id);
            }
        }
        let numbered = groups.into_iter().map(|id| id.unwrap_or_else(|| self.new_number()));
        let numbered: Vec<SetId> = numbered.collect();
        for id in &self.ended {
            if let Some(group) = self.groups.get(id).filter(|group| group.places == 0) {
                self.by_key.remove(&group.key);
            }
        }
        for (id, key) in numbered.iter().zip(&divided.keys).filter(|(id, _)| **id != NO_GROUP) {
            let representative = Prefix { family: Family::V4, bits: 0, len: 0 };
            let new = || Group { key: Key::new(), representative, places: 0 };
            self.groups.entry(*id).or_insert_with(new).key.clone_from(key);
            self.by_key.insert(key.clone(), *id);
        }
        numbered
    }

    fn new_number(&mut self) -> SetId {
        self.free.pop_first().unwrap_or_else(|| {
            self.next += 1;
            self.next | GROUP
        })
    }

    fn install(
        &mut self,
        places: &[(Prefix, Place, Option<Target>)],
        groups: &[SetId],
    ) -> Vec<(Prefix, Option<SetId>)> {
        let mut changed = Vec::new();
        for (prefix, place, target) in places {
            let id = target.map(|target| groups[target]);
            if id.is_none() {
                self.places.remove(*prefix);
            } else if let Some(place) = self.places.get_mut(*prefix) {
                place.group = id;
            }
            if place.group != id {
                changed.push((*prefix, id));
            }
            if let Some(group) = id.and_then(|id| self.groups.get_mut(&id)) {
                if group.places == 0 {
                    group.representative = *prefix;
                }
                group.places += 1;
            }
        }
        changed
    }

    /// The number of the value that a direction policy's blocks have in a group; `id`: the direction
    /// policy's, if it is in use. Of what is in use no longer, group or direction policy, it is told by
    /// one of the group's places.
    pub(crate) fn value(&self, group: SetId, id: Option<PolicyId>, changes: &Changes) -> u32 {
        let Some(group) = self.groups.get(&group) else { return NOTHING };
        match id.filter(|_| group.places > 0) {
            Some(id) => {
                let found = group.key.binary_search_by_key(&id, |(id, _)| *id);
                found.map_or(NOTHING, |place| group.key[place].1)
            }
            None => changes.at(group.representative),
        }
    }

    /// The first place of a group: the same, however it came to be.
    pub(crate) fn first(&self, id: SetId) -> Option<Prefix> {
        self.places.iter().find(|(_, place)| place.group == Some(id)).map(|(prefix, _)| prefix)
    }

    /// Ends the update: forgets groups without places.
    pub(crate) fn sweep(&mut self) {
        for id in std::mem::take(&mut self.ended) {
            if self.groups.get(&id).is_some_and(|group| group.places == 0) {
                self.groups.remove(&id);
                self.free.insert(id);
            }
        }
    }
}

/// Those of the prefixes that no other holds, in order.
fn outermost(mut prefixes: Vec<Prefix>) -> Vec<Prefix> {
    prefixes.sort_unstable();
    let mut outermost: Vec<Prefix> = Vec::new();
    for prefix in prefixes {
        if outermost.last().is_none_or(|outer| !outer.holds(prefix)) {
            outermost.push(prefix);
        }
    }
    outermost
}

/// What the new direction policies' blocks grant, each distinct combination once.
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
    /// Number of the one that grants nothing.
    const EMPTY: usize = 0;

    /// A combination with these changes, which are in the order of the direction policies.
    fn changed(&mut self, part: usize, changes: &[(Prefix, PolicyId, u32)]) -> usize {
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
