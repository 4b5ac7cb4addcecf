//! `agent/testkit/src/fuzz/tables.rs`, steered by coverage: `cargo xtask fuzz tables`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| netpold_testkit::fuzz::tables::run(bytes));
