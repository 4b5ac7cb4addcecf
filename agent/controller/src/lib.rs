//! `netpold controller`: combines the agents' reports into a status for each policy, and runs the webhook that adds the
//! readiness gate to pods. A cluster needs one replica; a second one stands by.
//!
//! ```text
//! policies, pods, nodes ──┐                              ┌► NetworkPolicyStatus
//! NodePolicyStatuses ─────┼─► Index ─► Queue ─► evaluate ┴► status of ClusterNetworkPolicy    (leader)
//! NetworkPolicyStatuses ──┘  touched    due
//!                             Index ─► SilentAgents ─► condition of a Node                          (leader)
//! policies, pods ─► PeerPacking ─► PeerSlices ─► PeerSlice                                          (leader)
//! Lease ─► Election ─► leading
//! Secret ─► Certificates ─► webhook (every replica) · caBundle (leader)
//! ```

mod certificates;
mod cluster_conditions;
mod counters;
mod evaluate;
mod follow;
mod health;
mod index;
mod lease;
pub mod listen;
mod peer_charges;
mod peer_doubts;
mod peer_due;
mod peer_input;
mod peer_names;
mod peer_packing;
mod peer_reads;
mod peer_slices;
mod pod_addresses;
mod queue;
mod silent_agents;
mod statuses;
#[cfg(test)]
mod tests;
mod webhook;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use netpold_kube::cluster::{self, Access};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::info;

use certificates::CertificateManager;
use counters::ControllerCounters;
use health::ControllerHealth;
use lease::Election;
use listen::{Heartbeat, ListenAddress, Listener};
use peer_slices::PeerSlices;
use statuses::Statuses;
pub use webhook::WebhookSettings;

/// Settings of the controller.
#[derive(Debug)]
pub struct ControllerSettings {
    /// Access to the API server.
    pub access: Access,
    /// Namespace of the Lease, the Secret and the Service.
    pub namespace: String,
    /// Name of this replica in the Lease; the host's name if absent.
    pub identity: Option<String>,
    /// The webhook.
    pub webhook: WebhookSettings,
    /// Lifetime of the webhook's certificates.
    pub certificate_lifetime: Duration,
    /// Whether to write peer slices.
    pub peer_slices: bool,
    /// Address of metrics and health, if any.
    pub listen: Option<ListenAddress>,
}

/// Runs the controller until SIGTERM or SIGINT.
///
/// # Errors
/// The configuration names no API server, or an address cannot be bound.
pub fn run(settings: ControllerSettings) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(serve(settings));
    runtime.shutdown_background();
    result
}

async fn serve(settings: ControllerSettings) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen to SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen to SIGINT")?;
    let client = cluster::client(&settings.access).await?;
    let (mut source, version) = cluster::watch_policies(settings.access).await?;
    let identity = settings.identity.map_or_else(host_name, Ok)?;
    info!(identity, "netpold controller starts");
    let heartbeat = Heartbeat::default();
    let counters = Arc::new(ControllerCounters::default());
    let (end, ends) = watch::channel(false);
    let (election, leading) = Election::new(client.clone(), &settings.namespace, identity);
    let election = tokio::spawn(election.run(ends));
    if settings.peer_slices {
        let status = source.status.clone();
        let (same, input) = peer_input::copied(source, version);
        source = same;
        let slices = PeerSlices::new(client.clone(), leading.clone(), input, status);
        tokio::spawn(slices.run());
    }
    let (statuses, synced) = Statuses::new(
        client.clone(),
        source,
        leading.clone(),
        Arc::clone(&counters),
        heartbeat.clone(),
    );
    let (keeper, served) = CertificateManager::new(
        client,
        &settings.namespace,
        settings.certificate_lifetime,
        leading.clone(),
    );
    tokio::spawn(keeper.run());
    tokio::spawn(webhook::open(settings.webhook, Arc::clone(&served), statuses.pod_addresses())?);
    let answers = health::router(ControllerHealth { heartbeat, counters, leading, synced, served });
    let _listener = settings.listen.map(|address| Listener::serve(address, answers)).transpose()?;
    let mut statuses = tokio::spawn(statuses.run());
    let result = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        ended = &mut statuses => ended.context("the controller's main loop ended")?,
    };
    // Status writes stop before another replica can take the Lease.
    statuses.abort();
    end.send_replace(true);
    let _ = election.await;
    info!("netpold controller exits");
    result
}

fn host_name() -> Result<String> {
    let name = nix::sys::utsname::uname().context("cannot read the host name; give --identity")?;
    Ok(name.nodename().to_string_lossy().into_owned())
}
