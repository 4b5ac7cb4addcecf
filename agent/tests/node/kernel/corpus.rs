//! Corpus of the fuzz target `packets`, replayed in the kernel.

use std::path::Path;

use netpold_testkit::steps::{corpus, steps};

use super::{world, world::World};

#[test]
fn kernel_and_host_agree_on_the_fuzz_corpus() {
    let Some(mut world) = world() else { return };
    let packets = replay(&mut world);
    println!("{packets} packets");
    assert!(packets > 200, "the corpus says little");
}

/// Judges the corpus in the kernel and on the host, which must agree. Returns the number of packets.
pub(crate) fn replay(world: &mut World) -> u64 {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/packets");
    let mut packets = 0;
    for (_, input) in corpus(&folder) {
        // A new pod, so that the flows of host and kernel start equal.
        world.next_pod();
        for step in steps(&input) {
            world.set_rows(step.rows.0, step.rows.1);
            let _ = world.judge(step.direction, step.came_from, step.frame);
            packets += 1;
        }
    }
    packets
}
