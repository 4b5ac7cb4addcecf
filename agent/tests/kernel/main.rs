//! The programs in this machine's kernel, by BPF_PROG_TEST_RUN. Needs root; without it each test
//! says loudly that it was skipped, and fails in CI.
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail as tests do"
)]

mod corpus;
mod input;
mod marks;
mod mutations;
mod packets;
mod random;
mod speed;
mod stories;
mod tables;
mod updates;
mod uplink;
mod world;

use world::{PROGRAMS, World, program};

/// The world, or `None` (said loudly) for a user who may not load programs.
fn world() -> Option<World> {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } == 0 {
        return Some(World::new());
    }
    assert!(std::env::var_os("CI").is_none(), "kernel tests need root");
    println!("SKIPPED: kernel tests need root");
    None
}

#[test]
fn programs_pass_the_verifier() {
    let Some(mut world) = world() else { return };
    for name in PROGRAMS {
        let info = program(&mut world.bpf, name).info().expect("program info");
        println!(
            "{name}: {:?} instructions verified, {:?} bytes translated",
            info.verified_instruction_count(),
            info.size_translated()
        );
    }
}
