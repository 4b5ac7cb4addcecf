use std::io;
use std::sync::Barrier;
use std::time::Instant;

use aya::maps::MapData;
use netpold_ebpf::flow::control::{Control, timeouts};
use netpold_ebpf::flow::key::{first, hash, words4};
use netpold_ebpf::layout::{
    CT_BUSY, CT_EGRESS, CT_REPLIED, CT_RST, CT_VALID, CT_WAYS, Ct4Bucket, Ct4Key, Ct4Way,
    Ct6Bucket, Ct6Key, Ct6Way, Settings, TIMEOUT_TCP_OPENING,
};

use super::clock::{TICKS_PER_SECOND, nearest_hz};
use super::*;
use crate::bpf::test_objects;

const BPF_F_MMAPABLE: u32 = 1 << 10;
const HZ: u32 = 250;
/// Jiffies that start five minutes before their 32 bits overflow.
const START: u32 = 0u32.wrapping_sub(300 * HZ);

fn sweeper(buckets: u32) -> Sweeper {
    let map = |size| MapData::from_fd(test_objects::array(size, buckets, BPF_F_MMAPABLE)).unwrap();
    let settings = Settings {
        timeouts: timeouts(HZ),
        ct4_mask: buckets - 1,
        ct6_mask: buckets - 1,
        ..Settings::default()
    };
    let sizes = [size_of::<Ct4Bucket>(), size_of::<Ct6Bucket>()].map(|size| size as u32);
    Sweeper::new(&map(sizes[0]), &map(sizes[1]), settings, HZ).unwrap()
}

fn four(flags: u16, seen: u32) -> Ct4Way {
    let key = Ct4Key { endpoint: 1, remote: 2, local_port: 3, remote_port: 4, protocol: 6 };
    Ct4Way { control: Control::new(seen, 1, flags).0, key, judged: 0 }
}

fn six(flags: u16, seen: u32) -> Ct6Way {
    let key = Ct6Key { endpoint: 1, protocol: 6, ..Ct6Key::default() };
    Ct6Way { control: Control::new(seen, 1, flags).0, key, ..Ct6Way::default() }
}

const OPENING: u16 = CT_VALID | CT_EGRESS;

#[test]
fn flows_of_endpoints_that_are_gone_are_removed() {
    let sweeper = sweeper(16);
    let of = |endpoint| {
        let way = four(OPENING | CT_REPLIED, START);
        Ct4Way { key: Ct4Key { endpoint, ..way.key }, ..way }
    };
    sweeper.four.write_element(3, &[of(1), of(2), of(3), four(CT_BUSY, START)]).unwrap();
    sweeper.six.write_element(0, &[six(OPENING, START); 4]).unwrap();
    let passed = |known: &[u32]| {
        let pass = sweeper.pass(START, Some(&known.iter().copied().collect()), |_| ());
        [pass.v4, pass.v6].map(|census| (census.orphaned, census.one_way + census.two_way))
    };
    assert_eq!(passed(&[1, 2, 3, 4]), [(0, 3), (0, 4)]);
    assert_eq!(passed(&[1, 3]), [(1, 2), (0, 4)]);
    assert_eq!(passed(&[2]), [(2, 0), (4, 0)]);
    assert_eq!(
        sweeper.pass(START, None, |_| ()).v4.busy,
        1,
        "whose it is will be known when it is written"
    );
}

#[test]
fn a_part_says_how_full_the_tables_are() {
    let sweeper = sweeper(16);
    let occupancy = |used| Occupancy { used, ways: 2 * CT_WAYS };
    assert_eq!(sweeper.occupancy(), [occupancy(0); 2]);
    let [opening, free] = [OPENING, 0].map(|flags| four(flags, START));
    sweeper.four.write_element(1, &[opening, free, opening, opening]).unwrap();
    sweeper.four.write_element(2, &[opening; CT_WAYS]).unwrap();
    sweeper.six.write_element(0, &[six(OPENING, START); CT_WAYS]).unwrap();
    assert_eq!(sweeper.occupancy(), [occupancy(3), occupancy(4)], "two buckets of sixteen");
}

#[test]
fn counts_by_state_and_removes_what_has_expired() {
    let sweeper = sweeper(16);
    let ways = [OPENING, OPENING | CT_REPLIED, OPENING | CT_RST, CT_BUSY];
    sweeper.four.write_element(3, &ways.map(|flags| four(flags, START))).unwrap();
    let bucket =
        [six(OPENING, START), Ct6Way::default(), six(OPENING | CT_REPLIED, START), six(0, 9)];
    sweeper.six.write_element(15, &bucket).unwrap();

    let pass = sweeper.pass(START, None, |_| ());
    let v4 = FlowCounts {
        capacity: 64,
        one_way: 1,
        two_way: 1,
        closed: 1,
        busy: 1,
        full_buckets: 1,
        ..FlowCounts::default()
    };
    assert_eq!(pass.v4, v4);
    assert_eq!((pass.v6.one_way, pass.v6.two_way, pass.v6.full_buckets), (1, 1, 0));

    let later = START.wrapping_add(sweeper.settings.timeouts[TIMEOUT_TCP_OPENING]);
    let pass = sweeper.pass(later, None, |_| ());
    assert_eq!((pass.v4.two_way, pass.v4.removed), (1, 3), "opening, closed, claim of a dead CPU");
    assert_eq!((pass.v6.two_way, pass.v6.removed), (1, 1));
    let left = sweeper.four.read(3).unwrap();
    assert_eq!(left[1], four(OPENING | CT_REPLIED, START), "untouched");
    let controls = left.map(|way| Control(way.control));
    let freed = Control(four(OPENING, START).control).freed();
    let noted = Control::new(later, freed.incarnation(), freed.flags());
    assert_eq!(controls[0], noted, "its incarnation stays");
    assert_eq!(sweeper.pass(later, None, |_| ()).v4.removed, 0);
}

/// Returns the number of unused ways in a bucket.
fn unused(sweeper: &Sweeper, bucket: u32) -> usize {
    let ways = sweeper.four.read(bucket).unwrap();
    ways.iter().filter(|way| Control(way.control).is_unused()).count()
}

#[test]
fn what_flows_leave_is_unused_a_pass_later_unless_one_is_in_its_second_bucket() {
    const BUCKETS: u32 = 16;
    const BUCKET: u32 = 3;
    let sweeper = sweeper(BUCKETS);
    // The last of five flows with the same first bucket belongs to another endpoint and finds the bucket full.
    let of = |endpoint: u32| {
        (0..).filter_map(move |remote| {
            let key = Ct4Key { endpoint, remote, local_port: 3, remote_port: 4, protocol: 6 };
            let hash = hash(&Settings::default(), &words4(&key));
            (first(hash, BUCKETS - 1) == BUCKET).then_some(key)
        })
    };
    for key in of(1).take(CT_WAYS).chain(of(2).take(1)) {
        let flow = TrackedFlow { key: FlowKey::V4(key), flags: OPENING | CT_REPLIED, seen: START };
        sweeper.import(&flow, START).unwrap();
    }
    let passed = |seconds: u32, known: &[u32]| {
        let now = START.wrapping_add(seconds * HZ);
        let pass = sweeper.pass(now, Some(&known.iter().copied().collect()), |_| ());
        (pass.v4.two_way, unused(&sweeper, BUCKET))
    };
    assert_eq!(passed(0, &[1, 2]), (5, 0));
    for second in 1..4 {
        assert_eq!(passed(second, &[2]), (1, 0), "the fifth would not be found");
    }
    // The flow ends in this pass, but the pass still met it.
    assert_eq!(passed(4, &[]), (0, 0));
    assert_eq!(passed(5, &[]), (0, CT_WAYS));
    let controls = sweeper.four.read(BUCKET).unwrap().map(|way| Control(way.control));
    assert_eq!(controls, [Control::new(0, 1, 0); CT_WAYS], "incarnations stay");
}

#[test]
fn a_flow_that_is_refreshed_meanwhile_stays() {
    // The other thread acts as the kernel program: it refreshes a flow about to expire, at various moments of the pass.
    const LAST: u32 = 255;
    let sweeper = sweeper(LAST + 1);
    let timeout = sweeper.settings.timeouts[TIMEOUT_TCP_OPENING];
    let mut outcomes = [0; 2];
    for round in 0..2_000u32 {
        let now = START.wrapping_add(round * 2 * timeout);
        let expired = four(OPENING, now.wrapping_sub(timeout));
        sweeper.four.write_element(LAST, &[expired; 4]).unwrap();
        let start = Barrier::new(2);
        let refreshed = std::thread::scope(|scope| {
            let kernel = scope.spawn(|| {
                start.wait();
                (0..round % 400).for_each(|_| std::hint::spin_loop());
                let old = sweeper.four.load_u64(LAST, 0).unwrap();
                let new = Control::new(now, 1, OPENING).0;
                // Already removed: the kernel program would not have found the flow.
                Control(old).is_valid() && sweeper.four.swap_u64(LAST, 0, old, new).unwrap()
            });
            start.wait();
            let _ = sweeper.pass(now, None, |_| ());
            kernel.join().unwrap()
        });
        let control = Control(sweeper.four.load_u64(LAST, 0).unwrap());
        assert_eq!(refreshed, control.is_valid(), "round {round}");
        outcomes[usize::from(refreshed)] += 1;
    }
    println!("swept {}, refreshed {}", outcomes[0], outcomes[1]);
}

#[test]
fn a_pass_meets_every_way() {
    let sweeper = sweeper(131_072);
    for flags in [0, OPENING] {
        for bucket in 0..131_072 {
            sweeper.four.write_element(bucket, &[four(flags, START); 4]).unwrap();
        }
        let pass = sweeper.pass(START, None, |_| ());
        assert_eq!(pass.v4.one_way, if flags == 0 { 0 } else { 4 * 131_072 });
    }
}

#[test]
fn the_rate_of_the_clock_is_one_a_kernel_has() {
    for hz in TICKS_PER_SECOND {
        let start = Instant::now();
        let measured = measure_hz(|| {
            let ticks = start.elapsed().as_secs_f64() * f64::from(hz);
            Ok(START.wrapping_add(ticks as u32))
        });
        assert_eq!(measured.unwrap(), hz);
    }
    assert_eq!(nearest_hz(275.0), None);
    assert_eq!(nearest_hz(0.0), None);
    assert!(measure_hz(|| Err(io::ErrorKind::PermissionDenied.into())).is_err());
}
