//! The webhook: gives pods the readiness gate as they are created. Whatever is wrong, the pod is created, without
//! it. As with the other listener, nobody who connects keeps others from being answered for long: a connection
//! serves one request and has a deadline.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tracing::{debug, info};

use super::certificates::Served;
use crate::listen::ListenAddress;

/// The readiness gate, and the pod's condition.
const GATE: &str = "netpold.io/network-ready";
/// Connections at a time.
const CONNECTIONS: usize = 64;
/// How long one may last: the API server waits no longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a client may take to ask.
const HEADER_PATIENCE: Duration = Duration::from_secs(2);
/// Largest review, in bytes: a pod has 1.5 MiB at most.
const REVIEW_MAX: usize = 4 << 20;

/// Listens; what is returned serves until it is dropped.
pub(super) fn open(
    address: ListenAddress,
    served: Arc<Served>,
) -> Result<impl Future<Output = ()>> {
    let opened = address.bind().and_then(TcpListener::from_std);
    let listener = opened.with_context(|| format!("--webhook-listen {address}"))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(served);
    info!(%address, "serves the webhook");
    Ok(accept(listener, TlsAcceptor::from(Arc::new(config))))
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor) {
    let router = Router::new()
        .route("/mutate-pods", post(mutate_pods))
        .layer(DefaultBodyLimit::max(REVIEW_MAX));
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (acceptor, router) = (acceptor.clone(), router.clone());
                tokio::spawn(async move {
                    if tokio::time::timeout(PATIENCE, serve(stream, acceptor, router))
                        .await
                        .is_err()
                    {
                        debug!("webhook: the client takes too long");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: give the others time to end.
                debug!("webhook: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, acceptor: TlsAcceptor, router: Router) {
    let stream = match tokio::time::timeout(HEADER_PATIENCE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!("webhook: {error}"),
        Err(_) => return debug!("webhook: no handshake"),
    };
    // Kept open, a connection could be closed just as the API server sends a request, and a pod went without.
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_PATIENCE)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = served.await {
        debug!("webhook: {error}");
    }
}

async fn mutate_pods(body: Bytes) -> Response {
    match review(&body) {
        Some(answer) => {
            ([(header::CONTENT_TYPE, "application/json")], answer.to_string()).into_response()
        }
        None => (StatusCode::BAD_REQUEST, "no AdmissionReview").into_response(),
    }
}

/// The answer to an `AdmissionReview`; `None`: it is none.
fn review(body: &[u8]) -> Option<Value> {
    let review: Value = serde_json::from_slice(body).ok()?;
    let request = &review["request"];
    let mut response = json!({ "uid": request["uid"].as_str()?, "allowed": true });
    if let Some(patch) = patch(request).and_then(|patch| serde_json::to_vec(&patch).ok()) {
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(ByteString(patch));
    }
    Some(
        json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response }),
    )
}

/// What to change of a pod that is created.
fn patch(request: &Value) -> Option<Value> {
    let is_pod = request["kind"]["kind"] == "Pod"
        && request["kind"]["group"].as_str().is_none_or(str::is_empty);
    let is_created = request["operation"] == "CREATE"
        && request["subResource"].as_str().is_none_or(str::is_empty);
    let spec = &request["object"]["spec"];
    if !is_pod || !is_created || !spec.is_object() || is_without_agent(&request["object"]) {
        return None;
    }
    let gate = json!({ "conditionType": GATE });
    match &spec["readinessGates"] {
        Value::Null => {
            Some(json!([{ "op": "add", "path": "/spec/readinessGates", "value": [gate] }]))
        }
        Value::Array(gates) if gates.iter().any(|it| it["conditionType"] == GATE) => None,
        Value::Array(_) => {
            Some(json!([{ "op": "add", "path": "/spec/readinessGates/-", "value": gate }]))
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => None,
    }
}

/// Whether no agent would write the condition of a pod, or the kubelet not read its gate: such a pod would never be
/// ready. The same pods as in `deploy/overlays/readiness-gate`.
fn is_without_agent(pod: &Value) -> bool {
    let spec = &pod["spec"];
    let is_linux = |os: &Value| os.is_null() || os == "linux";
    let is_static = !pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_null();
    spec["hostNetwork"] == true
        || is_static
        || !is_linux(&spec["os"]["name"])
        || !is_linux(&spec["nodeSelector"]["kubernetes.io/os"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: &str, spec: &Value) -> Value {
        json!({
            "uid": "u", "operation": operation, "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "object": { "spec": spec },
        })
    }

    #[test]
    fn pods_get_the_gate_once() {
        let gate = json!({ "conditionType": GATE });
        let path = |spec: &Value| patch(&request("CREATE", spec)).map(|it| it[0]["path"].clone());
        assert_eq!(path(&json!({})), Some(json!("/spec/readinessGates")));
        assert_eq!(path(&json!({ "hostNetwork": false })), Some(json!("/spec/readinessGates")));
        assert_eq!(path(&json!({ "readinessGates": [] })), Some(json!("/spec/readinessGates/-")));
        let other = json!({ "readinessGates": [{ "conditionType": "other" }] });
        assert_eq!(path(&other), Some(json!("/spec/readinessGates/-")));
        assert_eq!(path(&json!({ "readinessGates": [gate] })), None);
        assert_eq!(path(&json!({ "hostNetwork": true })), None);
        assert_eq!(path(&json!({ "os": { "name": "windows" } })), None);
        assert_eq!(path(&json!({ "nodeSelector": { "kubernetes.io/os": "windows" } })), None);
        assert!(
            path(&json!({ "os": { "name": "linux" }, "nodeSelector": { "disk": "ssd" } }))
                .is_some()
        );
        let mut mirror = request("CREATE", &json!({}));
        mirror["object"]["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("x");
        assert_eq!(patch(&mirror), None);
        assert_eq!(patch(&request("UPDATE", &json!({}))), None);
    }

    #[test]
    fn whatever_is_asked_is_allowed() {
        let review =
            |request: &Value| review(json!({ "request": request }).to_string().as_bytes()).unwrap();
        let answer = review(&request("CREATE", &json!({})))["response"].clone();
        assert_eq!((&answer["uid"], &answer["allowed"]), (&json!("u"), &json!(true)));
        assert_eq!(answer["patchType"], "JSONPatch");
        for odd in [
            json!({ "uid": "u" }),
            request("CREATE", &json!(3)),
            request("CREATE", &json!({ "readinessGates": 3 })),
        ] {
            assert_eq!(review(&odd)["response"], json!({ "uid": "u", "allowed": true }));
        }
        assert_eq!(super::review(b"{}"), None);
    }
}
