//! `netpold run`.

use anyhow::Result;
use tracing::info;

use crate::config::RunConfig;
use crate::source::manifests;

/// Enforce until told to end.
///
/// # Errors
/// Something is missing that the agent cannot do without.
pub fn run(mut config: RunConfig) -> Result<()> {
    config.start_log()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut source = manifests::watch(&config.manifests)?;
        loop {
            tokio::select! {
                batch = source.batches.recv() => match batch {
                    Some(batch) => info!(changes = batch.changes.len(), in_sync = batch.in_sync),
                    None => return Ok(()),
                },
                ended = tokio::signal::ctrl_c() => return Ok(ended?),
            }
        }
    })
}
