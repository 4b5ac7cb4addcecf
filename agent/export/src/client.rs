//! Requests to a collector.

use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::{BodyExt as _, Collected, Full, Limited};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use prost::Message;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::wire::ExportResponse;

/// Time for a request and its answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer that is read.
const ANSWER_MAX: usize = 64 << 10;
/// Longest pause that a collector may request.
const RETRY_AFTER_MAX: Duration = Duration::from_mins(1);

/// Address of a collector, and files with credentials. The files are read for each new connection or request, so a
/// changed file needs no restart.
#[derive(Clone, Debug)]
pub struct CollectorAddress {
    base: String,
    /// File with one header a line, `name: value`.
    pub headers: Option<PathBuf>,
    /// PEM file of certificate authorities; absent: those of the system.
    pub authorities: Option<PathBuf>,
}

/// The address is not an http or https URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectorAddressError;

impl fmt::Display for CollectorAddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("give a URL without credentials, as http://collector:4318")
    }
}

impl std::error::Error for CollectorAddressError {}

/// Reads a base URL, to which `/v1/logs` and `/v1/metrics` are appended.
impl FromStr for CollectorAddress {
    type Err = CollectorAddressError;

    fn from_str(url: &str) -> Result<Self, CollectorAddressError> {
        let uri: Uri = url.parse().map_err(|_| CollectorAddressError)?;
        let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
        // Credentials belong in the file of headers; a fragment is never sent.
        let is_plain = uri.query().is_none() && !url.contains(['#', '@']);
        if !is_known || uri.authority().is_none() || !is_plain {
            return Err(CollectorAddressError);
        }
        Ok(Self { base: url.trim_end_matches('/').to_owned(), headers: None, authorities: None })
    }
}

/// Whether a failed request may succeed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryAdvice {
    /// The collector refuses the request.
    Never,
    /// After the pause that the collector requests, if any.
    After(Option<Duration>),
}

/// A request that failed.
#[derive(Debug)]
pub(crate) struct RequestFailure {
    pub(crate) reason: String,
    pub(crate) retry: RetryAdvice,
}

impl RequestFailure {
    fn retried(reason: impl fmt::Display) -> Self {
        Self { reason: reason.to_string(), retry: RetryAdvice::After(None) }
    }
}

pub(crate) struct CollectorClient {
    endpoint: CollectorAddress,
    http: Option<HttpClient<HttpsConnector<HttpConnector>, Full<Bytes>>>,
}

impl CollectorClient {
    pub(crate) fn new(endpoint: CollectorAddress) -> Self {
        Self { endpoint, http: None }
    }

    /// Sends a message to a path below the endpoint; returns the number of rejected elements and the collector's
    /// reason.
    pub(crate) async fn send(
        &mut self,
        path: &str,
        message: &impl Message,
    ) -> Result<(u64, String), RequestFailure> {
        let sent = tokio::time::timeout(TIMEOUT, self.request(path, message)).await;
        sent.unwrap_or_else(|_| {
            self.http = None;
            Err(RequestFailure::retried("no answer in 10 s"))
        })
    }

    async fn request(
        &mut self,
        path: &str,
        message: &impl Message,
    ) -> Result<(u64, String), RequestFailure> {
        let http = match &self.http {
            Some(http) => http,
            None => self.http.insert(connect(&self.endpoint).map_err(RequestFailure::retried)?),
        };
        let mut request = Request::post(format!("{}{path}", self.endpoint.base))
            .header(CONTENT_TYPE, "application/x-protobuf")
            .header(CONTENT_ENCODING, "gzip")
            .body(Full::new(compress(&message.encode_to_vec()).map_err(RequestFailure::retried)?))
            .map_err(RequestFailure::retried)?;
        if let Some(file) = &self.endpoint.headers {
            request.headers_mut().extend(headers(file).map_err(RequestFailure::retried)?);
        }
        let answer = match http.request(request).await {
            Ok(answer) => answer,
            Err(error) => {
                // The next connection reads the authorities again.
                self.http = None;
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                return Err(RequestFailure::retried(cause.unwrap_or_else(|| error.to_string())));
            }
        };
        let (status, pause) = (answer.status(), pause(answer.headers().get(RETRY_AFTER)));
        let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
        if status.is_success() {
            // The records are delivered, whether or not the answer can be read.
            let body = body.map(Collected::to_bytes).unwrap_or_default();
            let partial = ExportResponse::decode(body).ok().and_then(|it| it.partial_success);
            let partial = partial.unwrap_or_default();
            return Ok((u64::try_from(partial.rejected).unwrap_or(0), partial.error_message));
        }
        // OTLP: the only statuses after which a client sends again.
        let again = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::BAD_GATEWAY,
            StatusCode::SERVICE_UNAVAILABLE,
            StatusCode::GATEWAY_TIMEOUT,
        ];
        let may = again.contains(&status);
        let retry = if may { RetryAdvice::After(pause) } else { RetryAdvice::Never };
        Err(RequestFailure { reason: status.to_string(), retry })
    }
}

fn pause(header: Option<&HeaderValue>) -> Option<Duration> {
    let seconds = header?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

fn compress(bytes: &[u8]) -> io::Result<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish().map(Bytes::from)
}

fn connect(
    endpoint: &CollectorAddress,
) -> io::Result<HttpClient<HttpsConnector<HttpConnector>, Full<Bytes>>> {
    let builder = HttpsConnectorBuilder::new();
    let builder = match &endpoint.authorities {
        Some(file) => builder.with_tls_config(trusting(file)?),
        // Without TLS, no authority is needed.
        None if endpoint.base.starts_with("http:") => {
            builder.with_tls_config(config(RootCertStore::empty())?)
        }
        None => builder.with_provider_and_native_roots(ring::default_provider())?,
    };
    let connector = builder.https_or_http().enable_http1().build();
    Ok(HttpClient::builder(TokioExecutor::new()).build(connector))
}

fn trusting(file: &Path) -> io::Result<ClientConfig> {
    let of_file =
        |error: &dyn fmt::Display| io::Error::other(format!("{}: {error}", file.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| of_file(&error))? {
        let certificate = certificate.map_err(|error| of_file(&error))?;
        roots.add(certificate).map_err(|error| of_file(&error))?;
    }
    if roots.is_empty() {
        return Err(of_file(&"no certificate"));
    }
    config(roots)
}

fn config(roots: RootCertStore) -> io::Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(ring::default_provider().into());
    let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// Reads headers; values are marked as sensitive.
fn headers(file: &Path) -> io::Result<Vec<(HeaderName, HeaderValue)>> {
    let text = fs::read_to_string(file)
        .map_err(|error| io::Error::other(format!("{}: {error}", file.display())))?;
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let header = |(number, line): (usize, &str)| {
        // The value is a credential, so no error shows it.
        let broken = || {
            let place = format!("{}: line {}", file.display(), number + 1);
            io::Error::other(format!("{place} is no header, as in `name: value`"))
        };
        let (name, value) = line.split_once(':').ok_or_else(broken)?;
        let name = name.trim().parse().map_err(|_| broken())?;
        let mut value = HeaderValue::from_str(value.trim()).map_err(|_| broken())?;
        value.set_sensitive(true);
        Ok((name, value))
    };
    lines.map(header).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_those_of_http() {
        for url in ["http://c:4318", "https://c/otlp/", "http://[fd00::1]:4318"] {
            assert!(url.parse::<CollectorAddress>().is_ok(), "{url}");
        }
        for url in [
            "",
            "c:4318",
            "/v1",
            "ftp://c",
            "grpc://c:4317",
            "http://c/?a=b",
            "http://a:b@c",
            "http://c/#d",
        ] {
            assert_eq!(
                url.parse::<CollectorAddress>().unwrap_err(),
                CollectorAddressError,
                "{url}"
            );
        }
    }

    #[test]
    fn headers_are_read_and_their_values_never_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "# token\nAuthorization: Bearer a:b\n\nx-scope: 1\n").unwrap();
        let read = headers(file.path()).unwrap();
        assert_eq!(
            (read[0].0.as_str(), read[0].1.to_str().unwrap()),
            ("authorization", "Bearer a:b")
        );
        assert!(read[0].1.is_sensitive() && read.len() == 2);
        fs::write(file.path(), "ok: 1\nsecret").unwrap();
        let error = headers(file.path()).unwrap_err().to_string();
        assert!(error.contains("line 2") && !error.contains("secret"), "{error}");
    }
}
