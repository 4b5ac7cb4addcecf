//! `netpold controller`: combines the agents' reports into a status for each `NetworkPolicy`, and runs the webhook that
//! adds the readiness gate to pods. A cluster needs one replica; a second one stands by.
//!
//! ```text
//! policies, pods, nodes ──┐
//! NodePolicyStatuses ─────┼─► Index ─► Queue ─► evaluate ─► NetworkPolicyStatus    (leader)
//! NetworkPolicyStatuses ──┘  touched    due
//! Lease ─► Election ─► leading
//! Secret ─► Certificates ─► webhook (every replica) · caBundle (leader)
//! ```

mod certificates;
mod evaluate;
mod follow;
mod health;
mod index;
mod lease;
mod queue;
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

use self::certificates::Keeper;
use self::health::Health;
use self::lease::Election;
use self::statuses::{Counters, Statuses};
use crate::cli::ControllerArgs;
use crate::listen::{Heartbeat, Listener};
use crate::logging::{log_filter, start_log};

/// Runs the controller until SIGTERM or SIGINT.
///
/// # Errors
/// The configuration names no API server, or an address cannot be bound.
pub fn run(args: ControllerArgs) -> Result<()> {
    start_log(args.log_format, log_filter(&args.log)?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(serve(args));
    runtime.shutdown_background();
    result
}

async fn serve(args: ControllerArgs) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen to SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen to SIGINT")?;
    let access = Access {
        kubeconfig: args.kubeconfig,
        as_kubectl: false,
        context: args.context,
        timeout: Duration::from_secs(args.api_timeout.into()),
    };
    let client = cluster::client(&access).await?;
    let source = cluster::watch_policies(access).await?;
    let identity = args.identity.map_or_else(host_name, Ok)?;
    info!(identity, "netpold controller starts");
    let heartbeat = Heartbeat::default();
    let counters = Arc::new(Counters::default());
    let (end, ends) = watch::channel(false);
    let (election, leading) = Election::new(client.clone(), &args.namespace, identity);
    let election = tokio::spawn(election.run(ends));
    let (statuses, synced) = Statuses::new(
        client.clone(),
        source,
        leading.clone(),
        Arc::clone(&counters),
        heartbeat.clone(),
    );
    let (keeper, served) =
        Keeper::new(client, &args.namespace, args.certificate_lifetime, leading.clone());
    tokio::spawn(keeper.run());
    let settings = webhook::Settings {
        address: args.webhook_listen,
        clients: args.webhook_clients,
        client_ca: args.webhook_client_ca,
    };
    tokio::spawn(webhook::open(settings, Arc::clone(&served), statuses.pod_addresses())?);
    let answers = health::router(Health { heartbeat, counters, leading, synced, served });
    let _listener = args.listen.map(|address| Listener::serve(address, answers)).transpose()?;
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
    info!("netpold controller ends");
    result
}

fn host_name() -> Result<String> {
    let name =
        nix::sys::utsname::uname().context("the host's name cannot be read; give --identity")?;
    Ok(name.nodename().to_string_lossy().into_owned())
}
