//! `agent/testkit/src/fuzz/selectors.rs`, steered by coverage: `cargo xtask fuzz selectors`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| netpold_testkit::fuzz::selectors::run(bytes));
