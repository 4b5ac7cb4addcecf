//! `agent/testkit/src/fuzz/probes.rs`, steered by coverage: `cargo xtask fuzz probes`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| netpold_testkit::fuzz::probes::run(bytes));
