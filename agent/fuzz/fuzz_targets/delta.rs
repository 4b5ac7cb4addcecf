//! `agent/testkit/src/fuzz/delta.rs`, steered by coverage: `cargo xtask fuzz delta`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| netpold_testkit::fuzz::delta::run(bytes));
