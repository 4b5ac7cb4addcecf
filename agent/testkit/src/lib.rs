//! Test models of netpold. Only tests, fuzz targets and benchmarks depend on this crate, never product code.
//!
//! | module | model |
//! |---|---|
//! | [`oracle`] | verdicts of NetworkPolicy, read literally from the API's comments |
//! | [`objects`], [`world`] | handwritten objects and their compiled tables |
//! | [`generate`] | small random clusters, packets and probes |
//! | [`memory`], [`flows`], [`node`] | the kernel's tables in memory |
//! | [`hooks`] | the programs at a pod's hooks and at an uplink, over these tables |
//! | [`harness`], [`coverage`] | compiler and tables compared with the oracle |
//! | [`names`], [`streams`] | the hooks with domain names, DNS messages, and connections to resolvers |
//! | [`transition`] | verdicts of packets while one state becomes another |
//! | [`one_pod`], [`frames`], [`steps`] | one pod's tables, frames, and the inputs of the fuzz target `packets` |
//! | [`fuzz`] | bodies of the fuzz targets, which are also tests of the agent |
#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "helpers of tests fail as tests do"
)]

pub mod coverage;
pub mod flows;
pub mod frames;
pub mod fuzz;
pub mod generate;
pub mod harness;
pub mod hooks;
pub mod memory;
pub mod names;
pub mod node;
pub mod objects;
pub mod one_pod;
pub mod oracle;
pub mod random;
pub mod reject;
pub mod resolver;
pub mod steps;
pub mod streams;
pub mod transition;
pub mod world;
