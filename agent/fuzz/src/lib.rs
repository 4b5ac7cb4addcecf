//! The fuzz targets' bodies, which are also tests of the agent: `agent/tests/fuzz`.
#![allow(dead_code, clippy::allow_attributes)]

#[path = "../../core/tests/compare/coverage.rs"]
mod coverage;
#[path = "../../tests/fuzz/delta.rs"]
mod delta;
#[path = "../../tests/kernel/packets.rs"]
mod frames;
#[path = "../../core/tests/compare/harness.rs"]
mod harness;
#[path = "../../tests/kernel/input.rs"]
mod input;
#[cfg(feature = "agent")]
#[path = "../../tests/fuzz/kept.rs"]
mod kept;
#[cfg(feature = "agent")]
#[path = "../../tests/fuzz/manifests.rs"]
mod manifests;
#[path = "../../tests/fuzz/packets.rs"]
mod packets;
#[path = "../../tests/fuzz/probes.rs"]
mod probes;
#[cfg(feature = "agent")]
#[path = "../../tests/fuzz/selectors.rs"]
mod selectors;
#[path = "../../tests/fuzz/tables.rs"]
mod tables;
#[path = "../../tests/kernel/tables.rs"]
mod world;

/// What each target does with an input.
pub mod run {
    /// `agent/tests/fuzz/packets.rs`
    pub fn packets(bytes: &[u8]) {
        crate::packets::run(bytes);
    }
    /// `agent/tests/fuzz/manifests.rs`
    #[cfg(feature = "agent")]
    pub fn manifests(bytes: &[u8]) {
        crate::manifests::run(bytes);
    }
    /// `agent/tests/fuzz/kept.rs`
    #[cfg(feature = "agent")]
    pub fn kept(bytes: &[u8]) {
        crate::kept::run(bytes);
    }
    /// `agent/tests/fuzz/selectors.rs`
    #[cfg(feature = "agent")]
    pub fn selectors(bytes: &[u8]) {
        crate::selectors::run(bytes);
    }
    /// `agent/tests/fuzz/probes.rs`
    pub fn probes(bytes: &[u8]) {
        crate::probes::run(bytes);
    }
    /// `agent/tests/fuzz/delta.rs`
    pub fn delta(bytes: &[u8]) {
        crate::delta::run(bytes);
    }
    /// `agent/tests/fuzz/tables.rs`
    pub fn tables(bytes: &[u8]) {
        crate::tables::run(bytes);
    }
}
