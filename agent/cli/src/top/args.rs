//! Flags of `netpold top`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use netpold_api::events::TrafficVerdict;
use netpold_api::filter::ObserveRequest;
use netpold_api::socket::DEFAULT_SOCKET;
use netpold_client::live::ClusterArgs;

use crate::observe::FilterArgs;

/// Flags of `netpold top`.
#[derive(Clone, Debug, Args)]
pub struct TopArgs {
    /// Control socket of the agent
    #[arg(long, value_name = "PATH", env = "NETPOLD_SOCKET", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Events to count; all by default.
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Cluster to ask instead of this node.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

impl TopArgs {
    /// Request for the stream: all events that the agent keeps, and new ones.
    ///
    /// # Errors
    /// The filter has an unknown reason.
    pub fn request(&self) -> Result<ObserveRequest> {
        let mut filter = self.filter.filter()?;
        if filter.verdicts.is_empty() {
            filter.verdicts =
                vec![TrafficVerdict::Deny, TrafficVerdict::Audit, TrafficVerdict::Allow];
        }
        Ok(ObserveRequest { since: Some(u64::MAX), follow: true, filter })
    }
}
