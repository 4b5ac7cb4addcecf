//! Writes to the API server, within a rate limit.

use std::sync::Arc;
use std::time::Duration;

use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::request;
use kube::core::{Request, Resource};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use netpold_kube::cluster::connection::Connection;
use netpold_kube::cluster::failure::{Failure, code_of, is_outage};

/// Writes per second of the whole agent, in the long run.
const RATE: f64 = 10.0;
/// Most writes at once after a rest.
const BURST: f64 = 50.0;
/// Time after which an unanswered write has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// Accept header that limits the answer to metadata; otherwise it repeats the whole object.
const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
/// Content type of a JSON Patch.
const JSON_PATCH: &str = "application/json-patch+json";

/// Error of a write.
#[derive(Debug)]
pub(super) struct WriteError {
    /// HTTP status; `None` without an answer.
    pub(super) code: Option<u16>,
    pub(super) failure: Failure,
}

impl WriteError {
    /// Returns whether the object or its kind does not exist (404).
    pub(super) fn is_absent(&self) -> bool {
        self.code == Some(404)
    }

    /// Returns whether the object was replaced or changed (409).
    pub(super) fn is_conflict(&self) -> bool {
        self.code == Some(409)
    }

    /// Returns whether the server rejects this particular write, not the agent's writes in general.
    pub(super) fn is_of_object(&self) -> bool {
        matches!(self.code, Some(400 | 404 | 409 | 422))
    }

    /// Returns whether the server would refuse the same write again (4xx).
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self.code, Some(400..=499))
    }

    /// Returns whether the error is an outage; see [`is_outage`].
    pub(super) const fn is_outage(&self) -> bool {
        is_outage(self.code)
    }
}

/// Writer shared by all tasks of the agent.
pub(super) struct ObjectWriter {
    connection: Arc<Connection>,
    bucket: Mutex<TokenBucket>,
}

impl ObjectWriter {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self { connection, bucket: Mutex::new(TokenBucket { left: BURST, at: Instant::now() }) }
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Patches an object or one of its subresources. `namespace` is given for namespaced kinds. Returns the object's
    /// `resourceVersion`, as all writes do.
    pub(super) async fn patch<K: Resource<DynamicType = ()>>(
        &self,
        (namespace, name): (Option<&str>, &str),
        subresource: Option<&str>,
        patch: &Patch<impl Serialize>,
    ) -> Result<Option<String>, WriteError> {
        let request = Request::new(K::url_path(&(), namespace));
        let parameters = PatchParams::default();
        self.send(match subresource {
            Some(part) => request.patch_subresource(part, name, &parameters, patch),
            None => request.patch(name, &parameters, patch),
        })
        .await
    }

    /// Applies a JSON Patch (RFC 6902) to the status of a cluster-scoped object.
    pub(super) async fn patch_by_operations<K: Resource<DynamicType = ()>>(
        &self,
        name: &str,
        operations: &[Value],
    ) -> Result<Option<String>, WriteError> {
        // kube offers JSON patches in a separate feature only; the content type is the sole difference.
        let request = Request::new(K::url_path(&(), None));
        let parameters = PatchParams::default();
        let mut request =
            request.patch_subresource("status", name, &parameters, &Patch::Merge(operations));
        if let Ok(request) = &mut request {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON_PATCH));
        }
        self.send(request).await
    }

    /// Creates a cluster-scoped object.
    pub(super) async fn create<K: Resource<DynamicType = ()>>(
        &self,
        object: &impl Serialize,
    ) -> Result<Option<String>, WriteError> {
        let request = Request::new(K::url_path(&(), None));
        let body = serde_json::to_vec(object).map_err(|error| WriteError {
            code: None,
            failure: Failure::Undecodable(error.to_string()),
        })?;
        self.send(request.create(&PostParams::default(), body)).await
    }

    async fn send(
        &self,
        request: Result<hyper::Request<Vec<u8>>, request::Error>,
    ) -> Result<Option<String>, WriteError> {
        let mut request = request.map_err(|error| error_of(kube::Error::BuildRequest(error)))?;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(METADATA));
        self.bucket.lock().await.wait_for_token().await;
        let client = self.connection.client();
        match timeout(PATIENCE, client.request_text(request)).await {
            Ok(Ok(answer)) => Ok(version(&answer)),
            Ok(Err(error)) => Err(error_of(error)),
            Err(_) => Err(WriteError { code: None, failure: Failure::Silent(PATIENCE) }),
        }
    }
}

/// Returns the `resourceVersion` of the object in an answer.
fn version(answer: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct WrittenObject {
        metadata: WrittenMetadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct WrittenMetadata {
        resource_version: Option<String>,
    }
    serde_json::from_str::<WrittenObject>(answer).ok()?.metadata.resource_version
}

fn error_of(error: kube::Error) -> WriteError {
    WriteError { code: code_of(&error), failure: Failure::from_error(error) }
}

/// A token bucket; waiting writes proceed in order.
#[derive(Debug)]
struct TokenBucket {
    left: f64,
    at: Instant,
}

impl TokenBucket {
    async fn wait_for_token(&mut self) {
        let pause = self.reserve(Instant::now());
        sleep(pause).await;
    }

    /// Takes one token; returns how long to wait for it.
    fn reserve(&mut self, now: Instant) -> Duration {
        let rest = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = rest.mul_add(RATE, self.left).min(BURST) - 1.0;
        self.at = now;
        Duration::from_secs_f64((-self.left).max(0.0) / RATE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rollout of 110 pods.
    #[test]
    fn fifty_at_once_then_ten_a_second() {
        let began = Instant::now();
        let mut bucket = TokenBucket { left: BURST, at: began };
        let mut now = began;
        for _ in 0..50 {
            assert_eq!(bucket.reserve(now), Duration::ZERO);
        }
        for _ in 50..110 {
            now += bucket.reserve(now);
        }
        let took = now - began;
        assert!(took.as_secs_f64() > 5.9 && took.as_secs_f64() < 6.1, "{took:?}");
    }
}
