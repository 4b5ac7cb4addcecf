//! Numbers of endpoints. Conntrack entries contain them, so a number is never reused for another endpoint.
//!
//! Numbers that are equal modulo [`DOUBT_BLOCKS`] share doubts about connections to resolvers, so the remainders are
//! spread evenly over the endpoints in use: up to that number of pods share no doubts.

use std::collections::BTreeMap;

use netpold_ebpf::layout::{DOUBT_BLOCKS, MARK_NUMBERS};

use crate::model::Key;
use crate::options::Options;

/// `Endpoint::uid_hash` of an interface with an unknown pod.
pub const WAITING: u64 = u64::MAX;

/// One pod (by uid) behind one interface (by incarnation).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodInstance {
    pub(crate) pod: Key,
    pub(crate) uid_hash: u64,
    pub(crate) incarnation: u64,
}

/// The next number, and numbers reserved for future endpoints.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    next: u32,
    /// Numbers given by an earlier agent, by interface and uid.
    known: BTreeMap<(u32, u64), u32>,
    /// Numbers given before the tables were emptied, or by another compiler.
    kept: BTreeMap<(u32, PodInstance), u32>,
}

impl Numbers {
    /// Reserves only the numbers of an earlier agent.
    pub(super) fn new(options: &Options) -> Self {
        let known = options.known_endpoints.values().map(|id| id + 1).max().unwrap_or(1);
        let next = options.first_endpoint_id.max(known).max(1);
        Self { next, known: options.known_endpoints.clone(), kept: BTreeMap::new() }
    }

    /// Whether an interface was an endpoint of an earlier agent: of a pod, or of an unknown one that it denied.
    pub(super) fn was_endpoint(&self, ifindex: u32) -> bool {
        self.known.range((ifindex, 0)..=(ifindex, u64::MAX)).next().is_some()
    }

    /// Reserves the number of an endpoint.
    pub(super) fn reserve(&mut self, ifindex: u32, identity: PodInstance, id: u32) {
        self.kept.insert((ifindex, identity), id);
    }

    /// Keeps only the reserved numbers for which `stays` is true.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(u32, &PodInstance) -> bool) {
        self.kept.retain(|(ifindex, identity), _| stays(*ifindex, identity));
    }

    /// The number of a pod instance seen for the first time: a reserved one, else a new one. `live`: the numbers in use.
    /// `former`: the number in the record that the instance takes over, whose marks must not become its own.
    pub(super) fn allocate(
        &mut self,
        ifindex: u32,
        identity: &PodInstance,
        live: impl Iterator<Item = u32>,
        former: Option<u32>,
    ) -> u32 {
        if let Some(id) = self.kept.remove(&(ifindex, identity.clone())) {
            return id;
        }
        if let Some(id) = self.known.remove(&(ifindex, identity.uid_hash)) {
            return id;
        }
        let block = |id: u32| (id % DOUBT_BLOCKS) as usize;
        let mut sharing = [0_u32; DOUBT_BLOCKS as usize];
        live.chain(self.put_by()).for_each(|id| sharing[block(id)] += 1);
        let next = self.next..self.next.saturating_add(DOUBT_BLOCKS);
        let differs = |id: &u32| former.is_none_or(|it| it % MARK_NUMBERS != id % MARK_NUMBERS);
        let id = next.filter(differs).min_by_key(|id| sharing[block(*id)]).unwrap_or(self.next);
        self.next = id.saturating_add(1);
        id
    }

    /// Reserved numbers. Any other number given so far is never used again.
    pub(super) fn put_by(&self) -> impl Iterator<Item = u32> {
        self.kept.values().chain(self.known.values()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    #[test]
    fn a_number_goes_to_one_instance_only() {
        let known_endpoints = BTreeMap::from([((1, 7), 20)]);
        let mut numbers = Numbers::new(&Options { known_endpoints, ..Options::default() });
        let of = |uid_hash| PodInstance { pod: Key::new("a", "p"), uid_hash, incarnation: 0 };
        let take = |numbers: &mut Numbers, ifindex| {
            numbers.allocate(ifindex, &of(7), [].into_iter(), None)
        };
        assert_eq!(take(&mut numbers, 1), 20, "as the earlier agent gave it");
        assert_eq!(take(&mut numbers, 1), 21, "once");
        numbers.reserve(1, of(7), 21);
        assert_eq!(numbers.put_by().collect::<Vec<_>>(), [21]);
        assert_eq!(take(&mut numbers, 2), 22, "another interface");
        assert_eq!(take(&mut numbers, 1), 21, "the reserved number");
    }

    #[test]
    fn a_number_that_takes_over_a_record_has_another_mark() {
        let of = |uid_hash| PodInstance { pod: Key::new("a", "p"), uid_hash, incarnation: 0 };
        for former in 20..26 {
            let options = Options { first_endpoint_id: former + 1, ..Options::default() };
            // The next two numbers share doubts with others, so the one with the former remainder is next.
            let live = [former, former + 1 + DOUBT_BLOCKS, former + 2 + DOUBT_BLOCKS];
            let take =
                |former| Numbers::new(&options).allocate(1, &of(7), live.into_iter(), former);
            assert_eq!(take(None), former + MARK_NUMBERS);
            assert_eq!(take(Some(former)), former + MARK_NUMBERS + 1);
        }
    }

    #[test]
    fn endpoints_share_no_doubts_while_there_are_blocks_left() {
        let mut numbers = Numbers::new(&Options::default());
        let of = |uid_hash| PodInstance { pod: Key::new("a", "p"), uid_hash, incarnation: 0 };
        let mut live: Vec<u32> = Vec::new();
        // Pods start and end: every third one stays.
        for pod in 0..3 * u64::from(DOUBT_BLOCKS) {
            let id = numbers.allocate(pod as u32, &of(pod), live.iter().copied(), None);
            assert!(!live.contains(&id));
            if pod % 3 == 0 {
                live.push(id);
            }
        }
        let blocks = |live: &[u32]| -> std::collections::BTreeSet<u32> {
            live.iter().map(|id| id % DOUBT_BLOCKS).collect()
        };
        assert_eq!(
            (live.len(), blocks(&live).len()),
            (DOUBT_BLOCKS as usize, DOUBT_BLOCKS as usize)
        );
        for pod in 0..u64::from(DOUBT_BLOCKS) {
            live.push(numbers.allocate(1, &of(1000 + pod), live.iter().copied(), None));
        }
        let second = &live[DOUBT_BLOCKS as usize..];
        assert_eq!(blocks(second).len(), second.len(), "a block is shared by two at most");
    }
}
