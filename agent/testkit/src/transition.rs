//! One update from a generated state to the next, operation by operation: every packet sees the state
//! before or the state after.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netpold_core::ops::{Op, TableWriter};
use netpold_ebpf::endpoint::Rows;
use netpold_ebpf::layout::{CLASS_TRANSLATED, untranslated};
use netpold_ebpf::tables::policy::row_allows;

use crate::generate::{Choices, Cluster, NODE, PacketSource};
use crate::memory::MemoryTables;
use crate::world::World;

/// Protocols and ports on either side of every edge that the generator knows best.
const PACKETS: [(u8, u16); 10] =
    [(6, 0), (6, 53), (6, 80), (6, 81), (6, 443), (6, 8080), (17, 53), (17, 80), (132, 80), (1, 0)];

/// Addresses that are looked at from each state.
const REMOTES: usize = 12;

/// Bit of what is seen: an isolated pod's packet is marked as one that may be translated.
const MARKED: u64 = 1 << 63;

/// By interface and remote address; `None`: no endpoint.
pub type Verdicts = Vec<Option<u64>>;

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

/// The same for remote addresses of these classes.
fn seen_of_all(tables: &MemoryTables, rows: u64, classes: &[u32]) -> impl Iterator<Item = u64> {
    let mut known = BTreeMap::new();
    classes
        .iter()
        .map(move |class| *known.entry(*class).or_insert_with(|| seen(tables, rows, *class)))
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

/// The interfaces and remote addresses whose packets are looked at.
#[derive(Debug)]
pub struct View {
    interfaces: Vec<u32>,
    remotes: Vec<IpAddr>,
}

impl View {
    /// What matters to some of these states.
    #[must_use]
    pub fn of(states: &[&Cluster], choices: &mut Choices<'_>) -> Self {
        let interfaces = states.iter().flat_map(|state| state.interfaces());
        let interfaces: BTreeSet<u32> = interfaces.map(|interface| interface.index).collect();
        let mut remotes = BTreeSet::new();
        for state in states {
            let source = PacketSource::new(state);
            remotes.extend((0..REMOTES).map(|_| source.remote(choices)));
        }
        Self {
            interfaces: interfaces.into_iter().collect(),
            remotes: remotes.into_iter().collect(),
        }
    }

    /// What packets see of these tables.
    #[must_use]
    pub fn verdicts(&self, tables: &MemoryTables) -> Verdicts {
        let classes: Vec<u32> = self.remotes.iter().map(|remote| tables.class(*remote)).collect();
        let mut verdicts = Verdicts::new();
        for ifindex in &self.interfaces {
            match tables.endpoint(*ifindex) {
                Some(endpoint) => {
                    verdicts.extend(seen_of_all(tables, endpoint.rows, &classes).map(Some));
                }
                None => verdicts.extend(classes.iter().map(|_| None)),
            }
        }
        verdicts
    }

    /// The interface and the remote address of a verdict.
    fn packet(&self, place: usize) -> (u32, IpAddr) {
        let (interface, remote) = (place / self.remotes.len(), place % self.remotes.len());
        (self.interfaces[interface], self.remotes[remote])
    }
}

/// Packets that are being judged: they have read their endpoint's rows, not yet their class.
#[derive(Default)]
struct InFlight(BTreeSet<(usize, u64)>);

impl InFlight {
    /// Packets that begin now.
    fn begin(&mut self, tables: &MemoryTables, view: &View) {
        for (number, ifindex) in view.interfaces.iter().enumerate() {
            self.0.extend(tables.endpoint(*ifindex).map(|endpoint| (number, endpoint.rows)));
        }
    }

    /// What those see that began since the last grace period under other rows than today's, by their
    /// place in [`Verdicts`]: today's classes.
    fn verdicts(&self, tables: &MemoryTables, view: &View) -> Vec<(usize, Option<u64>)> {
        let classes: Vec<u32> = view.remotes.iter().map(|remote| tables.class(*remote)).collect();
        let today = |ifindex| tables.endpoint(ifindex).map(|endpoint| endpoint.rows);
        let former = self.0.iter().filter(|(it, rows)| today(view.interfaces[*it]) != Some(*rows));
        let packets = former.flat_map(|(number, rows)| {
            let first = number * classes.len();
            (first..).zip(seen_of_all(tables, *rows, &classes).map(Some))
        });
        packets.collect()
    }
}

/// From one state to the next as one update, operation by operation. What it leads to is what a fresh
/// compiler makes of the state.
///
/// # Errors
/// A packet sees a mixture, or the end is another.
pub fn step(
    world: &mut World,
    from: &Cluster,
    to: &Cluster,
    choices: &mut Choices<'_>,
) -> Result<(), String> {
    let fresh = install(to);
    let view = View::of(&[from, to], choices);
    let (before, after) = (view.verdicts(&world.tables), view.verdicts(&fresh.tables));
    from.changes_to(to).into_iter().for_each(|change| world.compiler.ingest(change));
    let ops = world.compiler.update().expect("the tables are large enough");
    let mut in_flight = InFlight::default();
    in_flight.begin(&world.tables, &view);
    for (done, op) in ops.iter().enumerate() {
        world.tables.write(op).expect("operations are in order");
        if matches!(op, Op::Grace) {
            in_flight.0.clear();
        }
        in_flight.begin(&world.tables, &view);
        let now = view.verdicts(&world.tables).into_iter().enumerate();
        for (place, seen) in now.chain(in_flight.verdicts(&world.tables, &view)) {
            let (old, new) = (before[place], after[place]);
            if !is_either(seen, old, new) {
                let (ifindex, remote) = view.packet(place);
                let op: String = format!("{op:?}").chars().take(60).collect();
                return Err(format!(
                    "after operation {} of {} ({op}) {ifindex} and {remote} see {seen:?}, neither \
                     {old:?} nor {new:?}",
                    done + 1,
                    ops.len(),
                ));
            }
        }
    }
    same(&view.verdicts(&world.tables), &after, "verdicts")?;
    same(&world.compiler.image(), &fresh.compiler.image(), "image")?;
    // Interfaces that share slots run out of them if none is ever reused.
    if choices.chance(50) || to.interfaces().any(|interface| interface.index > 8192) {
        world.compiler.grace_passed();
    }
    Ok(())
}

/// # Errors
/// It is another one; `what` it is, and both.
pub fn same<T: PartialEq + std::fmt::Debug>(
    found: &T,
    expected: &T,
    what: &str,
) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, not {expected:?}")) }
}

/// A generated state, installed at once.
#[must_use]
pub fn install(state: &Cluster) -> World {
    World::on(NODE, state.objects.clone())
}
