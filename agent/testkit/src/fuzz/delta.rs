//! Updates from one generated state to the next, operation by operation: every packet is judged by
//! the state before or the state after.

use crate::generate::{Choices, Cluster, PacketSource};
use crate::memory::MemoryTables;
use netpold_core::compile::Compiler;
use netpold_core::model::{Direction, Key};
use netpold_core::ops::TableWriter;

use crate::harness::compiler;

/// Packets looked at after every operation.
const PACKETS: usize = 60;
/// States that one input leads through.
const STATES: usize = 4;

/// A packet at an interface.
type At = (u32, crate::generate::Packet);

/// Tries one input.
///
/// # Panics
/// It shows a mistake.
pub fn run(bytes: &[u8]) {
    let mut choices = Choices::from_bytes(bytes);
    let mut random = Choices::from_seed(choices.word().into());
    let (mut compiler, mut tables) = (compiler(), MemoryTables::new());
    let mut state = Cluster::default();
    let mut next = Cluster::generate(&mut choices);
    for _ in 0..STATES {
        let packets = [&state, &next].map(|s| packets(s, &mut random)).concat();
        lead(&mut compiler, &mut tables, &packets, (&state, &next));
        state = next;
        if !choices.any_left() {
            return;
        }
        next = state.mutate(&mut choices);
    }
}

fn packets(state: &Cluster, random: &mut Choices<'_>) -> Vec<At> {
    let source = PacketSource::new(state);
    let interfaces: Vec<u32> = state.interfaces().map(|interface| interface.index).collect();
    let pods: Vec<Key> = state.pods().map(|pod| pod.key.clone()).collect();
    if interfaces.is_empty() || pods.is_empty() {
        return Vec::new();
    }
    (0..PACKETS).map(|_| (*random.pick(&interfaces), source.packet(random, &pods))).collect()
}

fn verdicts(tables: &MemoryTables, packets: &[At]) -> Vec<Option<bool>> {
    let one = |(interface, p): &At| {
        let direction: Direction = p.direction;
        tables.allows(*interface, direction, p.remote, p.protocol, p.port)
    };
    packets.iter().map(one).collect()
}

/// One update. What it leads to is what a fresh compiler makes of the state.
fn lead(
    compiler: &mut Compiler,
    tables: &mut MemoryTables,
    packets: &[At],
    (from, to): (&Cluster, &Cluster),
) {
    let fresh = fresh(to);
    let (before, after) = (verdicts(tables, packets), verdicts(&fresh.1, packets));
    from.changes_to(to).into_iter().for_each(|change| compiler.ingest(change));
    let ops = compiler.update().expect("the tables are large enough");
    for (number, op) in ops.iter().enumerate() {
        tables.write(op).expect("operations are in order");
        for (packet, seen) in verdicts(tables, packets).into_iter().enumerate() {
            assert!(
                seen == before[packet] || seen == after[packet],
                "after operation {number} of {}, {op:?}: {:?} is {seen:?}, neither {:?} nor {:?}",
                ops.len(),
                packets[packet],
                before[packet],
                after[packet],
            );
        }
    }
    assert_eq!(verdicts(tables, packets), after);
    assert_eq!(compiler.image(), fresh.0.image());
    compiler.grace_passed();
}

fn fresh(state: &Cluster) -> (Compiler, MemoryTables) {
    let (mut compiler, mut tables) = (compiler(), MemoryTables::new());
    state.objects.iter().cloned().for_each(|object| compiler.ingest(object));
    for op in compiler.update().expect("the tables are large enough") {
        tables.write(&op).expect("operations are in order");
    }
    (compiler, tables)
}
