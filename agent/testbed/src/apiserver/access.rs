//! Credentials: kubeconfigs, and service accounts' tokens.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use super::server::{ADMIN_TOKEN, ApiServer};

/// Access in a kubeconfig.
#[derive(Clone, Debug)]
pub enum Credential<'a> {
    /// A token in the kubeconfig itself.
    Token(&'a str),
    /// A file with a token, which clients read again periodically, as a kubelet projects it into a pod.
    TokenFile(&'a Path),
}

impl ApiServer {
    /// The administrator's kubeconfig.
    #[must_use]
    pub fn admin(&self) -> PathBuf {
        self.directory().join("admin.kubeconfig")
    }

    /// Writes a kubeconfig of one context, `test`, into the server's directory.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_kubeconfig(&self, name: &str, access: &Credential<'_>) -> Result<PathBuf> {
        self.write_kubeconfig_to(&self.url(), name, access)
    }

    /// [`ApiServer::write_kubeconfig`] with another URL of the server.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_kubeconfig_to(
        &self,
        url: &str,
        name: &str,
        access: &Credential<'_>,
    ) -> Result<PathBuf> {
        let user = match access {
            Credential::Token(token) => json!({ "token": token }),
            Credential::TokenFile(path) => json!({ "tokenFile": path }),
        };
        let cluster = json!({
            "server": url,
            "certificate-authority": self.certificate(),
        });
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "test", "cluster": cluster }],
            "users": [{ "name": "test", "user": user }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
            "current-context": "test",
        });
        let path = self.directory().join(name);
        fs::write(&path, serde_json::to_string_pretty(&config)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// File with the certificates of the server and its issuer.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.directory().join("certs/apiserver.crt")
    }

    /// A token of a service account, requested as a kubelet does; valid for at least ten minutes.
    ///
    /// # Errors
    /// When there is no such service account.
    pub fn token(&self, namespace: &str, account: &str) -> Result<String> {
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": { "expirationSeconds": 3600 },
        });
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let answer = self.post(&path, &request)?;
        answer["status"]["token"].as_str().map(str::to_owned).context("an answer without a token")
    }

    pub(super) fn write_admin(&self) -> Result<()> {
        self.write_kubeconfig("admin.kubeconfig", &Credential::Token(ADMIN_TOKEN)).map(|_| ())
    }
}
