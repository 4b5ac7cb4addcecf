//! Updates over generated pairs of cluster states: no packet ever sees a mixture, and what is
//! installed does not depend on the way there.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::net::IpAddr;

mod small_clusters;

use netpold_core::cluster::ObjectKey;
use netpold_core::compile::Compiler;
use netpold_core::model::Change;
use netpold_core::ops::{Op, TableWriter};
use netpold_ebpf::endpoint::Rows;
use netpold_ebpf::layout::{CLASS_TRANSLATED, untranslated};
use netpold_ebpf::tables::policy::row_allows;
use netpold_testkit::memory::MemoryTables;
use netpold_testkit::objects::ip;
use netpold_testkit::world::World;
use proptest::prelude::*;
use small_clusters::{ADDRESSES, OUTSIDE, SERVICES, State, any_state, any_step};

const INTERFACES: [u32; 4] = [10, 20, 30, 8212];
/// Protocols and ports on either side of every edge that the generator knows.
const PACKETS: [(u8, u16); 11] = [
    (6, 0),
    (6, 80),
    (6, 85),
    (6, 91),
    (6, 443),
    (6, 8080),
    (17, 80),
    (17, 443),
    (17, 9),
    (132, 80),
    (1, 0),
];

/// Bit of what is seen: an isolated pod's packet is marked as one that may be translated.
const MARKED: u64 = 1 << 63;

/// By interface and remote address; `None`: no endpoint.
type Verdicts = Vec<Option<u64>>;

fn remotes() -> Vec<IpAddr> {
    ADDRESSES.iter().chain(&OUTSIDE).chain(&SERVICES).map(|address| ip(address)).collect()
}

/// Everything that packets of an endpoint and a remote address can see at one time, one bit for
/// each direction and packet, and for each packet out of the pod that nobody translated.
fn seen(tables: &MemoryTables, rows: u64, class: u32) -> u64 {
    let mut bits = 0u64;
    let (ingress, egress) = (Rows(rows).ingress(), Rows(rows).egress());
    for (row, class) in [(ingress, class), (egress, class), (egress, untranslated(class))] {
        for (protocol, port) in PACKETS {
            let allowed = row == 0 || row_allows(tables, row, class, protocol, port);
            bits = bits << 1 | u64::from(allowed);
        }
    }
    if (ingress, egress) != (0, 0) && class & CLASS_TRANSLATED != 0 {
        bits |= MARKED;
    }
    bits
}

/// Whether what is seen is one of these. A mark too many only has a packet judged once more.
fn is_either(seen: Option<u64>, before: Option<u64>, after: Option<u64>) -> bool {
    let is = |expected: Option<u64>| match (seen, expected) {
        (Some(seen), Some(expected)) => {
            seen & !MARKED == expected & !MARKED && seen & MARKED >= expected & MARKED
        }
        (None, None) => true,
        _ => false,
    };
    is(before) || is(after)
}

fn verdicts(tables: &MemoryTables, remotes: &[IpAddr]) -> Verdicts {
    let classes: Vec<u32> = remotes.iter().map(|remote| tables.class(*remote)).collect();
    let mut verdicts = Verdicts::new();
    for ifindex in INTERFACES {
        let rows = tables.endpoint(ifindex).map(|endpoint| endpoint.rows);
        verdicts.extend(classes.iter().map(|class| rows.map(|rows| seen(tables, rows, *class))));
    }
    verdicts
}

/// Packets that are being judged: they have read their endpoint's rows, not yet their class.
#[derive(Default)]
struct InFlight(BTreeSet<(usize, u64)>);

impl InFlight {
    /// Packets that begin now.
    fn begin(&mut self, tables: &MemoryTables) {
        for (number, ifindex) in INTERFACES.into_iter().enumerate() {
            self.0.extend(tables.endpoint(ifindex).map(|endpoint| (number, endpoint.rows)));
        }
    }

    /// After an operation: those that began since the last grace period see today's classes.
    fn check(
        &mut self,
        op: &Op,
        tables: &MemoryTables,
        remotes: &[IpAddr],
        (before, after): (&Verdicts, &Verdicts),
    ) -> Result<(), TestCaseError> {
        if matches!(op, Op::Grace) {
            self.0.clear();
        }
        self.begin(tables);
        let classes: Vec<u32> = remotes.iter().map(|remote| tables.class(*remote)).collect();
        for (number, rows) in &self.0 {
            for (remote, class) in classes.iter().enumerate() {
                let packet = number * remotes.len() + remote;
                let seen = Some(seen(tables, *rows, *class));
                prop_assert!(
                    is_either(seen, before[packet], after[packet]),
                    "in flight at {:?}: {} and {} see {:?}, neither {:?} nor {:?}",
                    short(op),
                    INTERFACES[*number],
                    remotes[remote],
                    seen,
                    before[packet],
                    after[packet],
                );
            }
        }
        Ok(())
    }
}

/// From one state to the next as one update, operation by operation.
fn step(
    world: &mut World,
    changes: Vec<Change>,
    to: &State,
    grace: bool,
) -> Result<(), TestCaseError> {
    let remotes = remotes();
    let fresh = World::new(State::default().changes_to(to));
    let before = verdicts(&world.tables, &remotes);
    let after = verdicts(&fresh.tables, &remotes);
    changes.into_iter().for_each(|change| world.compiler.ingest(change));
    let ops = world.compiler.update().unwrap();
    let mut in_flight = InFlight::default();
    in_flight.begin(&world.tables);
    for (done, op) in ops.iter().enumerate() {
        world.tables.write(op).unwrap();
        in_flight.check(op, &world.tables, &remotes, (&before, &after))?;
        let now = verdicts(&world.tables, &remotes);
        for (packet, seen) in now.iter().enumerate() {
            let (old, new) = (before[packet], after[packet]);
            let (ifindex, remote) =
                (INTERFACES[packet / remotes.len()], remotes[packet % remotes.len()]);
            let fine = is_either(*seen, old, new);
            prop_assert!(
                fine,
                "after operation {} of {} ({:?}) {} and {} see {:?}, neither {:?} nor {:?}",
                done + 1,
                ops.len(),
                short(op),
                ifindex,
                remote,
                seen,
                old,
                new,
            );
        }
    }
    prop_assert_eq!(verdicts(&world.tables, &remotes), after);
    prop_assert_eq!(world.compiler.image(), fresh.compiler.image());
    // Interfaces that share slots run out of them if none is ever reused.
    if grace || to.interfaces.contains_key(&8212) {
        world.compiler.grace_passed();
    }
    Ok(())
}

fn short(op: &Op) -> String {
    format!("{op:?}").chars().take(60).collect()
}

fn cases(count: u32) -> ProptestConfig {
    ProptestConfig { cases: count, max_shrink_iters: 2_000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn every_packet_sees_before_or_after(
        (first, second) in any_step(),
        third in any_state(),
        grace in any::<[bool; 2]>(),
    ) {
        let mut world = World::new(State::default().changes_to(&first));
        step(&mut world, first.changes_to(&second), &second, grace[0])?;
        step(&mut world, second.changes_to(&third), &third, grace[1])?;
        step(&mut world, third.changes_to(&first), &first, true)?;
        let ops = world.compiler.update().unwrap();
        prop_assert!(ops.is_empty(), "an update without changes does {:?}", ops);
    }

    #[test]
    fn state_not_path(
        (first, second) in any_step(),
        order in any::<prop::sample::Index>(),
        split in 1..5usize,
    ) {
        let fresh = World::new(State::default().changes_to(&second));
        let mut ways: Vec<Vec<Change>> = Vec::new();
        let direct = State::default().changes_to(&second);
        ways.push(direct.iter().rev().cloned().collect());
        let mut turned = direct.clone();
        if !turned.is_empty() {
            turned.rotate_left(order.index(direct.len()));
        }
        ways.push(turned);
        // By way of the other state, and with every object told twice.
        let mut detour = State::default().changes_to(&first);
        detour.extend(first.changes_to(&second));
        ways.push(detour.iter().flat_map(|change| [change.clone(), change.clone()]).collect());
        // Everything removed and told again.
        let mut again = direct.clone();
        again.extend(second.changes_to(&State::default()));
        again.extend(direct.clone());
        ways.push(again);
        for way in ways {
            let mut world = World::new([]);
            for part in way.chunks(split) {
                world.apply(part.to_vec());
            }
            prop_assert_eq!(world.compiler.image(), fresh.compiler.image());
            let remotes = remotes();
            prop_assert_eq!(verdicts(&world.tables, &remotes), verdicts(&fresh.tables, &remotes));
        }
    }

    /// A compiler that is told of what another one knows, and later of what has changed.
    #[test]
    fn a_successor_is_as_if_it_had_been_there((first, second) in any_step()) {
        let mut world = World::new(State::default().changes_to(&first));
        let mut successor = world.compiler.blank();
        successor.follow(world.compiler.everything());
        let mut tables = MemoryTables::new();
        let ops = successor.reinstall(world.compiler.capacity(), |_, _| None).unwrap();
        ops.iter().for_each(|op| tables.write(op).unwrap());
        prop_assert_eq!(successor.image(), world.compiler.image());
        successor.grace_passed();
        let changes = first.changes_to(&second);
        let changed: BTreeSet<ObjectKey> = changes.iter().map(ObjectKey::of).collect();
        world.apply(changes);
        successor.follow(world.compiler.news(changed));
        successor.update().unwrap().iter().for_each(|op| tables.write(op).unwrap());
        prop_assert_eq!(successor.image(), world.compiler.image());
        let remotes = remotes();
        prop_assert_eq!(verdicts(&tables, &remotes), verdicts(&world.tables, &remotes));
        let numbers = |it: &Compiler| it.endpoints().map(|e| (e.ifindex, e.id)).collect::<Vec<_>>();
        prop_assert_eq!(numbers(&successor), numbers(&world.compiler));
    }
}
