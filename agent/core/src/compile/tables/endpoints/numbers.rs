//! The numbers of endpoints: conntrack entries have them, so none is ever another endpoint's.

use std::collections::BTreeMap;

use crate::model::Key;
use crate::options::Options;

/// `Endpoint::uid_hash` of an interface whose pod is not known.
pub const WAITING: u64 = u64::MAX;

/// A pod's instance behind an instance of an interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) pod: Key,
    pub(crate) uid_hash: u64,
    pub(crate) incarnation: u64,
}

/// Numbers to give, and those that are put by for endpoints to come.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    next: u32,
    /// Given by an earlier agent: by interface and uid.
    known: BTreeMap<(u32, u64), u32>,
    /// Given before the tables were forgotten, or by another compiler.
    kept: BTreeMap<(u32, Identity), u32>,
}

impl Numbers {
    /// None has been given but by an earlier agent.
    pub(super) fn new(options: &Options) -> Self {
        let known = options.known_endpoints.values().map(|id| id + 1).max().unwrap_or(1);
        let next = options.first_endpoint_id.max(known).max(1);
        Self { next, known: options.known_endpoints.clone(), kept: BTreeMap::new() }
    }

    /// Whether an earlier agent did not know the pod behind an interface.
    pub(super) fn was_waiting(&self, ifindex: u32) -> bool {
        self.known.contains_key(&(ifindex, WAITING))
    }

    /// Puts the number of an endpoint by.
    pub(super) fn keep(&mut self, ifindex: u32, identity: Identity, id: u32) {
        self.kept.insert((ifindex, identity), id);
    }

    /// Puts by only the numbers of which this says so.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(u32, &Identity) -> bool) {
        self.kept.retain(|(ifindex, identity), _| stays(*ifindex, identity));
    }

    /// The number of a pod instance that is seen for the first time.
    pub(super) fn take(&mut self, ifindex: u32, identity: &Identity) -> u32 {
        if let Some(id) = self.kept.remove(&(ifindex, identity.clone())) {
            return id;
        }
        if let Some(id) = self.known.remove(&(ifindex, identity.uid_hash)) {
            return id;
        }
        self.next += 1;
        self.next - 1
    }

    /// Those that are put by. No other number that was ever given comes back.
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
        let of = |uid_hash| Identity { pod: Key::new("a", "p"), uid_hash, incarnation: 0 };
        assert_eq!(numbers.take(1, &of(7)), 20, "as the earlier agent gave it");
        assert_eq!(numbers.take(1, &of(7)), 21, "once");
        numbers.keep(1, of(7), 21);
        assert_eq!(numbers.put_by().collect::<Vec<_>>(), [21]);
        assert_eq!(numbers.take(2, &of(7)), 22, "another interface");
        assert_eq!(numbers.take(1, &of(7)), 21, "what was put by");
    }
}
