//! `agent/testkit/src/fuzz/packets.rs`, steered by coverage: `cargo xtask fuzz packets`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| netpold_testkit::fuzz::packets::run(bytes));
