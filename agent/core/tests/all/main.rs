//! Tests of the crate against the oracle and the tables, and of the structure of the workspace.

mod allowing;
mod backends;
mod blocks;
mod compare;
mod explain;
mod explained;
mod explained_tiers;
mod frontends;
mod hairpins;
mod layers;
mod limits;
mod names;
mod oracle;
mod oracle_tiers;
mod room;
mod scale;
mod semantics;
mod services;
mod tables;
mod transitions;
mod type_names;
mod unaddressed;
mod worked_example;
