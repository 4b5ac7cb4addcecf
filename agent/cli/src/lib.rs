//! Commands of `netpold` that ask a running agent, a cluster or manifests, and exit: flags, clients and renderers.
//!
//! | module | command |
//! |---|---|
//! | [`explain`], [`diff`], [`assertions`] (`test`), [`doctor`], [`learn`] | by the objects of manifests or of a cluster |
//! | [`status`], [`rules`], [`flows`], [`observe`], [`top`], [`trace`] | by the answers of agents |
//! | [`init`] | policies to begin with |
//! | [`ui`] | a page for a browser on this machine, by the answers of the others |
//! | [`completion`] | scripts for shells, and names for them |
//!
//! [`live`] asks a cluster and its agents, [`socket`] one agent; [`offline`] reads manifests, and `judge` answers about
//! objects that may be incomplete.

pub mod arguments;
pub mod assertions;
mod commands;
pub mod completion;
pub mod diff;
pub mod doctor;
pub mod explain;
pub mod flows;
pub mod init;
mod judge;
pub mod learn;
pub mod live;
pub mod observe;
pub mod offline;
pub mod output;
mod printable_document;
pub mod rules;
pub mod socket;
pub mod status;
pub mod top;
pub mod trace;
pub mod ui;
mod unenforced;

pub use commands::{Command, FAILED, UNUSABLE, exit_code, parse};
