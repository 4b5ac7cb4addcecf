//! `netpold ui`: a page for a browser on this machine, with the user's own rights.
//!
//! The server listens on 127.0.0.1 alone and answers with the documents of the other commands; the page draws them.
//! Nothing is installed in the cluster, and nothing is applied from the page. Each request needs the token of the printed
//! address, see [`access`]. With `--manifests` the page needs no cluster.

mod access;
mod answers;
mod follow;
mod in_force;
mod map;
mod page;
mod queue;
mod server;
mod snapshot;
mod what_if;

use std::future::IntoFuture as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::pin::pin;
use std::task::Poll;

use anyhow::{Context, Result};
use clap::Args;
use netpold_client::live::{self, ClusterArgs};
use netpold_client::offline::ReviewArgs;
use netpold_client::output::print;
use netpold_core::printable::printable;

use access::AccessCheck;
use server::UiServer;
use snapshot::ObjectSource;

/// Flags of `netpold ui`.
#[derive(Debug, Args)]
pub struct UiArgs {
    /// Directory of Kubernetes objects instead of a cluster: *.yaml, *.yml and *.json; `-` is standard input
    #[arg(long, value_name = "DIR", env = "NETPOLD_MANIFESTS")]
    pub manifests: Option<PathBuf>,
    /// Subdirectories of --manifests, and addresses of pods without one.
    #[command(flatten)]
    pub review: ReviewArgs,
    /// Port on 127.0.0.1; 0 is a free one
    #[arg(long, env = "NETPOLD_PORT", default_value = "0")]
    pub port: u16,
    /// Cluster to ask.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Namespace of objects written without one; also the only namespace to read where RBAC forbids to list objects in
    /// all namespaces [default: the context's; without a cluster: default]
    #[arg(short, long, value_name = "NAME", env = "NETPOLD_NAMESPACE")]
    pub namespace: Option<String>,
}

/// Serves the page until Ctrl-C.
///
/// # Errors
/// The objects cannot be read, or the port is taken.
pub fn run(args: &UiArgs) -> Result<()> {
    let source = ObjectSource {
        manifests: args.manifests.clone(),
        depth: args.review.depth,
        cluster: args.cluster.clone(),
        namespace: args.namespace.clone(),
        pod_cidrs: args.review.pod_cidrs.clone(),
    };
    let world = source.read(1)?;
    live::block_on_and_leave(async {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).await;
        let listener =
            listener.with_context(|| format!("cannot listen on 127.0.0.1:{}", args.port))?;
        let port = listener.local_addr()?.port();
        let access = AccessCheck::new(port)?;
        let title = printable(&world.title).into_owned();
        // The first poll begins to listen to signals: Ctrl-C counts from the printed address on.
        let mut interrupted = pin!(tokio::signal::ctrl_c());
        if let Poll::Ready(ended) = futures::poll!(interrupted.as_mut()) {
            return Ok(ended?);
        }
        print(&format!("{title}: {}\nEnd with Ctrl-C.\n", access.address()))?;
        let served = axum::serve(listener, UiServer::new(source, world).router(access));
        tokio::select! {
            ended = served.into_future() => ended?,
            ended = interrupted => ended?,
        }
        Ok(())
    })
}
