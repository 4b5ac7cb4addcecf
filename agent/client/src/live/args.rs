//! Flags that name a cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use netpold_kube::cluster::{Access, is_configured};

/// File name that kubectl starts for `kubectl netpold`.
pub const PLUGIN: &str = "kubectl-netpold";
/// Silence after which an API server counts as gone.
pub(super) const SILENCE: Duration = Duration::from_secs(30);

/// Cluster to ask.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Kubeconfig of the cluster to ask [default, as `kubectl netpold` or with --context: $KUBECONFIG, else
    /// ~/.kube/config, else the pod's service account]
    #[arg(long, value_name = "FILE", env = "NETPOLD_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the cluster to ask, instead of the kubeconfig's current one
    #[arg(long, value_name = "NAME", env = "NETPOLD_CONTEXT")]
    pub context: Option<String>,
    /// Namespace of the agents' pods
    #[arg(
        long,
        value_name = "NAME",
        env = "NETPOLD_AGENTS_NAMESPACE",
        default_value = "netpold-system"
    )]
    pub agents_namespace: String,
    /// Ask only this node's agent, no cluster; the cluster form runs this in each agent's pod
    #[arg(long, env = "NETPOLD_LOCAL")]
    pub local: bool,
}

impl ClusterArgs {
    /// Returns whether the flags select a cluster, not this node or a directory.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        !self.local && (self.kubeconfig.is_some() || self.context.is_some() || is_plugin())
    }

    /// Without kubectl's cluster if none is configured (most CI jobs).
    #[must_use]
    pub fn if_configured(&self) -> Self {
        let local = self.local || !is_configured(&self.access(SILENCE));
        Self { local, ..self.clone() }
    }

    pub(super) fn access(&self, timeout: Duration) -> Access {
        Access {
            kubeconfig: self.kubeconfig.clone(),
            as_kubectl: true,
            context: self.context.clone(),
            timeout,
        }
    }
}

/// Returns whether kubectl started this process as a plugin.
#[must_use]
pub fn is_plugin() -> bool {
    is_called_as(PLUGIN)
}

/// Returns whether this process was started under the given file name; without `.exe`.
#[must_use]
pub fn is_called_as(name: &str) -> bool {
    let called = std::env::args_os().next();
    called.is_some_and(|called| Path::new(&called).file_stem().is_some_and(|it| it == name))
}
