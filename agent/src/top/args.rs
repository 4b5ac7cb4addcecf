//! Flags of `netpold top`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::events::Outcome;
use crate::live::ClusterArgs;
use crate::observe::{FilterArgs, Request};
use crate::socket::DEFAULT_SOCKET;

/// Flags of `netpold top`.
#[derive(Clone, Debug, Args)]
pub struct TopArgs {
    /// Control socket of the agent
    #[arg(long, value_name = "PATH", env = "NETPOLD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// What to count: everything unless told otherwise.
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

impl TopArgs {
    /// The request for the stream: everything that the agent keeps, and what comes.
    ///
    /// # Errors
    /// There is no such reason as the filter has.
    pub fn request(&self) -> Result<Request> {
        let mut filter = self.filter.filter()?;
        if filter.verdicts.is_empty() {
            filter.verdicts = vec![Outcome::Deny, Outcome::Audit, Outcome::Allow];
        }
        Ok(Request { since: Some(u64::MAX), follow: true, filter })
    }
}
