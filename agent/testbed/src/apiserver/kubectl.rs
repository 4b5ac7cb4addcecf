//! kubectl, with the administrator's kubeconfig.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::server::ApiServer;

impl ApiServer {
    /// Runs kubectl as the administrator; returns its standard output.
    ///
    /// # Errors
    /// When kubectl fails, with its standard error.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_with(arguments, "")
    }

    /// [`ApiServer::kubectl`] with a text on its standard input (`-f -`).
    ///
    /// # Errors
    /// When kubectl fails, with its standard error.
    pub fn kubectl_with(&self, arguments: &[&str], input: &str) -> Result<String> {
        ask_kubectl(self.kubectl_command()?, arguments, input)
    }

    /// `kubectl apply` of manifests in YAML or JSON.
    ///
    /// # Errors
    /// When one is refused.
    pub fn apply(&self, manifests: &str) -> Result<String> {
        self.kubectl_with(&["apply", "--validate=false", "-f", "-"], manifests)
    }

    /// Installs objects of the kind `CustomResourceDefinition`, and waits until the defined kinds are served.
    ///
    /// # Errors
    /// When one is refused, or a kind is not served within 90 s.
    pub fn define(&self, definitions: &str) -> Result<()> {
        self.apply(definitions)?;
        let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=90s"];
        self.kubectl(&established).map(drop)
    }

    /// kubectl with the administrator's kubeconfig, inside the server's namespace.
    ///
    /// # Errors
    /// When out of file descriptors.
    pub fn kubectl_command(&self) -> Result<Command> {
        let binary = &self.binaries().kubectl;
        let mut command = match &self.netns {
            Some(netns) => netns.command(binary)?,
            None => Command::new(binary),
        };
        command.arg("--kubeconfig").arg(self.admin());
        command.arg("--cache-dir").arg(self.directory().join("kubectl-cache"));
        Ok(command)
    }
}

/// Runs kubectl with a text on its standard input; returns its standard output.
///
/// # Errors
/// When kubectl fails, with its standard error.
pub fn ask_kubectl(mut command: Command, arguments: &[&str], input: &str) -> Result<String> {
    let mut child = command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run kubectl")?;
    let output = std::thread::scope(|scope| {
        // kubectl may write while it reads: a thread for its input avoids a deadlock.
        let stdin = child.stdin.take();
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
        child.wait_with_output()
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("kubectl {}: {}", arguments.join(" "), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
