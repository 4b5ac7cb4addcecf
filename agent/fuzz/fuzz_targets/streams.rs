//! `agent/testkit/src/fuzz/streams.rs`, steered by coverage: `cargo xtask fuzz streams`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| netpold_testkit::fuzz::streams::run(bytes));
