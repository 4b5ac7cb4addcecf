//! kubectl as the administrator, on the first node.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netpold_testbed::ask_kubectl;

use super::common::wait;
use super::control;
use super::state::{ClusterFolder, NODES};
use crate::step;

/// Limit for the start of the control plane and the nodes: a busy machine with two cores needs a minute.
const PATIENCE: Duration = Duration::from_mins(5);

/// Command line and target of kubectl.
pub(super) struct Kubectl {
    init: nix::unistd::Pid,
    binary: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// Returns kubectl for the running cluster.
    ///
    /// # Errors
    /// No cluster is running, or the folder has no kubectl.
    pub(super) fn of(state: &ClusterFolder, folder: &Path) -> Result<Self> {
        let binary = std::path::absolute(folder.join("kubectl"))?;
        ensure!(binary.is_file(), "no {}", binary.display());
        let init = state.init(NODES[0]).context("no cluster: `cargo xtask cluster DIR up`")?;
        Ok(Self { init, binary, kubeconfig: control::admin(state) })
    }

    /// Enters only the network namespace: the file system is the machine's.
    fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.init)).args(["--net", "--"]).arg(&self.binary);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command.env_remove("KUBECONFIG");
        command
    }

    /// Runs kubectl and returns its output.
    ///
    /// # Errors
    /// kubectl fails; the error has its message.
    pub(super) fn run(&self, arguments: &[&str]) -> Result<String> {
        self.run_with(arguments, "")
    }

    /// Runs kubectl with text on its standard input, and returns its output.
    ///
    /// # Errors
    /// kubectl fails; the error has its message.
    pub(super) fn run_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        ask_kubectl(self.command(), arguments, input)
    }

    /// Applies objects.
    ///
    /// # Errors
    /// An object is rejected.
    pub(super) fn apply(&self, objects: &str) -> Result<()> {
        self.run_with(&["apply", "-f", "-"], objects).map(drop)
    }

    /// Runs a check in a namespace and logs its duration. Deletes the namespace before and after.
    ///
    /// # Errors
    /// The check fails, or the namespace cannot be deleted.
    pub(super) fn check_in(
        &self,
        namespace: &str,
        name: &str,
        check: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<()> {
        let delete = ["delete", "namespace", namespace, "--ignore-not-found", "--timeout=4m"];
        let start = Instant::now();
        self.run(&delete)?;
        let result = check(self);
        let removed = self.run(&delete);
        result.and(removed.map(drop))?;
        step::note(&format!("{name} passed in {:.0?}", start.elapsed()));
        Ok(())
    }

    /// Waits until the API server is ready and both nodes have joined.
    ///
    /// # Errors
    /// The timeout expires.
    pub(super) fn wait_ready(&self) -> Result<()> {
        wait("the API server", PATIENCE, || {
            self.run(&["get", "--raw", "/readyz", "--request-timeout", "5s"])
        })?;
        wait("both nodes", PATIENCE, || {
            let mut arguments = vec!["wait", "node", "--for=condition=Ready", "--timeout=1s"];
            arguments.extend(NODES);
            self.run(&arguments)
        })?;
        Ok(())
    }

    /// Runs kubectl with the user's standard output.
    ///
    /// # Errors
    /// kubectl fails.
    pub(super) fn show(&self, arguments: &[String]) -> Result<()> {
        let status = self.command().args(arguments).status().context("cannot run kubectl")?;
        ensure!(status.success(), "kubectl failed ({status})");
        Ok(())
    }
}
