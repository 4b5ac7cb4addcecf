//! `agent/testkit/src/fuzz/answers.rs`, steered by coverage: `cargo xtask fuzz answers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| netpold_testkit::fuzz::answers::run(bytes));
