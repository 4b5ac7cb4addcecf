//! The compiled tables compared with the oracle, from a fuzzer's bytes: the comparison of `core/tests/compare`, guided
//! by coverage.

use crate::generate::{Choices, GeneratedCluster, PacketSource};

use crate::coverage::Coverage;
use crate::harness::{Disagreement, Subject, compare, shrunk};

/// Packets per state; the fuzzer's bytes generate the states, a seed of four bytes the packets.
const PACKETS: usize = 100;

/// Runs one input.
///
/// # Panics
/// The input shows a mistake.
pub fn run(bytes: &[u8]) {
    let mut choices = Choices::from_bytes(bytes);
    let mut random = Choices::from_seed(choices.word().into());
    let mut states = vec![GeneratedCluster::generate(&mut choices)];
    let mut subject = Subject::new();
    loop {
        let state = &states[states.len() - 1];
        subject.become_state(state);
        let pods = subject.pods();
        if !pods.is_empty() {
            let source = PacketSource::new(state);
            let packets: Vec<_> = (0..PACKETS).map(|_| source.packet(&mut random, &pods)).collect();
            if let Some(packet) = compare(&subject, &packets, &mut Coverage::default()) {
                panic!("{}", shrunk(Disagreement { seed: 0, states, packet }));
            }
        }
        if !choices.any_left() {
            return;
        }
        let next = state.mutate(&mut choices);
        states.push(next);
    }
}
