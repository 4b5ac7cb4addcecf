//! Objects of several tests, in YAML.

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
