//! Commands in the containers of workloads. They need the user's own right to `exec`; no agent takes part.

use anyhow::Result;
use kube::Api;
use netpold_core::model::Key;
use netpold_kube::cluster::Lister;
use netpold_kube::cluster::failure::Failure;

use super::args::{ClusterArgs, SILENCE};
use super::exec::ExecTarget;
use super::node_error::NodeError;
use super::read_pod::{ReadContainer, ReadPod};

/// Most bytes of a command's output.
const OUTPUT_MAX: usize = 1 << 16;
/// Exit statuses with which a container runtime reports a program that it cannot start.
const NOT_STARTED: [i32; 2] = [126, 127];

/// Access to the containers of a cluster.
pub struct ContainerAccess {
    lister: Lister,
}

/// Reason why a command did not run, or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandFailure {
    /// The container has no such program.
    NoProgram,
    /// Any other reason, as text.
    Otherwise(String),
}

impl ContainerAccess {
    /// Connects to the API server.
    ///
    /// # Errors
    /// There is no cluster to connect to, or the credentials are not accepted.
    pub async fn open(args: &ClusterArgs) -> Result<Self> {
        Ok(Self { lister: Lister::open(args.access(SILENCE)).await? })
    }

    /// Returns the names of a pod's running containers, ephemeral ones included.
    ///
    /// # Errors
    /// The pod cannot be read; the error is text.
    pub async fn running(&self, pod: &Key) -> Result<Vec<String>, String> {
        let pods = Api::<ReadPod>::namespaced(self.lister.client(), &pod.namespace);
        let read = pods.get(&pod.name).await;
        let read = read.map_err(|error| {
            Failure::from_error(error).text("get the pod", self.lister.server())
        })?;
        let status = read.status;
        let all = status.container_statuses.into_iter().chain(status.ephemeral_container_statuses);
        let runs = |it: &ReadContainer| it.state.running.is_some();
        Ok(all.flatten().filter(runs).map(|container| container.name).collect())
    }

    /// Returns the standard output of a command in a container.
    ///
    /// # Errors
    /// The command did not run or failed, see [`CommandFailure`].
    pub async fn output(
        &self,
        pod: &Key,
        container: &str,
        command: &[&str],
    ) -> Result<String, CommandFailure> {
        let target = ExecTarget {
            pods: Api::namespaced(self.lister.client(), &pod.namespace),
            namespace: &pod.namespace,
            pod: &pod.name,
            container,
            server: self.lister.server(),
            purpose: "run a command in the pod",
        };
        let output = target.output(command, OUTPUT_MAX).await.map_err(not_run)?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }
}

fn not_run(error: NodeError) -> CommandFailure {
    match error {
        NodeError::Failed { code: Some(code), .. } if NOT_STARTED.contains(&code) => {
            CommandFailure::NoProgram
        }
        NodeError::Failed { text, .. } if names_no_program(&text) => CommandFailure::NoProgram,
        NodeError::Forbidden { words, namespace } => CommandFailure::Otherwise(format!(
            "{words}; get and create on pods/exec in namespace {namespace} are required"
        )),
        error @ (NodeError::NoAgent { .. }
        | NodeError::NotRunning { .. }
        | NodeError::Refused { .. }
        | NodeError::Silent(_)
        | NodeError::TooLong(_)
        | NodeError::TooMany(_)
        | NodeError::BrokenOff
        | NodeError::Failed { .. }
        | NodeError::NotUnderstood(_)) => CommandFailure::Otherwise(error.to_string()),
    }
}

/// Returns whether an error text of runc or crun, through containerd, CRI-O or Docker, is about a missing program.
fn names_no_program(text: &str) -> bool {
    ["executable file not found", "no such file or directory", "No such file or directory"]
        .iter()
        .any(|words| text.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_told_from_other_failures() {
        let failed = |code, text: &str| not_run(NodeError::Failed { code, text: text.into() });
        let runc = "failed to start exec \"0\": OCI runtime exec failed: exec failed: unable to start container \
                    process: exec: \"sh\": executable file not found in $PATH: unknown";
        assert_eq!(failed(None, runc), CommandFailure::NoProgram);
        assert_eq!(failed(Some(126), ""), CommandFailure::NoProgram);
        assert!(matches!(failed(Some(1), "killed"), CommandFailure::Otherwise(_)));
    }
}
