//! `agent/testkit/src/fuzz/manifests.rs`, steered by coverage: `cargo xtask fuzz manifests`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| netpold_testkit::fuzz::manifests::run(bytes));
