//! Places of pods in slices.

use std::collections::{BTreeMap, BTreeSet};

use netpold_core::model::{Key, Labels, Pod};

/// Most pods of a slice. A change of one pod sends its slice, so smaller slices are cheaper while pods change one by one;
/// each slice adds 0.4 kB of metadata.
pub const MAX_PODS: usize = 50;
/// Most bytes of labels, ports and claims of a pod that shares a slice.
const MAX_SHARING: usize = 2048;

/// Number of a slice, from 0; part of its object's name.
pub type SliceNumber = u32;

/// Pods in slices. A pod stays in its slice until it goes, so a change of one pod changes one slice. A new pod gets a
/// place beside pods with its namespace and labels, else of its namespace, else in the fullest slice: pods that are
/// replaced together change few slices. A pod with more than [`MAX_SHARING`] bytes has a slice of its own, so that it
/// adds nothing to the changes of others. A slice without pods goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    places: BTreeMap<Key, SliceNumber>,
    /// Pods by slice; no slice is empty or has more than [`MAX_PODS`].
    slices: BTreeMap<SliceNumber, BTreeMap<Key, Pod>>,
    /// Number of pods, and slice, of each slice with room for pods that share.
    room: BTreeSet<(usize, SliceNumber)>,
    /// Pods by slice, of each namespace and of each label set in it; no number is 0.
    alike: BTreeMap<(String, Option<Labels>), BTreeMap<SliceNumber, usize>>,
}

impl Packing {
    /// Returns the packing of slices that another writer left, and the slices that differ from it: a pod in two slices
    /// stays in the first, and pods beyond [`MAX_PODS`] get other places.
    pub fn take_over(
        found: impl IntoIterator<Item = (SliceNumber, Vec<Pod>)>,
    ) -> (Self, BTreeSet<SliceNumber>) {
        let (mut packing, mut changed, mut homeless) =
            (Self::default(), BTreeSet::new(), Vec::new());
        for (number, pods) in found {
            for pod in pods {
                let is_full = packing.len_of(number) >= MAX_PODS;
                if packing.places.contains_key(&pod.key) {
                    changed.insert(number);
                } else if is_full {
                    changed.insert(number);
                    homeless.push(pod);
                } else {
                    packing.put(number, pod);
                }
            }
            if packing.len_of(number) == 0 {
                changed.insert(number);
            }
        }
        homeless.into_iter().for_each(|pod| changed.extend(packing.set(pod)));
        (packing, changed)
    }

    /// Sets a pod; returns the slices that changed.
    pub fn set(&mut self, pod: Pod) -> Vec<SliceNumber> {
        let known = self.places.get(&pod.key).copied();
        let before = known.and_then(|number| self.slices.get(&number)?.get(&pod.key));
        if before == Some(&pod) {
            return Vec::new();
        }
        let stays = before.is_some_and(|before| shares(before) == shares(&pod));
        let left = if stays { None } else { self.remove(&pod.key) };
        let number = known.filter(|_| stays).unwrap_or_else(|| self.place_for(&pod));
        self.put(number, pod);
        let also = left.filter(|left| *left != number);
        also.into_iter().chain([number]).collect()
    }

    /// Removes a pod; returns its slice if there was one. The slice goes with its last pod.
    pub fn remove(&mut self, key: &Key) -> Option<SliceNumber> {
        let number = self.places.remove(key)?;
        let slice = self.slices.get_mut(&number)?;
        self.room.remove(&(slice.len(), number));
        let gone = slice.remove(key);
        if slice.is_empty() {
            self.slices.remove(&number);
        } else if slice.values().all(shares) {
            self.room.insert((slice.len(), number));
        }
        gone.iter().for_each(|pod| self.count(pod, number, false));
        Some(number)
    }

    /// Removes the pods that do not fulfil a condition, as those that went while no writer watched; returns the changed
    /// slices.
    pub fn retain(&mut self, mut exists: impl FnMut(&Key) -> bool) -> BTreeSet<SliceNumber> {
        let gone: Vec<Key> = self.places.keys().filter(|key| !exists(key)).cloned().collect();
        gone.iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Returns the pods of a slice, by key; `None`: there is no such slice.
    #[must_use]
    pub fn slice(&self, number: SliceNumber) -> Option<&BTreeMap<Key, Pod>> {
        self.slices.get(&number)
    }

    /// Returns the slices with their pods, by number.
    pub fn slices(&self) -> impl Iterator<Item = (SliceNumber, &BTreeMap<Key, Pod>)> {
        self.slices.iter().map(|(number, pods)| (*number, pods))
    }

    fn len_of(&self, number: SliceNumber) -> usize {
        self.slices.get(&number).map_or(0, BTreeMap::len)
    }

    /// Returns the slice for a new pod: the newest with room beside pods like it, else the fullest with room.
    fn place_for(&self, pod: &Pod) -> SliceNumber {
        if !shares(pod) {
            return self.unused();
        }
        let alike = groups(pod).into_iter().filter_map(|group| self.alike.get(&group));
        // The newest slice mostly has room, so that the search is short.
        let mut numbers = alike.flat_map(|slices| slices.keys().rev()).copied();
        let with_room = numbers.find(|number| self.room.contains(&(self.len_of(*number), *number)));
        with_room.unwrap_or_else(|| self.free())
    }

    /// Counts a pod that came to a slice, or went.
    fn count(&mut self, pod: &Pod, number: SliceNumber, came: bool) {
        for group in groups(pod) {
            let slices = self.alike.entry(group.clone()).or_default();
            let count = slices.entry(number).or_default();
            *count = if came { *count + 1 } else { count.saturating_sub(1) };
            if *count == 0 {
                slices.remove(&number);
            }
            if slices.is_empty() {
                self.alike.remove(&group);
            }
        }
    }

    /// Returns the fullest slice with room, else an unused one.
    fn free(&self) -> SliceNumber {
        let fullest = self.room.last().map(|(_, number)| *number);
        fullest.unwrap_or_else(|| self.unused())
    }

    /// Returns the lowest number without a slice.
    fn unused(&self) -> SliceNumber {
        let unused = (0..).zip(self.slices.keys()).find(|(number, used)| number != *used);
        let next = || self.slices.last_key_value().map_or(0, |(last, _)| last.saturating_add(1));
        unused.map_or_else(next, |(number, _)| number)
    }

    fn put(&mut self, number: SliceNumber, pod: Pod) {
        let slice = self.slices.entry(number).or_default();
        self.room.remove(&(slice.len(), number));
        self.places.insert(pod.key.clone(), number);
        let before = slice.insert(pod.key.clone(), pod.clone());
        if slice.len() < MAX_PODS && slice.values().all(shares) {
            self.room.insert((slice.len(), number));
        }
        before.iter().for_each(|before| self.count(before, number, false));
        self.count(&pod, number, true);
    }
}

/// Whether a pod may share a slice with others.
fn shares(pod: &Pod) -> bool {
    let labels = pod.labels.iter().map(|(key, value)| key.len() + value.len());
    let ports = pod.ports.iter().map(|port| port.name.len() + 4);
    let claims = pod.second.iter().map(|second| {
        let addresses = 16 * second.addresses.len();
        second.name.len() + second.network.len() + second.device.len() + addresses
    });
    labels.chain(ports).chain(claims).sum::<usize>() <= MAX_SHARING
}

/// Returns the pods' groups that share slices, the narrower first.
fn groups(pod: &Pod) -> [(String, Option<Labels>); 2] {
    let namespace = || pod.key.namespace.clone();
    [(namespace(), Some(pod.labels.clone())), (namespace(), None)]
}
