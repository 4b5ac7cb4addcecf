//! kubectl as the administrator, on the first node.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use netpold_testbed::ask_kubectl;

use super::control;
use super::state::{NODES, State};
use crate::step;

/// How to run it.
pub(super) struct Kubectl {
    init: nix::unistd::Pid,
    binary: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    /// Of the cluster that is up.
    ///
    /// # Errors
    /// There is none, or no kubectl in the folder.
    pub(super) fn of(state: &State, folder: &Path) -> Result<Self> {
        let binary = std::path::absolute(folder.join("kubectl"))?;
        ensure!(binary.is_file(), "no {}", binary.display());
        let init = state.init(NODES[0]).context("no cluster: `cargo xtask cluster DIR up`")?;
        Ok(Self { init, binary, kubeconfig: control::admin(state) })
    }

    /// Enters the network alone: files are those of the machine.
    fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.init)).args(["--net", "--"]).arg(&self.binary);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command.env_remove("KUBECONFIG");
        command
    }

    /// Runs it; what it prints.
    ///
    /// # Errors
    /// With what it says, when it fails.
    pub(super) fn run(&self, arguments: &[&str]) -> Result<String> {
        self.run_with(arguments, "")
    }

    /// The same, with something on its standard input.
    ///
    /// # Errors
    /// With what it says, when it fails.
    pub(super) fn run_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        ask_kubectl(self.command(), arguments, input)
    }

    /// Applies objects.
    ///
    /// # Errors
    /// One is refused.
    pub(super) fn apply(&self, objects: &str) -> Result<()> {
        self.run_with(&["apply", "-f", "-"], objects).map(drop)
    }

    /// Checks something in a namespace, which is removed before and after, and says how long that took.
    ///
    /// # Errors
    /// Of the check; the namespace cannot be removed.
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

    /// Runs it for the user, who sees what it prints.
    ///
    /// # Errors
    /// It fails.
    pub(super) fn show(&self, arguments: &[String]) -> Result<()> {
        let status = self.command().args(arguments).status().context("cannot run kubectl")?;
        ensure!(status.success(), "kubectl failed ({status})");
        Ok(())
    }
}
