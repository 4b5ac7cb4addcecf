//! A live cluster, for commands at the keyboard: its objects, and what its agents answer.
//!
//! Agents are asked through the API server, by running the same command in their pods (`exec`): RBAC decides who may,
//! and no port is opened. An agent that does not answer is named, and the others' answers are shown.

mod agents;
mod exec;
mod inside;
mod names;
mod node_error;
mod objects;
mod pages;
mod pod_node;
mod runtime;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

pub use agents::{Agents, Answers, ask};
pub use inside::{Inside, NotRun};
pub use names::{Kind, Names};
pub use node_error::{NodeError, report};
pub use objects::{all_objects, manifests_or_objects, namespace, objects};
pub use pages::pages;
pub use pod_node::node_of;
pub use runtime::{block_on, standard_input_ends};

use crate::source::cluster::Access;

/// Exit status of commands that ask agents: every one answered.
pub(crate) const ALL: u8 = 0;
/// Exit status of commands that ask agents: some did not answer.
pub(crate) const SOME: u8 = 1;
/// What kubectl runs as `kubectl netpold`.
pub const PLUGIN: &str = "kubectl-netpold";
/// An API server that sends nothing for this long is taken for gone.
const SILENCE: Duration = Duration::from_secs(30);

/// Which cluster a command is about.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Ask the cluster of this kubeconfig [default, as `kubectl netpold` or with --context: $KUBECONFIG, else
    /// ~/.kube/config, else as every pod in a cluster does]
    #[arg(long, value_name = "FILE", env = "NETPOLD_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Ask the cluster of this context of the kubeconfig, instead of its current one
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
    /// Ask no cluster, but the agent of this node alone: what the cluster's form runs in each agent's pod
    #[arg(long, env = "NETPOLD_LOCAL")]
    pub local: bool,
}

impl ClusterArgs {
    /// Whether a cluster is meant, not this node or a directory.
    #[must_use]
    pub fn is_meant(&self) -> bool {
        !self.local && (self.kubeconfig.is_some() || self.context.is_some() || is_plugin())
    }

    fn access(&self, timeout: Duration) -> Access {
        Access {
            kubeconfig: self.kubeconfig.clone(),
            as_kubectl: true,
            context: self.context.clone(),
            timeout,
        }
    }
}

/// Whether this process was started as a plugin of kubectl.
#[must_use]
pub fn is_plugin() -> bool {
    called(PLUGIN)
}

/// Whether this process was started by that name.
#[must_use]
pub fn called(name: &str) -> bool {
    let called = std::env::args_os().next();
    called.is_some_and(|called| Path::new(&called).file_name().is_some_and(|it| it == name))
}
