//! The flow table under collisions, in a table far too small for its flows.
#![expect(clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::{
    collections::HashSet,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use netpold_ebpf::{
    flow::{
        control::{Control, timeouts},
        key::{first, hash, second, words4},
        memory::Memory,
        sweep::{displaced, renew, sweep},
        table::{BucketsFull, Evicted, FlagChanges, Flow},
    },
    host::HostMemory,
    layout::{
        CT_INGRESS, CT_REPLIED, CT_VALID, Ct4Key, Ct4Way, Settings, TIMEOUT_IDLE,
        TIMEOUT_TCP_ESTABLISHED,
    },
    packet::family::V4,
    tables::{self, Tables},
};
use netpold_testkit::{node::NodeTables, random::Random};

const BUCKETS: u32 = 16;

fn key(number: u32) -> [u64; 2] {
    words4(&Ct4Key { endpoint: 1, remote: number, local_port: 80, remote_port: 9, protocol: 6 })
}

fn hashed(tables: &NodeTables, number: u32) -> ([u64; 2], u64) {
    let key = key(number);
    (key, hash(&tables.flows.settings, &key))
}

fn insert(tables: &NodeTables, number: u32, flags: u16) -> Result<Evicted, BucketsFull> {
    let (key, hash) = hashed(tables, number);
    tables::insert::<V4, _, _>(tables, key, hash, flags)
}

fn flow(tables: &NodeTables, number: u32) -> Flow<[u64; 2]> {
    let (key, hash) = hashed(tables, number);
    tables::flow::<V4, _, _>(tables, &tables.flows.settings, key, hash).expect("buckets")
}

fn find(tables: &NodeTables, number: u32) -> Option<Control> {
    // SAFETY: the buckets of a live table.
    unsafe { flow(tables, number).find(tables) }.map(|hit| hit.control)
}

fn reply(tables: &NodeTables, number: u32) {
    // SAFETY: the buckets of a live table.
    let hit = unsafe { flow(tables, number).find(tables) }.expect("the flow");
    let marks = FlagChanges::new(CT_REPLIED, 0);
    // SAFETY: as before.
    unsafe {
        Flow::<[u64; 2]>::touch(tables, hit, marks, tables.now(), 0);
    };
}

#[test]
fn replied_flows_are_never_evicted_by_unreplied_ones() {
    let tables = NodeTables::new(BUCKETS);
    let mut replied = Vec::new();
    for number in 0..20 {
        insert(&tables, number, CT_INGRESS).expect("room");
        reply(&tables, number);
        replied.push(number);
    }
    for number in 1000..20_000 {
        let _ = insert(&tables, number, CT_INGRESS);
    }
    for number in replied {
        let control = find(&tables, number).expect("a replied flow");
        assert_eq!(control.flags(), CT_VALID | CT_INGRESS | CT_REPLIED);
    }
}

#[test]
fn a_table_full_of_replied_flows_says_so() {
    let tables = NodeTables::new(1);
    for number in 0..4 {
        insert(&tables, number, CT_INGRESS).expect("room");
        reply(&tables, number);
    }
    assert_eq!(insert(&tables, 9, CT_INGRESS), Err(BucketsFull));
    // Expired flows make room, swept or not.
    tables.flows.later(tables.flows.settings.timeouts[TIMEOUT_TCP_ESTABLISHED]);
    assert_eq!(insert(&tables, 9, CT_INGRESS), Ok(Evicted::Nothing));
}

#[test]
fn the_oldest_unreplied_flow_goes_first() {
    let tables = NodeTables::new(1);
    for number in 0..4 {
        insert(&tables, number, CT_INGRESS).expect("room");
        tables.flows.later(10);
    }
    assert_eq!(insert(&tables, 4, CT_INGRESS), Ok(Evicted::HalfOpen));
    assert!(find(&tables, 0).is_none());
    assert!((1..=4).all(|number| find(&tables, number).is_some()));
}

#[test]
fn an_empty_place_is_taken_before_one_that_is_over() {
    let tables = NodeTables::new(1);
    let begin = |number| {
        let (key, hash) = hashed(&tables, number);
        tables.insert4(key, hash, CT_INGRESS)
    };
    assert_eq!(begin(0), Ok(()));
    tables.flows.later(tables.flows.settings.timeouts[0]);
    for number in 1..=3 {
        assert_eq!(begin(number), Ok(()));
        assert!(find(&tables, 0).is_some(), "{number} has a place of its own");
    }
    assert_eq!(begin(4), Ok(()));
    assert!(find(&tables, 0).is_none(), "the one that was over");
    assert!((1..=4).all(|number| find(&tables, number).is_some()));
}

/// Five flows of one first bucket, the last of which is in its second one.
fn five_of_one_bucket(tables: &NodeTables, bucket: u32) -> Vec<u32> {
    let begins = |number: &u32| first(hashed(tables, *number).1, BUCKETS - 1) == bucket;
    let flows: Vec<u32> = (0..).filter(begins).take(5).collect();
    for number in &flows {
        insert(tables, *number, CT_INGRESS).expect("room");
    }
    flows
}

#[test]
fn a_flow_in_its_second_bucket_is_found_once_the_first_is_empty() {
    let tables = NodeTables::new(BUCKETS);
    let flows = five_of_one_bucket(&tables, 3);
    let bucket = tables.bucket4(3).expect("a bucket");
    for place in 0..4 {
        // SAFETY: a way of the bucket.
        let way = unsafe { bucket.add(place * size_of::<Ct4Way>() / 8) };
        // SAFETY: as before.
        let control = Control(unsafe { tables.load(way) });
        // Incarnation 0, as after a wrap.
        let control = Control::new(control.last_seen(), 0, control.flags());
        // SAFETY: as before.
        unsafe { tables.store(way, control.0) };
    }
    let settings = &tables.flows.settings;
    // SAFETY: a whole bucket of a live table.
    let swept = unsafe { sweep::<[u64; 2], _>(&tables, bucket, settings, 0, 0, |_| false) };
    assert_eq!(swept.orphaned, 4);
    let found: Vec<u32> = flows.iter().copied().filter(|it| find(&tables, *it).is_some()).collect();
    assert_eq!(found, flows[4..]);
}

#[test]
fn nothing_is_looked_for_behind_a_way_that_was_never_used() {
    let tables = NodeTables::new(BUCKETS);
    let flows = five_of_one_bucket(&tables, 3);
    let found = |number: u32, others: u32| {
        let mut flow = flow(&tables, number);
        flow.buckets[0] = tables.bucket4(others).expect("a bucket");
        // SAFETY: the buckets of a live table.
        unsafe { flow.find(&tables) }.is_some()
    };
    let second = second(hashed(&tables, flows[4]).1, BUCKETS - 1);
    let unused = (0..BUCKETS).find(|it| ![3, second].contains(it)).expect("another bucket");
    assert!(found(flows[4], 3));
    assert!(!found(flows[4], unused), "the second bucket is not looked at");
}

/// One pass of the agent over the free ways.
fn pass(tables: &NodeTables, now: u32) {
    let settings = &tables.flows.settings;
    let mut is_first = [false; BUCKETS as usize];
    for index in 0..BUCKETS {
        let bucket = tables.bucket4(index).expect("a bucket");
        let meet = |first: u32| is_first[first as usize] = true;
        // SAFETY: a whole bucket of a live table.
        unsafe {
            displaced::<[u64; 2], _>(tables, (bucket, index), (settings, BUCKETS - 1), meet);
        }
    }
    for (index, is_first) in (0..BUCKETS).zip(is_first) {
        let bucket = tables.bucket4(index).expect("a bucket");
        // SAFETY: as before.
        unsafe { renew::<[u64; 2], _>(tables, bucket, (now, REST), is_first) };
    }
}

const REST: u32 = 100;

/// Whether each way of a bucket is unused.
fn unused(tables: &NodeTables, bucket: u32) -> [bool; 4] {
    let bucket = tables.bucket4(bucket).expect("a bucket");
    [0, 1, 2, 3].map(|place| {
        // SAFETY: a way of the bucket.
        let way = unsafe { bucket.add(place * size_of::<Ct4Way>() / 8) };
        // SAFETY: as before.
        Control(unsafe { tables.load(way) }).is_unused()
    })
}

/// Frees a flow's way like the sweeper.
fn free(tables: &NodeTables, number: u32) {
    // SAFETY: the buckets of a live table.
    let hit = unsafe { flow(tables, number).find(tables) }.expect("the flow");
    // SAFETY: as before.
    unsafe { tables.store(hit.way, hit.control.freed().0) };
}

#[test]
fn ways_that_stay_free_become_unused_again_unless_a_flow_is_behind_them() {
    let tables = NodeTables::new(BUCKETS);
    let flows = five_of_one_bucket(&tables, 3);
    let passed = |now: u32| {
        pass(&tables, now);
        unused(&tables, 3)
    };
    free(&tables, flows[1]);
    free(&tables, flows[3]);
    for now in [0, REST, 2 * REST] {
        assert_eq!(passed(now), [false; 4], "the fifth is in its second bucket");
    }
    free(&tables, flows[4]);
    assert_eq!(passed(3 * REST), [false, false, false, true], "the third is behind the second");
    free(&tables, flows[2]);
    assert_eq!(passed(4 * REST), [false, true, false, true], "the third has just gone");
    assert_eq!(passed(5 * REST - 1), [false, true, false, true], "and not for long");
    assert_eq!(passed(5 * REST), [false, true, true, true]);
    assert!(find(&tables, flows[0]).is_some());

    insert(&tables, flows[1], CT_INGRESS).expect("room");
    assert_eq!(unused(&tables, 3), [false, false, true, true], "the first free one");
    free(&tables, flows[1]);
    assert_eq!(passed(6 * REST), [false, false, true, true]);
    insert(&tables, flows[2], CT_INGRESS).expect("room");
    free(&tables, flows[2]);
    assert_eq!(passed(7 * REST), [false, false, true, true], "it was used meanwhile");
    assert_eq!(passed(8 * REST), [false, true, true, true]);
    free(&tables, flows[0]);
    assert_eq!(passed(u32::MAX), [false, true, true, true]);
    assert_eq!(passed(REST - 1), [true; 4], "across the wrap of jiffies");
}

/// Flows begin, are relocated, and end, in a table that is mostly half full and at times nearly empty.
#[test]
fn whatever_becomes_unused_every_flow_is_found() {
    let tables = NodeTables::new(BUCKETS);
    let (mut live, mut next, mut random) = (Vec::new(), 0, Random(1));
    let (mut renewed, mut moved) = (0, 0);
    let all_unused = || {
        let ways = (0..BUCKETS).flat_map(|bucket| unused(&tables, bucket));
        ways.filter(|is_unused| *is_unused).count()
    };
    for round in 0..20_000_u32 {
        let most = if round % 1000 < 100 { 3 } else { 20 + random.below(13) * 2 };
        while live.len() > most {
            let index = random.below(live.len());
            free(&tables, live.swap_remove(index));
        }
        for number in next..next + 4 {
            assert!(establish(&tables, number), "flow {number} was refused");
            live.push(number);
        }
        next += 4;
        let before = all_unused();
        pass(&tables, round * REST);
        renewed += all_unused() - before;
        for number in &live {
            let flow = flow(&tables, *number);
            // SAFETY: the buckets of a live table.
            let Some(hit) = (unsafe { flow.find(&tables) }) else {
                panic!("flow {number} in round {round}");
            };
            let first =
                flow.buckets[0] as usize..flow.buckets[0] as usize + size_of::<[Ct4Way; 4]>();
            moved += usize::from(!first.contains(&(hit.way as usize)));
        }
    }
    assert!(renewed > 10_000 && moved > 10_000, "{renewed} ways, {moved} flows in second buckets");
}

#[test]
fn sweeping_frees_expired_flows_only_across_the_wrap_of_jiffies() {
    let tables = NodeTables::new(1);
    tables.flows.now.store(u32::MAX - 5, Ordering::Release);
    for number in 0..3 {
        insert(&tables, number, CT_INGRESS).expect("room");
    }
    reply(&tables, 0);
    let opening = tables.flows.settings.timeouts[0];
    let swept = |now| {
        let bucket = tables.bucket4(0).expect("a bucket");
        // SAFETY: a whole bucket of a live table.
        unsafe {
            sweep::<[u64; 2], _>(&tables, bucket, &tables.flows.settings, now, 1000, |_| true)
        }
    };
    let (early, late) =
        ((u32::MAX - 5).wrapping_add(opening - 1), (u32::MAX - 5).wrapping_add(opening));
    assert_eq!((swept(early).live, swept(early).removed), (3, 0));
    let second = swept(late);
    assert_eq!((second.live, second.removed), (1, 2));
    assert!(find(&tables, 0).is_some());
}

#[test]
fn stamps_from_the_near_future_are_not_old() {
    let settings = Settings { timeouts: timeouts(1000), ..Settings::default() };
    let control = Control::new(5, 0, CT_VALID);
    assert!(!control.is_expired(&HostMemory, 6, &settings, 3));
    assert!(!control.is_expired(&HostMemory, 6, &settings, 5));
    assert!(control.is_expired(&HostMemory, 6, &settings, 5 + settings.timeouts[0]));
}

/// Concurrent writers, readers and a sweeper. The flags depend on the flow's number, so a reader that matched a
/// half-written entry would find flags of another flow.
#[test]
fn no_reader_ever_matches_another_flow() {
    let tables = NodeTables::new(4);
    let (stop, seen_enough) = (AtomicBool::new(false), AtomicBool::new(false));
    let flags = |number: u32| CT_INGRESS | if number.is_multiple_of(2) { 1 << 9 } else { 0 };
    thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let (tables, seen_enough) = (&tables, &seen_enough);
                scope.spawn(move || {
                    // On a busy machine the reader may start late.
                    let rounds = 0..50_000_000_u32;
                    for round in rounds
                        .take_while(|round| *round < 60_000 || !seen_enough.load(Ordering::Acquire))
                    {
                        let number = round.wrapping_mul(7919) % 400 * 2 + writer;
                        let (key, hash) = hashed(tables, number);
                        let _ = tables.insert4(key, hash, flags(number));
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut seen = HashSet::new();
            while !stop.load(Ordering::Acquire) {
                for number in 0..800 {
                    if let Some(control) = find(&tables, number) {
                        assert_eq!(control.flags() & !CT_VALID, flags(number), "flow {number}");
                        seen.insert(number);
                    }
                }
                seen_enough.fetch_or(seen.len() > 10, Ordering::AcqRel);
            }
            assert!(seen.len() > 10, "the reader saw hardly a flow");
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                for index in 0..4 {
                    let bucket = tables.bucket4(index).expect("a bucket");
                    // SAFETY: a whole bucket of a live table.
                    unsafe {
                        sweep::<[u64; 2], _>(
                            &tables,
                            bucket,
                            &tables.flows.settings,
                            tables.now(),
                            9,
                            |_| true,
                        );
                    }
                    // SAFETY: as before.
                    unsafe { renew::<[u64; 2], _>(&tables, bucket, (tables.now(), 0), false) };
                }
            }
        });
        for writer in writers {
            writer.join().expect("a writer");
        }
        stop.store(true, Ordering::Release);
    });
}

/// A table with this number of established flows, of 65,536.
fn filled(flows: u32) -> NodeTables {
    let tables = NodeTables::new(1 << 14);
    for number in 0..flows {
        assert!(establish(&tables, number), "flow {number} was refused");
    }
    tables
}

/// Establishes a new flow as a verdict does: inserts it, and records an answer.
fn establish(tables: &NodeTables, number: u32) -> bool {
    let (key, hash) = hashed(tables, number);
    let begun = tables.insert4(key, hash, CT_INGRESS).or_else(|_| {
        tables.make_room(false, 1, hash);
        tables.insert4(key, hash, CT_INGRESS)
    });
    if begun.is_ok() {
        reply(tables, number);
    }
    begun.is_ok()
}

const THREE_QUARTERS: u32 = 3 << 14;

#[test]
fn a_table_filled_to_three_quarters_refuses_nothing() {
    let tables = filled(THREE_QUARTERS);
    for number in THREE_QUARTERS..THREE_QUARTERS + 1000 {
        assert!(establish(&tables, number), "flow {number} was refused");
    }
    for number in 0..THREE_QUARTERS + 1000 {
        let control = find(&tables, number).expect("every flow is there");
        assert_eq!(control.flags(), CT_VALID | CT_INGRESS | CT_REPLIED);
    }
}

/// Unanswered flows fill all other ways again and again: answered flows still find room.
#[test]
fn half_open_flows_take_no_room_from_answered_ones() {
    let tables = NodeTables::new(1 << 14);
    let mut half_open = THREE_QUARTERS..;
    for number in 0..THREE_QUARTERS {
        for other in half_open.by_ref().take(4) {
            let _ = insert(&tables, other, CT_INGRESS);
        }
        assert!(establish(&tables, number), "flow {number} was refused");
    }
    for number in 0..THREE_QUARTERS {
        let control = find(&tables, number).expect("every answered flow is there");
        assert_eq!(control.flags(), CT_VALID | CT_INGRESS | CT_REPLIED);
    }
}

/// An established flow is found at every moment, also while it is relocated.
#[test]
fn flows_that_move_on_are_found_at_every_moment() {
    let tables = filled(THREE_QUARTERS);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut rounds = 0;
            while !done.load(Ordering::Acquire) || rounds == 0 {
                for number in (0..THREE_QUARTERS).step_by(7) {
                    assert!(find(&tables, number).is_some(), "flow {number} is lost");
                }
                rounds += 1;
            }
        });
        // Packets of the flows change the entries while these are relocated.
        let writer = scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                for number in (0..THREE_QUARTERS).step_by(11) {
                    // SAFETY: the buckets of a live table.
                    let hit = unsafe { flow(&tables, number).find(&tables) }.expect("the flow");
                    let marks = FlagChanges::new(CT_REPLIED, 0);
                    // SAFETY: as before.
                    unsafe {
                        Flow::<[u64; 2]>::touch(&tables, hit, marks, tables.now(), 0);
                    };
                }
                tables.flows.later(1);
            }
        });
        for number in THREE_QUARTERS..THREE_QUARTERS * 7 / 6 {
            establish(&tables, number);
        }
        done.store(true, Ordering::Release);
        for thread in [reader, writer] {
            thread.join().expect("a thread");
        }
    });
}

/// Established flows without a packet for two hours make room if needed.
#[test]
fn idle_flows_give_way_after_two_hours() {
    let tables = NodeTables::new(1);
    for number in 0..4 {
        insert(&tables, number, CT_INGRESS).expect("room");
        reply(&tables, number);
        tables.flows.later(10);
    }
    let idle = tables.flows.settings.timeouts[TIMEOUT_IDLE];
    assert_eq!(idle, 2 * 3600 * 1000);
    tables.flows.later(idle - 50);
    assert_eq!(insert(&tables, 4, CT_INGRESS), Err(BucketsFull));
    tables.flows.later(50 - 35);
    assert_eq!(
        insert(&tables, 4, CT_INGRESS),
        Ok(Evicted::Idle),
        "the first has been for two hours"
    );
    assert!(find(&tables, 0).is_none());
    assert!((1..=4).all(|number| find(&tables, number).is_some()));
    // A half-open flow is evicted before any of these.
    tables.flows.later(100);
    assert_eq!(insert(&tables, 5, CT_INGRESS), Ok(Evicted::HalfOpen));
    assert!(find(&tables, 4).is_none());
}
