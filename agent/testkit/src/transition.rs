//! One update between generated states, operation by operation: every packet must get the verdict of the state before
//! or after.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netpold_core::ops::{Op, TableWriter};
use netpold_ebpf::endpoint::Rows;
use netpold_ebpf::layout::{CLASS_TRANSLATED, untranslated};
use netpold_ebpf::tables::policy::row_allows;

use crate::generate::{Choices, GeneratedCluster, NODE, PacketSource};
use crate::memory::MemoryTables;
use crate::world::World;

/// Protocols and ports at and next to the bounds that the generator uses most.
const PACKETS: [(u8, u16); 10] =
    [(6, 0), (6, 53), (6, 80), (6, 81), (6, 443), (6, 8080), (17, 53), (17, 80), (132, 80), (1, 0)];

/// Number of remote addresses per state.
const REMOTES: usize = 12;

/// Bit of a verdict: the packet of an isolated pod is marked as possibly translated.
const MARKED: u64 = 1 << 63;

/// Verdicts by interface and remote address; `None` without an endpoint.
pub type Verdicts = Vec<Option<u64>>;

/// Verdicts about packets between an endpoint and a remote address at one time: one bit per direction and packet, and
/// one per untranslated packet out of the pod.
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

/// Verdicts for remote addresses of these classes.
fn seen_of_all(tables: &MemoryTables, rows: u64, classes: &[u32]) -> impl Iterator<Item = u64> {
    let mut known = BTreeMap::new();
    classes
        .iter()
        .map(move |class| *known.entry(*class).or_insert_with(|| seen(tables, rows, *class)))
}

/// Whether a verdict equals one of two. A superfluous mark only costs a second judgement.
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

/// Interfaces and remote addresses of the tested packets.
#[derive(Debug)]
pub struct View {
    interfaces: Vec<u32>,
    remotes: Vec<IpAddr>,
}

impl View {
    /// A view of the interfaces of these states, and of random addresses in their objects.
    #[must_use]
    pub fn of(states: &[&GeneratedCluster], choices: &mut Choices<'_>) -> Self {
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

    /// Verdicts by these tables.
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

    /// Interface and remote address of a verdict.
    fn packet(&self, place: usize) -> (u32, IpAddr) {
        let (interface, remote) = (place / self.remotes.len(), place % self.remotes.len());
        (self.interfaces[interface], self.remotes[remote])
    }
}

/// Packets being judged: they have read their endpoint's rows, but not their class.
#[derive(Default)]
struct InFlight(BTreeSet<(usize, u64)>);

impl InFlight {
    /// Adds packets that read their endpoint's rows now.
    fn begin(&mut self, tables: &MemoryTables, view: &View) {
        for (number, ifindex) in view.interfaces.iter().enumerate() {
            self.0.extend(tables.endpoint(*ifindex).map(|endpoint| (number, endpoint.rows)));
        }
    }

    /// Verdicts, by their index in [`Verdicts`], of packets that have read other rows than the present ones since the
    /// last grace period, and read the present classes.
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

/// Applies one update between two states, operation by operation. The result must equal a fresh compilation of the new
/// state.
///
/// # Errors
/// A packet gets a verdict of neither state, or the result differs.
pub fn step(
    world: &mut World,
    from: &GeneratedCluster,
    to: &GeneratedCluster,
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
    // Interfaces that share slots run out of slots if no slot is ever reused.
    if choices.chance(50) || to.interfaces().any(|interface| interface.index > 8192) {
        world.compiler.grace_passed();
    }
    Ok(())
}

/// Compares two values.
///
/// # Errors
/// The values differ; the message contains `name` and both values.
pub fn same<T: PartialEq + std::fmt::Debug>(
    found: &T,
    expected: &T,
    name: &str,
) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{name}: {found:?}, not {expected:?}")) }
}

/// Installs a generated state in one update.
#[must_use]
pub fn install(state: &GeneratedCluster) -> World {
    World::on(NODE, state.objects.clone())
}
