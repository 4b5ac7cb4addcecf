//! The programs in this machine's kernel, by `BPF_PROG_TEST_RUN`. Needs root; without root each test prints that it
//! was skipped, and fails in CI.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail as tests do"
)]

mod closing;
mod corpus;
mod early;
mod evictions;
mod marks;
mod mutations;
mod names;
mod observe;
mod reject;
mod speed;
mod stack;
mod stories;
mod traced;
mod updates;
mod world;

use early::EARLY;
use world::{PROGRAMS, World, program};

/// Returns the world, or `None` (with a message) for a user who may not load programs.
fn world() -> Option<World> {
    world_of(1024)
}

/// Does the same as [`world`], with the given number of flow buckets.
fn world_of(buckets: u32) -> Option<World> {
    netpold_testbed::require_root("a test of the programs").then(|| World::new(buckets))
}

#[test]
fn programs_pass_the_verifier() {
    let Some(mut world) = world() else { return };
    let mut all: Vec<_> = EARLY.map(|early| (early.name(), world.early_info(early))).into();
    all.extend(
        PROGRAMS.map(|name| (name, program(&mut world.bpf, name).info().expect("program info"))),
    );
    // A kernel without the file has no switch for the JIT compiler.
    let switch = std::fs::read_to_string("/proc/sys/net/core/bpf_jit_enable");
    let interpreted = switch.is_ok_and(|switch| switch.trim() == "0");
    for (name, info) in all {
        println!(
            "{name}: {:?} instructions verified, {:?} bytes translated, {} of machine code",
            info.verified_instruction_count(),
            info.size_translated(),
            info.size_jitted()
        );
        // A kernel silently interprets a program that it cannot compile.
        assert!(interpreted || info.size_jitted() > 0, "{name} was not compiled");
    }
}
