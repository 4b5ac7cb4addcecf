//! `agent/testkit/src/fuzz/kept.rs`, steered by coverage: `cargo xtask fuzz kept`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| netpold_testkit::fuzz::kept::run(bytes));
