//! Evictions from a full table: the endpoints whose flows are evicted.
#![expect(clippy::expect_used, reason = "helpers of tests fail as tests do")]

use netpold_ebpf::{
    flow::{
        key::{hash, words4},
        table::{BucketsFull, FlagChanges, Flow},
    },
    layout::{CT_INGRESS, CT_REPLIED, Ct4Key},
    packet::family::V4,
    tables::{self, Tables, make_room},
};
use netpold_testkit::node::NodeTables;

/// A flow of an endpoint, by their numbers.
#[derive(Clone, Copy)]
struct Of(u32, u32);

impl Of {
    fn key(self) -> [u64; 2] {
        let Self(endpoint, remote) = self;
        words4(&Ct4Key { endpoint, remote, local_port: 80, remote_port: 9, protocol: 6 })
    }

    fn hash(self, tables: &NodeTables) -> u64 {
        hash(&tables.flows.settings, &self.key())
    }

    fn place(self, tables: &NodeTables) -> Flow<[u64; 2]> {
        let hash = self.hash(tables);
        tables::flow::<V4, _, _>(tables, &tables.flows.settings, self.key(), hash).expect("buckets")
    }

    /// Inserts the flow as a verdict does.
    fn insert(self, tables: &NodeTables) -> Result<(), BucketsFull> {
        tables.flows.later(1);
        let hash = self.hash(tables);
        tables.insert4(self.key(), hash, CT_INGRESS).or_else(|_| {
            tables.make_room(false, self.0, hash);
            tables.insert4(self.key(), hash, CT_INGRESS)
        })
    }

    fn answered(self, tables: &NodeTables) -> Result<(), BucketsFull> {
        self.insert(tables)?;
        // SAFETY: the buckets of a live table.
        let hit = unsafe { self.place(tables).find(tables) }.expect("the flow");
        let marks = FlagChanges::new(CT_REPLIED, 0);
        // SAFETY: as before.
        unsafe {
            Flow::<[u64; 2]>::touch(tables, hit, marks, tables.now(), 0);
        };
        Ok(())
    }

    fn is_there(self, tables: &NodeTables) -> bool {
        // SAFETY: the buckets of a live table.
        unsafe { self.place(tables).find(tables) }.is_some()
    }
}

/// Number of an endpoint's flows in the table, among those below `numbers`.
fn there(tables: &NodeTables, endpoint: u32, numbers: u32) -> usize {
    (0..numbers).filter(|number| Of(endpoint, *number).is_there(tables)).count()
}

/// A table with eight places for every flow, filled by these numbers of flows per endpoint.
fn eight(shares: &[u32]) -> NodeTables {
    let tables = NodeTables::new(2);
    for (endpoint, share) in shares.iter().enumerate() {
        for number in 0..*share {
            Of(endpoint as u32 + 1, number).answered(&tables).expect("room");
        }
    }
    tables
}

#[test]
fn a_pod_that_has_most_places_gives_way() {
    for (shares, goes) in [(&[8][..], 3), (&[7, 1], 2), (&[6, 2], 1), (&[6, 1, 1], 1)] {
        let tables = eight(shares);
        let newcomer = shares.len() as u32 + 1;
        let given: Vec<bool> =
            (0..4).map(|number| Of(newcomer, number).answered(&tables).is_ok()).collect();
        let count = given.iter().filter(|given| **given).count();
        // After its second flow, the newcomer has two places and gets no more.
        assert_eq!(count, goes.min(2), "{shares:?}");
        assert!(given[..count].iter().all(|given| *given), "{shares:?}: the first ones");
        // The flows that were idle longest are evicted.
        for number in 0..shares[0] {
            let stays = number >= count as u32;
            assert_eq!(Of(1, number).is_there(&tables), stays, "{shares:?}: flow {number}");
        }
        for (other, share) in (2..).zip(&shares[1..]) {
            assert_eq!(there(&tables, other, *share), *share as usize, "{shares:?}: of {other}");
        }
    }
}

#[test]
fn a_pod_with_less_gives_nothing() {
    for shares in [&[5, 3][..], &[4, 4], &[5, 1, 1, 1], &[3, 3, 2]] {
        let tables = eight(shares);
        // An endpoint without any flow, and those in the table.
        for endpoint in 1..=shares.len() as u32 + 1 {
            assert_eq!(
                Of(endpoint, 100).insert(&tables),
                Err(BucketsFull),
                "{shares:?}: {endpoint}"
            );
        }
    }
    // An endpoint that has all places does not evict its own flows.
    assert_eq!(Of(1, 100).insert(&eight(&[8])), Err(BucketsFull));
    // Nor does an endpoint that has two places evict flows of another one.
    assert_eq!(Of(2, 100).insert(&eight(&[6, 2])), Err(BucketsFull));
}

const BUCKETS: u32 = 256;
const WAYS: u32 = BUCKETS * 4;
const TRIES: u32 = 20 * WAYS;

/// A table filled by one endpoint.
fn filled() -> NodeTables {
    let tables = NodeTables::new(BUCKETS);
    for number in 0..TRIES {
        let _ = Of(1, number).answered(&tables);
    }
    assert!(there(&tables, 1, TRIES) as u32 > WAYS * 99 / 100, "it has nearly everything");
    tables
}

#[test]
fn others_get_a_share_of_a_full_table() {
    let tables = filled();
    // Many pods begin a few flows each.
    for number in 0..2 {
        for endpoint in 2..12 {
            assert_eq!(Of(endpoint, number).answered(&tables), Ok(()), "{endpoint} {number}");
        }
    }
    for endpoint in 2..12 {
        assert_eq!(there(&tables, endpoint, 2), 2, "what {endpoint} was given stays");
    }
    // Even if other endpoints try to begin many flows, the first endpoint keeps some places.
    for endpoint in 2..22 {
        for number in 0..WAYS {
            let _ = Of(endpoint, number).answered(&tables);
        }
    }
    let left = there(&tables, 1, TRIES) as u32;
    assert!((WAYS / 4..WAYS / 2).contains(&left), "{left} of {WAYS}");
}

#[test]
fn half_open_flows_of_another_pod_take_few_places() {
    let tables = filled();
    for number in 0..TRIES {
        let _ = Of(2, number).insert(&tables);
    }
    let (left, taken) = (there(&tables, 1, TRIES) as u32, there(&tables, 2, TRIES) as u32);
    assert!(taken <= BUCKETS, "one of each bucket at the most, not {taken}");
    assert!(left >= WAYS * 3 / 4, "{left} of {WAYS}");
}

/// A writer that loses a race for a free place takes no other flow's place.
#[test]
fn a_table_with_room_is_not_shared() {
    let tables = eight(&[7]);
    assert!(!make_room::<V4, _>(&tables, 2, Of(2, 0).hash(&tables)));
    assert_eq!(there(&tables, 1, 7), 7);
    Of(3, 0).insert(&tables).expect("the last one");
    assert!(!make_room::<V4, _>(&tables, 2, Of(2, 0).hash(&tables)), "a half-open flow is there");
    assert_eq!(there(&tables, 1, 7), 7);
}

/// A pod's own flows without a packet for a quarter of an hour make room for its new ones; its other flows do not.
#[test]
fn a_pods_stale_flows_make_room_for_its_own() {
    let tables = eight(&[4, 4]);
    let minutes = |minutes: u32| {
        tables.flows.later(minutes * 60_000);
    };
    minutes(14);
    assert_eq!(Of(1, 100).answered(&tables), Err(BucketsFull), "they may still be in use");
    minutes(2);
    assert_eq!(Of(1, 100).answered(&tables), Ok(()));
    assert!(!Of(1, 0).is_there(&tables), "the longest idle one is gone");
    assert_eq!((there(&tables, 1, 4), there(&tables, 2, 4)), (3, 4));
    assert_eq!(Of(3, 0).insert(&tables), Err(BucketsFull), "not for another pod");
    for number in 1..4 {
        assert_eq!(Of(1, 100 + number).answered(&tables), Ok(()));
    }
    assert_eq!(Of(1, 104).answered(&tables), Err(BucketsFull), "those are in use");
    assert_eq!(there(&tables, 2, 4), 4);
}
