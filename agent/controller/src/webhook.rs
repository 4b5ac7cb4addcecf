//! Admission webhook that adds the readiness gate to new pods. On any error the pod is created without the gate. One
//! client cannot block others for long: a connection serves one request, has a deadline, and occupies one of a limited
//! number of places ([`Callers`]). Only the fields in use are held of a review ([`Excerpt`]).

mod callers;
mod excerpt;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures::StreamExt as _;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use ipnet::IpNet;
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tracing::{debug, info};

use crate::certificates::Served;
use crate::listen::{ListenAddress, accept};
use crate::pod_addresses::PodAddresses;
use callers::Callers;
use excerpt::{Excerpt, ExcerptPart};

/// Type of the readiness gate and of the pod's condition.
const GATE: &str = "netpold.io/network-ready";
/// Timeout of a connection, equal to that of the API server.
const PATIENCE: Duration = Duration::from_secs(10);
/// Timeout of the TLS handshake, and of the request's header.
const HEADER_PATIENCE: Duration = Duration::from_secs(2);
/// Maximum size of a review, in bytes: a pod has at most 1.5 MiB.
const REVIEW_MAX: usize = 4 << 20;
/// Size of the read buffer of a connection, in bytes.
const BUFFER: usize = 32 << 10;

/// Fields in use of an `AdmissionReview` (`admission.k8s.io/v1`).
static REVIEW: ExcerptPart = ExcerptPart::Fields(&[(
    "request",
    ExcerptPart::Fields(&[
        ("uid", ExcerptPart::Scalar),
        (
            "kind",
            ExcerptPart::Fields(&[("group", ExcerptPart::Scalar), ("kind", ExcerptPart::Scalar)]),
        ),
        ("operation", ExcerptPart::Scalar),
        ("subResource", ExcerptPart::Scalar),
        ("object", POD),
    ]),
)]);
const POD: ExcerptPart = ExcerptPart::Fields(&[
    (
        "metadata",
        ExcerptPart::Fields(&[(
            "annotations",
            ExcerptPart::Fields(&[(MIRROR, ExcerptPart::Scalar)]),
        )]),
    ),
    (
        "spec",
        ExcerptPart::Fields(&[
            ("hostNetwork", ExcerptPart::Scalar),
            ("nodeSelector", ExcerptPart::Fields(&[("kubernetes.io/os", ExcerptPart::Scalar)])),
            ("os", ExcerptPart::Fields(&[("name", ExcerptPart::Scalar)])),
            (
                "readinessGates",
                ExcerptPart::Items(&ExcerptPart::Fields(&[("conditionType", ExcerptPart::Scalar)])),
            ),
        ]),
    ),
]);
/// Annotation of static pods.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Listening address and permitted clients.
#[derive(Debug)]
pub struct WebhookSettings {
    /// Listening address.
    pub address: ListenAddress,
    /// Permitted client addresses; empty: all.
    pub clients: Vec<IpNet>,
    /// PEM file with the authorities for client certificates; `None`: clients need no certificate.
    pub client_ca: Option<PathBuf>,
}

/// Binds the address. The returned future serves requests until it is dropped.
pub(super) fn open(
    settings: WebhookSettings,
    served: Arc<Served>,
    pods: Arc<PodAddresses>,
) -> Result<impl Future<Output = ()>> {
    let WebhookSettings { address, clients, client_ca } = settings;
    let opened = address.bind().and_then(TcpListener::from_std);
    let listener = opened.with_context(|| format!("--webhook-listen {address}"))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let builder = match &client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let at = || format!("--webhook-client-ca {}", path.display());
            let roots = Arc::new(authorities(path).with_context(at)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            builder.with_client_cert_verifier(verifier.build().with_context(at)?)
        }
    };
    let acceptor = TlsAcceptor::from(Arc::new(builder.with_cert_resolver(served)));
    let router = Router::new().route("/mutate-pods", post(mutate_pods));
    info!(%address, "serving the webhook");
    let serve = move |stream| serve(stream, acceptor.clone(), router.clone());
    Ok(accept(listener, Callers::new(clients, pods), serve))
}

fn authorities(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path)? {
        roots.add(certificate?)?;
    }
    Ok(roots)
}

async fn serve(stream: TcpStream, acceptor: TlsAcceptor, router: Router) {
    if tokio::time::timeout(PATIENCE, converse(stream, acceptor, router)).await.is_err() {
        debug!("webhook: client timed out");
    }
}

async fn converse(stream: TcpStream, acceptor: TlsAcceptor, router: Router) {
    let stream = match tokio::time::timeout(HEADER_PATIENCE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return debug!("webhook: {error}"),
        Err(_) => return debug!("webhook: TLS handshake timed out"),
    };
    // With keep-alive, the server could close a connection just as the API server sends a request; the pod would get no
    // gate.
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_PATIENCE)
        .max_buf_size(BUFFER)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = served.await {
        debug!("webhook: {error}");
    }
}

async fn mutate_pods(body: Body) -> Response {
    let excerpt = match excerpt_of(body).await {
        Ok(excerpt) => excerpt,
        Err(status) => return (status, "AdmissionReview not accepted").into_response(),
    };
    match review(&excerpt) {
        Some(answer) => {
            ([(header::CONTENT_TYPE, "application/json")], answer.to_string()).into_response()
        }
        None => (StatusCode::BAD_REQUEST, "not an AdmissionReview").into_response(),
    }
}

/// Reduces a review to the fields in use while its body arrives.
async fn excerpt_of(body: Body) -> Result<Vec<u8>, StatusCode> {
    let (mut excerpt, mut length) = (Excerpt::new(&REVIEW), 0);
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| StatusCode::BAD_REQUEST)?;
        length += piece.len();
        if length > REVIEW_MAX {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        excerpt.push(&piece).map_err(|error| {
            debug!("webhook: {error}");
            StatusCode::BAD_REQUEST
        })?;
    }
    excerpt.finish().map_err(|_| StatusCode::BAD_REQUEST)
}

/// Returns the response to an `AdmissionReview`, or `None` if the body is none.
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

/// Returns the JSON patch for a pod that is being created, or `None` if the pod stays as it is.
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

/// Whether no agent would write the pod's condition, or the kubelet would ignore its gate: with the gate, the pod would
/// never be ready. `deploy/chart/templates/options/readiness-gate-policy.yaml` excludes the same pods.
fn is_without_agent(pod: &Value) -> bool {
    let spec = &pod["spec"];
    let is_linux = |os: &Value| os.is_null() || os == "linux";
    let is_static = !pod["metadata"]["annotations"][MIRROR].is_null();
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

    /// The excerpt contains every field that the response depends on.
    #[test]
    fn an_excerpt_is_answered_as_the_whole_is() {
        let gate = json!({ "conditionType": GATE });
        let mut requests = Vec::new();
        for spec in [
            json!({}),
            json!({ "hostNetwork": true }),
            json!({ "os": { "name": "windows" } }),
            json!({ "nodeSelector": { "kubernetes.io/os": "windows" } }),
            json!({ "readinessGates": [] }),
            json!({ "readinessGates": [{ "conditionType": "other" }] }),
            json!({ "readinessGates": [{ "conditionType": "other" }, gate] }),
            json!({ "readinessGates": 3 }),
            json!(3),
        ] {
            requests.push(request("CREATE", &spec));
            requests.push(request("UPDATE", &spec));
            let mut mirror = request("CREATE", &spec);
            mirror["object"]["metadata"]["annotations"][MIRROR] = json!("x");
            requests.push(mirror);
            let mut part = request("CREATE", &spec);
            part["subResource"] = json!("status");
            requests.push(part);
            let mut other = request("CREATE", &spec);
            other["kind"] = json!({ "group": "apps", "version": "v1", "kind": "Deployment" });
            requests.push(other);
        }
        for mut request in requests {
            request["object"]["metadata"]["labels"] = json!({ "a": "b".repeat(LONG) });
            request["oldObject"] = request["object"].clone();
            let whole = json!({ "kind": "AdmissionReview", "request": request }).to_string();
            let mut excerpt = Excerpt::new(&REVIEW);
            excerpt.push(whole.as_bytes()).unwrap();
            let excerpt = excerpt.finish().unwrap();
            assert!(excerpt.len() < 500);
            assert_eq!(review(&excerpt), review(whole.as_bytes()), "{request:#}");
        }
    }

    const LONG: usize = 100_000;
}
