//! Updates from one generated state to the next, operation by operation: every packet must get the verdict of the state
//! before or after.

use crate::generate::{Choices, GeneratedCluster, NODE};
use crate::transition::step;
use crate::world::World;

/// Maximum number of states per input.
const STATES: usize = 4;

/// Runs one input.
///
/// # Panics
/// The input shows a mistake.
pub fn run(bytes: &[u8]) {
    let mut choices = Choices::from_bytes(bytes);
    let mut random = Choices::from_seed(choices.word().into());
    let mut world = World::on(NODE, []);
    let mut state = GeneratedCluster::default();
    let mut next = GeneratedCluster::generate(&mut choices);
    for _ in 0..STATES {
        if let Err(mistake) = step(&mut world, &state, &next, &mut random) {
            panic!("{mistake}");
        }
        state = next;
        if !choices.any_left() {
            return;
        }
        next = state.mutate(&mut choices);
    }
}
