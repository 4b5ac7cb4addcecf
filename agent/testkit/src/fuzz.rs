//! Bodies of the fuzz targets of `agent/fuzz`; each takes the fuzzer's bytes and panics on a mistake.

pub mod answers;
pub mod delta;
#[cfg(feature = "agent")]
pub mod kept;
#[cfg(feature = "agent")]
pub mod manifests;
pub mod packets;
pub mod probes;
#[cfg(feature = "agent")]
pub mod selectors;
pub mod streams;
pub mod tables;
