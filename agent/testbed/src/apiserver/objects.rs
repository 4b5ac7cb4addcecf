//! Objects read and written as the administrator without a process and a TLS handshake for each request: `kubectl proxy`
//! passes plain HTTP from a Unix socket to the API server. A run of kubectl takes a tenth of a second of processor time.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::process::PATIENCE;
use super::server::ApiServer;

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";

/// `apiVersion` of the kinds that tests read, by kubectl's name of the kind.
const KINDS: [(&str, &str); 9] = [
    ("event", "events.k8s.io/v1"),
    ("pod", "v1"),
    ("node", "v1"),
    ("networkpolicy", "networking.k8s.io/v1"),
    ("networkpolicystatus", "netpold.io/v1alpha1"),
    ("nodepolicystatus", "netpold.io/v1alpha1"),
    ("clusternetworkpolicy", "policy.networking.k8s.io/v1alpha2"),
    ("lease", "coordination.k8s.io/v1"),
    ("mutatingwebhookconfiguration", "admissionregistration.k8s.io/v1"),
];

/// Kinds of [`KINDS`] without a namespace.
const CLUSTER_WIDE: [&str; 4] =
    ["node", "nodepolicystatus", "clusternetworkpolicy", "mutatingwebhookconfiguration"];

impl ApiServer {
    /// The object of that kind (kubectl's name in the singular) and name, `None` if there is none; with an empty name, the
    /// list of all objects, with an empty namespace, in all namespaces. The namespace of kinds without one is ignored.
    ///
    /// # Errors
    /// When the server refuses or does not answer, or the kind is unknown here.
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Result<Option<Value>> {
        let known = KINDS.iter().find(|known| known.0 == kind);
        let (_, version) = known.with_context(|| format!("unknown kind {kind}"))?;
        let namespace = if CLUSTER_WIDE.contains(&kind) { "" } else { namespace };
        self.read(&path(version, &plural(kind), namespace, name))
    }

    /// Creates an object.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    pub fn create(&self, object: &Value) -> Result<()> {
        self.post(&path_of(object, "")?, object).map(drop)
    }

    /// Creates a namespace without labels.
    ///
    /// # Errors
    /// As [`ApiServer::create`].
    pub fn create_namespace(&self, name: &str) -> Result<()> {
        self.create(
            &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }),
        )
    }

    /// Replaces an object, or creates it.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    pub fn replace(&self, object: &Value) -> Result<()> {
        let path = path_of(object, name(object)?)?;
        loop {
            let Some(former) = self.read(&path)? else { return self.create(object) };
            let mut object = object.clone();
            object["metadata"]["resourceVersion"] = former["metadata"]["resourceVersion"].clone();
            match self.write("PUT", &path, JSON, &object)? {
                (200, _) => return Ok(()),
                // Another client was faster.
                (409, _) => {}
                (code, answer) => bail!("replace {path}: {code} {answer}"),
            }
        }
    }

    /// Writes the status of an object that exists.
    ///
    /// # Errors
    /// When the server refuses or does not answer.
    pub fn write_status(&self, object: &Value) -> Result<()> {
        let path = format!("{}/status", path_of(object, name(object)?)?);
        let status = json!({ "status": object["status"] });
        let (code, answer) = self.write("PATCH", &path, MERGE_PATCH, &status)?;
        ensure!(code == 200, "write the status: {code} {answer}");
        Ok(())
    }

    fn read(&self, path: &str) -> Result<Option<Value>> {
        let (code, answer) = self.proxy()?.ask(("GET", path), (JSON, ""), PATIENCE)?;
        match code {
            200 => Ok(Some(serde_json::from_str(&answer).context("no JSON")?)),
            404 => Ok(None),
            _ => bail!("get {path}: {code} {answer}"),
        }
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let (code, answer) = self.write("POST", path, JSON, body)?;
        ensure!(code == 201, "create {path}: {code} {answer}");
        serde_json::from_str(&answer).context("no JSON")
    }

    fn write(&self, method: &str, path: &str, media: &str, body: &Value) -> Result<(u16, String)> {
        self.proxy()?.ask((method, path), (media, &body.to_string()), PATIENCE)
    }
}

fn name(object: &Value) -> Result<&str> {
    object["metadata"]["name"].as_str().context("an object without a name")
}

/// Path of an object's kind, or with a name, of the object.
fn path_of(object: &Value, name: &str) -> Result<String> {
    let version = object["apiVersion"].as_str().context("an object without apiVersion")?;
    let kind = object["kind"].as_str().context("an object without kind")?;
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    Ok(path(version, &plural(kind), namespace, name))
}

fn path(version: &str, plural: &str, namespace: &str, name: &str) -> String {
    let group = if version.contains('/') { "apis" } else { "api" };
    let mut path = format!("/{group}/{version}");
    if !namespace.is_empty() {
        path += &format!("/namespaces/{namespace}");
    }
    path += &format!("/{plural}");
    if !name.is_empty() {
        path += &format!("/{name}");
    }
    path
}

/// Name of a kind in paths, such as `networkpolicies` of `NetworkPolicy`.
fn plural(kind: &str) -> String {
    let kind = kind.to_lowercase();
    match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if kind.ends_with('s') => format!("{kind}es"),
        None => format!("{kind}s"),
    }
}
