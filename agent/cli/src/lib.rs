//! Commands of `netpold` that ask a running agent, a cluster or manifests, and exit: flags, clients and renderers. Reviews of
//! policies are in crates of their own: `explain`, `diff` and `test` in `netpold_review`, `doctor` in `netpold_doctor`.
//!
//! | module | command |
//! |---|---|
//! | [`status`], [`rules`], [`flows`], [`observe`], [`top`], [`trace`], [`learn`] | by the answers of agents |
//! | [`init`] | policies to begin with |
//! | [`ui`] | a page for a browser on this machine, by the answers of the others |
//! | [`completion`] | scripts for shells, and names for them |

mod commands;
pub mod completion;
pub mod flows;
pub mod init;
pub mod learn;
pub mod observe;
pub mod rules;
pub mod status;
pub mod top;
pub mod trace;
pub mod ui;

pub use commands::{Command, FAILED, UNUSABLE, exit_code, parse};
