//! Divides the address space by the grants of all direction policies' ipBlocks.
//!
//! A place is a prefix at which the blocks of some direction policy change their grant. The key of a place lists the
//! grant of each direction policy's blocks there. Places with equal keys form one group, and an address belongs to the
//! group of the longest place that contains it. So a list of 100,000 blocks makes one group, not 100,000.
//!
//! An edited policy becomes a new direction policy. This changes the keys of its places. A group keeps its number if
//! all of its places change in the same way, and only places that leave or join a group are evaluated again. In the
//! rows of unchanged direction policies the group keeps its meaning too, because their part of the key is unchanged.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::compile::sets::set::{GROUP, NO_GROUP, SetId};
use crate::ports::blocks::{Changes, NOTHING};
use crate::prefix::{IpFamily, Prefix, PrefixMap};

/// Number of a direction policy in use; never reused.
pub(crate) type PolicyId = u32;

/// Grants of the direction policies' blocks at a place: per direction policy, in order, the number of a value in its
/// [`crate::ports::blocks::BlockMap`]. Direction policies without a grant there are left out.
type GrantKey = Vec<(PolicyId, u32)>;

/// A prefix at which the grant of some direction policy's blocks changes.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Number of direction policies with a change here.
    direction_policies: u32,
    /// `None` for a new place.
    group: Option<SetId>,
}

#[derive(Debug)]
struct Group {
    key: GrantKey,
    /// One of its present or former places, used to look up grants of the whole group.
    representative: Prefix,
    /// Number of places; 0 if the group ends with this update.
    places: u32,
}

/// Index of a new key in [`RegroupedPlaces::keys`].
type Target = usize;

/// The groups in use.
#[derive(Debug, Default)]
pub(crate) struct BlockGroups {
    next: SetId,
    free: BTreeSet<SetId>,
    places: PrefixMap<Place>,
    groups: HashMap<SetId, Group>,
    by_key: HashMap<GrantKey, SetId>,
    /// Groups that lost their last place in this update; some may have gained one since.
    ended: Vec<SetId>,
    acquired: Vec<(PolicyId, Arc<Changes>)>,
    released: Vec<(PolicyId, Arc<Changes>)>,
    /// Number of places evaluated so far.
    pub(crate) work: u64,
}

/// The places to settle, in order, each with the index of its new key; `None` if the place ends.
#[derive(Default)]
struct RegroupedPlaces {
    places: Vec<(Prefix, Place, Option<Target>)>,
    keys: Vec<GrantKey>,
    by_key: HashMap<GrantKey, Target>,
    /// Keys by a place's present group and its grants from new direction policies.
    targets: HashMap<(SetId, usize), Target>,
    new: NewGrants,
}

impl BlockGroups {
    /// Adds a direction policy to those in use.
    pub(crate) fn acquire(&mut self, id: PolicyId, changes: &Arc<Changes>) {
        if !changes.0.is_empty() {
            self.acquired.push((id, changes.clone()));
        }
    }

    /// Removes a direction policy from those in use.
    pub(crate) fn release(&mut self, id: PolicyId, changes: &Arc<Changes>) {
        if changes.0.is_empty() {
            return;
        }
        match self.acquired.iter().position(|(acquired, _)| *acquired == id) {
            Some(place) => drop(self.acquired.remove(place)),
            None => self.released.push((id, changes.clone())),
        }
    }

    /// Divides the address space of added and removed direction policies again. Returns the places with a changed
    /// group, in order; `None` for places that ended.
    pub(crate) fn regroup(&mut self) -> Vec<(Prefix, Option<SetId>)> {
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
        let mut divided = RegroupedPlaces::default();
        for region in outermost(begun.into_iter().chain(ended).collect()) {
            self.divide(region, &changes, &gone, &mut divided);
        }
        self.work += divided.places.len() as u64;
        let groups = self.number(&divided);
        self.install(&divided.places, &groups)
    }

    /// Computes the keys of a region's places.
    fn divide(
        &self,
        region: Prefix,
        changes: &[(Prefix, PolicyId, u32)],
        gone: &[PolicyId],
        divided: &mut RegroupedPlaces,
    ) {
        let around = self.places.parent(region).and_then(|place| place.group);
        let mut open: Vec<(Prefix, SetId, usize)> = Vec::new();
        let mut next = changes.partition_point(|change| change.0 < region);
        for (prefix, place) in self.places.under(region) {
            while open.pop_if(|(outer, ..)| !outer.contains(prefix)).is_some() {}
            let outer = (around.unwrap_or(NO_GROUP), NewGrants::EMPTY);
            let (group, part) = open.last().map_or(outer, |outer| (outer.1, outer.2));
            let group = place.group.unwrap_or(group);
            let here = changes[next..].iter().take_while(|change| change.0 == prefix).count();
            let part = divided.new.changed(part, &changes[next..next + here]);
            next += here;
            open.push((prefix, group, part));
            let target = (place.direction_policies > 0).then(|| {
                let RegroupedPlaces { targets, by_key, keys, new, .. } = &mut *divided;
                *targets.entry((group, part)).or_insert_with(|| {
                    let old = self.groups.get(&group).map_or(&[][..], |group| &group.key);
                    let stays = old.iter().filter(|(id, _)| gone.binary_search(id).is_err());
                    // Numbers of new direction policies are greater than all present ones.
                    let key: GrantKey = stays.chain(&new.parts[part]).copied().collect();
                    *by_key.entry(key).or_insert_with_key(|key| {
                        keys.push(key.clone());
                        keys.len() - 1
                    })
                })
            });
            divided.places.push((prefix, *place, target));
        }
    }

    /// Removes the places from their groups and assigns a group to each key: the existing group of that key, else the
    /// group from which most of its places come if no other place stayed in it, else a new one.
    fn number(&mut self, divided: &RegroupedPlaces) -> Vec<SetId> {
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
        let known = |key: &GrantKey| match key.is_empty() {
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
            let representative = Prefix { family: IpFamily::V4, bits: 0, len: 0 };
            let new = || Group { key: GrantKey::new(), representative, places: 0 };
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

    /// Value that a direction policy's blocks have in a group. `id` is the number of the direction policy, if in use.
    /// If the direction policy or the group is no longer in use, the value is looked up at the group's representative
    /// place.
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

    /// The grants of a group's places: numbers of direction policies, and of their values.
    pub(crate) fn key(&self, group: SetId) -> &[(PolicyId, u32)] {
        self.groups.get(&group).map_or(&[], |group| &group.key)
    }

    /// The first place of a group; independent of history.
    pub(crate) fn first(&self, id: SetId) -> Option<Prefix> {
        self.places.iter().find(|(_, place)| place.group == Some(id)).map(|(prefix, _)| prefix)
    }

    /// Ends the update: drops groups without places.
    pub(crate) fn sweep(&mut self) {
        for id in std::mem::take(&mut self.ended) {
            if self.groups.get(&id).is_some_and(|group| group.places == 0) {
                self.groups.remove(&id);
                self.free.insert(id);
            }
        }
    }
}

/// Prefixes that no other of the prefixes contains, in order.
fn outermost(mut prefixes: Vec<Prefix>) -> Vec<Prefix> {
    prefixes.sort_unstable();
    let mut outermost: Vec<Prefix> = Vec::new();
    for prefix in prefixes {
        if outermost.last().is_none_or(|outer| !outer.contains(prefix)) {
            outermost.push(prefix);
        }
    }
    outermost
}

/// Grants of the new direction policies' blocks, each distinct combination once.
struct NewGrants {
    parts: Vec<GrantKey>,
    by_key: HashMap<GrantKey, usize>,
}

impl Default for NewGrants {
    fn default() -> Self {
        Self { parts: vec![GrantKey::new()], by_key: HashMap::from([(GrantKey::new(), 0)]) }
    }
}

impl NewGrants {
    /// Index of the combination without grants.
    const EMPTY: usize = 0;

    /// Index of a combination after these changes, which are sorted by direction policy.
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
