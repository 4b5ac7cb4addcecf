//! What the fuzz target `packets` has found, in the kernel.

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

/// Shows the corpus to the kernel and to the host, which must agree; how many packets it has.
pub(crate) fn replay(world: &mut World) -> u64 {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/packets");
    let mut packets = 0;
    for (_, input) in corpus(&folder) {
        // Another pod, so that the host's flows and the kernel's begin alike.
        world.next_pod();
        for step in steps(&input) {
            world.set_rows(step.rows.0, step.rows.1);
            let _ = world.judge(step.direction, step.came_from, step.frame);
            packets += 1;
        }
    }
    packets
}
