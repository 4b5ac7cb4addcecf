//! Places of pods in slices.

use std::collections::{BTreeMap, BTreeSet};

use netpold_api::peer_slice::SLICE_PREFIX;
use netpold_core::model::{Key, Labels, Pod};

/// Maximum number of pods of a slice. A change of one pod sends its slice, so smaller slices are cheaper while pods
/// change one by one; each slice adds 0.3 kB of metadata.
pub const MAX_PODS: usize = 16;
/// Maximum number of bytes of labels, ports and claims of a pod that shares a slice.
const MAX_SHARING: usize = 2 << 10;
/// Maximum number of bytes of labels, ports and claims of the pods that share a slice.
const MAX_WEIGHT: usize = 32 << 10;

/// Number of a slice, from 0; part of its object's name.
pub type SliceNumber = u32;

/// Returns the name of a slice with pods.
#[must_use]
pub fn slice_name(number: SliceNumber) -> String {
    format!("{SLICE_PREFIX}{number}")
}

/// Returns the number in the name of a slice with pods.
#[must_use]
pub fn slice_number(name: &str) -> Option<SliceNumber> {
    name.strip_prefix(SLICE_PREFIX)?.parse().ok()
}

/// Pods in slices. A pod stays in its slice until it is removed, so a change of one pod changes one slice. A new pod
/// gets a place next to pods with its namespace and labels, else of its namespace, else in the fullest slice: pods that
/// are replaced together change few slices. A pod with more than [`MAX_SHARING`] bytes has a slice of its own, so that
/// it adds nothing to the changes of others. A pod that would make its slice larger than [`MAX_WEIGHT`] moves to a new
/// one. A slice without pods is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    places: BTreeMap<Key, SliceNumber>,
    /// Pods by slice; no slice is empty.
    slices: BTreeMap<SliceNumber, BTreeMap<Key, Pod>>,
    /// Number of pods, and slice, of each slice with room for pods that share.
    room: BTreeSet<(usize, SliceNumber)>,
    /// Slices of each namespace, and of each label set in it.
    alike: BTreeMap<(String, Option<Labels>), AlikeSlices>,
    /// Lowest number without a slice.
    unused: SliceNumber,
}

/// Slices with pods that are alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct AlikeSlices {
    /// Number of such pods in each slice; none is 0.
    pods: BTreeMap<SliceNumber, usize>,
    /// Those with room, so that no search looks at the full ones.
    room: BTreeSet<SliceNumber>,
}

/// Effect of setting a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// No effect: the pod has this state already.
    Unchanged,
    /// This slice changed.
    In(SliceNumber),
    /// The pod moved, so both slices changed. The new one has to be written first, or readers miss the pod. Its number is the
    /// higher one, so that slices never wait for each other.
    Moved {
        /// Its former slice.
        from: SliceNumber,
        /// Its new slice.
        to: SliceNumber,
    },
}

impl Placement {
    /// Returns the slices that changed.
    pub fn slices(self) -> impl Iterator<Item = SliceNumber> {
        let numbers = match self {
            Self::Unchanged => [None, None],
            Self::In(number) => [Some(number), None],
            Self::Moved { from, to } => [Some(from), Some(to)],
        };
        numbers.into_iter().flatten()
    }
}

impl Packing {
    /// Returns the packing of slices that another writer left, the slices that differ from it, and the pods that moved. A pod
    /// in two slices stays in the first, so the one that readers use must come first.
    pub fn take_over(
        found: impl IntoIterator<Item = (SliceNumber, Vec<Pod>)>,
    ) -> (Self, BTreeSet<SliceNumber>, Vec<Placement>) {
        let (mut packing, mut changed) = (Self::default(), BTreeSet::new());
        for (number, pods) in found {
            for pod in pods {
                if packing.places.contains_key(&pod.key) {
                    changed.insert(number);
                } else {
                    packing.put_pod(number, pod);
                }
            }
            if !packing.slices.contains_key(&number) {
                changed.insert(number);
            }
        }
        let keys: Vec<Key> = packing.places.keys().cloned().collect();
        let moved = keys.iter().filter_map(|key| packing.move_if_needed(key)).collect();
        (packing, changed, moved)
    }

    /// Sets a pod.
    pub fn set(&mut self, pod: Pod) -> Placement {
        let key = pod.key.clone();
        let Some(place) = self.places.get(&key).copied() else {
            let number = self.place_for(&pod);
            self.put_pod(number, pod);
            return Placement::In(number);
        };
        if self.slices.get(&place).and_then(|slice| slice.get(&key)) == Some(&pod) {
            return Placement::Unchanged;
        }
        self.put_pod(place, pod);
        self.move_if_needed(&key).unwrap_or(Placement::In(place))
    }

    /// Moves a pod to a new slice if its slice exceeds a limit.
    fn move_if_needed(&mut self, key: &Key) -> Option<Placement> {
        let from = *self.places.get(key)?;
        let slice = self.slices.get(&from)?;
        let pod = slice.get(key)?;
        let is_heavy = || slice.values().map(weight).sum::<usize>() > MAX_WEIGHT;
        let is_alone = slice.len() == 1;
        if is_alone || shares(pod) && slice.len() <= MAX_PODS && !is_heavy() {
            return None;
        }
        let (pod, to) = (pod.clone(), self.next_number());
        self.remove(key);
        self.put_pod(to, pod);
        Some(Placement::Moved { from, to })
    }

    /// Removes a pod; returns its slice if there was one. A slice is removed together with its last pod.
    pub fn remove(&mut self, key: &Key) -> Option<SliceNumber> {
        let number = self.places.remove(key)?;
        let slice = self.slices.get_mut(&number)?;
        let had_room = self.room.remove(&(slice.len(), number));
        let gone = slice.remove(key);
        if slice.is_empty() {
            self.slices.remove(&number);
            self.unused = self.unused.min(number);
        }
        gone.iter().for_each(|pod| self.count(pod, number, false));
        self.note_room(number, had_room);
        Some(number)
    }

    /// Removes the pods that do not fulfil a condition, such as pods deleted while no writer was running; returns the
    /// changed slices.
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

    /// Returns the slice for a new pod: the newest with room next to pods like it, else the fullest with room, else an
    /// unused one. A pod that shares no slice gets an unused one.
    fn place_for(&self, pod: &Pod) -> SliceNumber {
        if !shares(pod) {
            return self.unused;
        }
        let mut alike = groups(pod).into_iter().filter_map(|group| self.alike.get(&group));
        let with_room = alike.find_map(|slices| slices.room.last());
        with_room.copied().unwrap_or_else(|| self.fullest_or_unused())
    }

    /// Counts a pod that was added to or removed from a slice.
    fn count(&mut self, pod: &Pod, number: SliceNumber, came: bool) {
        for group in groups(pod) {
            let slices = self.alike.entry(group.clone()).or_default();
            let count = slices.pods.entry(number).or_default();
            *count = if came { *count + 1 } else { count.saturating_sub(1) };
            if *count == 0 {
                slices.pods.remove(&number);
                slices.room.remove(&number);
            }
            if slices.pods.is_empty() {
                self.alike.remove(&group);
            }
        }
    }

    /// Returns the fullest slice with room, else an unused one.
    fn fullest_or_unused(&self) -> SliceNumber {
        let fullest = self.room.last().map(|(_, number)| *number);
        fullest.unwrap_or(self.unused)
    }

    /// Returns the number after the highest one of a slice.
    fn next_number(&self) -> SliceNumber {
        self.slices.last_key_value().map_or(0, |(last, _)| last.saturating_add(1))
    }

    fn put_pod(&mut self, number: SliceNumber, pod: Pod) {
        let slice = self.slices.entry(number).or_default();
        let had_room = self.room.remove(&(slice.len(), number));
        self.places.insert(pod.key.clone(), number);
        let before = slice.insert(pod.key.clone(), pod.clone());
        before.iter().for_each(|before| self.count(before, number, false));
        self.count(&pod, number, true);
        if self.note_room(number, had_room) {
            groups(&pod).iter().for_each(|group| self.set_room(group, number, true));
        }
        while self.slices.contains_key(&self.unused) {
            self.unused = self.unused.saturating_add(1);
        }
    }

    /// Notes whether a slice has room for any pod that shares, and had it before; returns whether it has.
    fn note_room(&mut self, number: SliceNumber, had_room: bool) -> bool {
        let Some(slice) = self.slices.get(&number) else { return false };
        let weight: usize = slice.values().map(weight).sum();
        let is_free = slice.len() < MAX_PODS && weight + MAX_SHARING <= MAX_WEIGHT;
        let has_room = is_free && slice.values().all(shares);
        if has_room {
            self.room.insert((slice.len(), number));
        }
        if has_room != had_room {
            let groups: BTreeSet<_> = slice.values().flat_map(groups).collect();
            groups.iter().for_each(|group| self.set_room(group, number, has_room));
        }
        has_room
    }

    fn set_room(&mut self, group: &(String, Option<Labels>), number: SliceNumber, has_room: bool) {
        let Some(slices) = self.alike.get_mut(group) else { return };
        if has_room {
            slices.room.insert(number);
        } else {
            slices.room.remove(&number);
        }
    }
}

/// Whether a pod may share a slice with others.
fn shares(pod: &Pod) -> bool {
    weight(pod) <= MAX_SHARING
}

/// Returns the bytes of a pod's labels, ports and claims.
fn weight(pod: &Pod) -> usize {
    let labels = pod.labels.iter().map(|(key, value)| key.len() + value.len());
    let ports = pod.ports.iter().map(|port| port.name.len() + 4);
    let claims = pod.secondary.iter().map(|second| {
        let addresses = 16 * second.addresses.len();
        second.name.len() + second.network.len() + second.device.len() + addresses
    });
    labels.chain(ports).chain(claims).sum()
}

/// Returns the groups whose pods preferably share slices with this one, the narrower first.
fn groups(pod: &Pod) -> [(String, Option<Labels>); 2] {
    let namespace = || pod.key.namespace.clone();
    [(namespace(), Some(pod.labels.clone())), (namespace(), None)]
}
