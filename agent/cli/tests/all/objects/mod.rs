//! Objects of several tests, in YAML.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::borrow::Borrow;
use std::fs;

use tempfile::TempDir;

/// A folder with objects in one file.
pub(crate) fn folder(objects: &[impl Borrow<str>]) -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("all.yaml"), objects.join("\n---\n")).unwrap();
    folder
}

/// A policy about the pods of an app.
pub(crate) fn policy(app: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{namespace: shop, name: {app}}}, spec: \
         {{podSelector: {{matchLabels: {{app: {app}}}}}, {spec}}}}}"
    )
}

/// The Service `web`.
pub(crate) fn service(spec: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{namespace: shop, name: web}}, spec: {{{spec}}}}}"
    )
}
