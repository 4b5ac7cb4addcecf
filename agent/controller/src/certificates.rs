//! Certificates of the webhook. Each server certificate has its own authority; the authority's key is dropped after the
//! one signature. A Secret holds the certificates for all replicas. The `caBundle` contains an authority before any
//! replica serves its certificate, and for as long as a replica may still serve the previous one:
//!
//! ```text
//! age of the current one    0 ──────────── 2/3 ───────────── + 1/12 ──────────── 1
//! served                    current        current           next               (expired)
//! caBundle                  current (+ previous)  current + next    both
//! ```

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result};
use futures::StreamExt as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tracing::{info, warn};

use crate::index::Moment;
use crate::lease::ElectionView;

/// Name of the Secret.
const SECRET: &str = "netpold-controller-tls";
/// Field of the Secret with the certificates.
const FIELD: &str = "certificates.json";
/// Name of the webhook's configuration.
const CONFIGURATION: &str = "netpold-readiness-gate";
/// Annotation of the configuration: earliest time known at which the API server trusted the webhook (RFC 3339). Pods
/// created before may have no gate.
const TRUSTED_SINCE: &str = "netpold.io/trusted-since";
/// Seconds between `notBefore` and the time of issue, for clients with a clock that is slow.
const BACKDATED: u64 = 300;
/// Delay after a change of the webhook's configuration, so that consecutive changes cause one turn.
const GATHER: Duration = Duration::from_millis(100);
/// Timeout of one [`CertificateManager::renew`].
const PATIENCE: Duration = Duration::from_secs(15);

/// Server certificate with its key and the authority that signed it, in PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ServerCertificate {
    authority: String,
    certificate: String,
    key: String,
    /// Time of issue, in seconds since the epoch.
    issued: i64,
    /// Time of expiry, in seconds since the epoch.
    expires: i64,
}

/// Content of the Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Certificates {
    /// Certificate in use.
    current: ServerCertificate,
    /// Successor of `current`, once issued.
    next: Option<ServerCertificate>,
    /// Authority of the certificate before `current`.
    previous: Option<String>,
}

impl ServerCertificate {
    fn new(names: &[String], now: i64, lifetime: Duration) -> Result<Self, rcgen::Error> {
        let at = |unix: u64| UNIX_EPOCH + Duration::from_secs(unix);
        let issued = u64::try_from(now).unwrap_or_default();
        let params = |names: &[String], name: String| {
            let mut params = CertificateParams::new(names)?;
            params.not_before = at(issued.saturating_sub(BACKDATED)).into();
            params.not_after = at(issued + lifetime.as_secs()).into();
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, name);
            Ok::<_, rcgen::Error>(params)
        };
        // Authorities in one bundle need distinct subject names.
        let mut of_authority = params(&[], format!("netpold-controller {now}"))?;
        of_authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        of_authority.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let signer = KeyPair::generate()?;
        let authority = of_authority.self_signed(&signer)?.pem();
        let mut of_server = params(names, "netpold-controller".to_owned())?;
        of_server.use_authority_key_identifier_extension = true;
        of_server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        of_server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = of_server.signed_by(&key, &Issuer::new(of_authority, signer))?.pem();
        let expires = now + lifetime.as_secs() as i64;
        Ok(Self { authority, certificate, key: key.serialize_pem(), issued: now, expires })
    }

    const fn lifetime(&self) -> i64 {
        self.expires - self.issued
    }

    fn loaded(&self) -> Result<CertifiedKey> {
        let chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())?;
        Ok(CertifiedKey::from_der(chain, key, &ring::default_provider())?)
    }
}

impl Certificates {
    /// Returns the next state at the time `now`, or `None` while nothing changes.
    fn step(
        &self,
        now: i64,
        may_promote: bool,
        issue: impl FnOnce() -> Result<ServerCertificate, rcgen::Error>,
    ) -> Result<Option<Self>, rcgen::Error> {
        let Self { current, next, .. } = self;
        if now >= current.expires {
            return Ok(Some(Self { current: issue()?, next: None, previous: None }));
        }
        match next {
            Some(next) if may_promote && now >= next.issued + next.lifetime() / 12 => {
                Ok(Some(Self {
                    current: next.clone(),
                    next: None,
                    previous: Some(current.authority.clone()),
                }))
            }
            None if now >= current.issued + current.lifetime() / 3 * 2 => {
                Ok(Some(Self { current: current.clone(), next: Some(issue()?), previous: None }))
            }
            Some(_) | None => Ok(None),
        }
    }

    /// Returns the authorities for the `caBundle`, concatenated.
    fn bundle(&self) -> String {
        let next = self.next.as_ref().map(|next| next.authority.as_str());
        [Some(&*self.current.authority), next, self.previous.as_deref()]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// Certificate that the TLS server presents; replaceable while connections are open.
#[derive(Debug, Default)]
pub(super) struct Served {
    key: RwLock<Option<Arc<CertifiedKey>>>,
    /// See [`Served::is_trusted`].
    trusted: AtomicBool,
}

impl Served {
    /// Whether there is a certificate to present.
    pub(super) fn is_there(&self) -> bool {
        self.key.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether the `caBundle` of every webhook in the cluster's configuration matched the Secret when last read. Only
    /// then do new pods get their readiness gate.
    pub(super) fn is_trusted(&self) -> bool {
        self.trusted.load(Ordering::Relaxed)
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.key.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Issues, renews and loads the certificates, and maintains the `caBundle`.
pub(super) struct CertificateManager {
    secrets: Api<Secret>,
    configurations: Api<MutatingWebhookConfiguration>,
    names: Vec<String>,
    lifetime: Duration,
    leading: ElectionView,
    served: Arc<Served>,
    /// Certificate in [`Served`].
    current: Option<ServerCertificate>,
    /// Whether this replica leads and found or made the `caBundle` current in its last turn, or found no configuration.
    /// A condition for promoting [`Certificates::next`].
    trusted: bool,
}

impl CertificateManager {
    pub(super) fn new(
        client: Client,
        namespace: &str,
        lifetime: Duration,
        leading: ElectionView,
    ) -> (Self, Arc<Served>) {
        let served = Arc::new(Served::default());
        let service = format!("netpold-controller.{namespace}.svc");
        let names =
            [format!("{service}.cluster.local"), service, "localhost".into(), "127.0.0.1".into()];
        let keeper = Self {
            secrets: Api::namespaced(client.clone(), namespace),
            configurations: Api::all(client),
            names: names.into(),
            lifetime,
            leading,
            served: Arc::clone(&served),
            current: None,
            trusted: false,
        };
        (keeper, served)
    }

    /// Runs a turn at regular intervals, and after each change of the webhook's configuration: until it has the
    /// `caBundle`, new pods get no gate. Returns when the election ends.
    pub(super) async fn run(mut self) {
        let pause = (self.lifetime / 60).clamp(Duration::from_secs(1), Duration::from_secs(30));
        let mut failing = false;
        let changes = watch_object(self.configurations.clone(), CONFIGURATION).default_backoff();
        // Errors of the watch are not logged: the requests of the next turn fail for the same reason and are logged.
        let mut changes = changes.filter(|change| ready(change.is_ok())).boxed();
        loop {
            let outcome = tokio::time::timeout(PATIENCE, self.renew()).await;
            let outcome = outcome.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer")));
            match outcome {
                Ok(()) => failing = false,
                Err(error) => {
                    self.trusted = false;
                    self.served.trusted.store(false, Ordering::Relaxed);
                    if !failing {
                        warn!("cannot maintain the webhook's certificates: {error:#}");
                    }
                    failing = true;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(if self.current.is_some() { pause } else { Duration::from_secs(1) }) => {}
                Some(_) = changes.next() => tokio::time::sleep(GATHER).await,
                changed = self.leading.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn renew(&mut self) -> Result<()> {
        let leads = self.leading.leads();
        let secret =
            self.secrets.get_opt(SECRET).await.with_context(|| format!("Secret {SECRET}"))?;
        let mut certificates = secret.as_ref().and_then(read);
        if leads && let Some(new) = self.issue(certificates.as_ref())? {
            self.write(secret, &new).await.with_context(|| format!("Secret {SECRET}"))?;
            certificates = Some(new);
        }
        if let Some(certificates) = &certificates {
            let trusts = self.trust(certificates, leads).await;
            let trusts =
                trusts.with_context(|| format!("MutatingWebhookConfiguration {CONFIGURATION}"))?;
            self.served.trusted.store(trusts, Ordering::Relaxed);
            self.trusted = leads;
        }
        if let Some(certificates) =
            certificates.filter(|it| self.current.as_ref() != Some(&it.current))
        {
            let loaded =
                Arc::new(certificates.current.loaded().context("cannot use the certificate")?);
            *self.served.key.write().unwrap_or_else(PoisonError::into_inner) = Some(loaded);
            self.current = Some(certificates.current);
            info!("loaded webhook certificate");
        }
        Ok(())
    }

    fn issue(&self, certificates: Option<&Certificates>) -> Result<Option<Certificates>> {
        let now = Moment::get().unix;
        let issue = || ServerCertificate::new(&self.names, now, self.lifetime);
        let new = match certificates {
            Some(certificates) => certificates.step(now, self.trusted, issue),
            None => {
                issue().map(|current| Some(Certificates { current, next: None, previous: None }))
            }
        };
        new.context("cannot create a certificate")
    }

    /// Writes the Secret on condition of its resource version: another replica may have become the leader.
    async fn write(&self, secret: Option<Secret>, new: &Certificates) -> Result<()> {
        let data = BTreeMap::from([(FIELD.to_owned(), ByteString(serde_json::to_vec(new)?))]);
        let params = PostParams::default();
        match secret {
            Some(secret) => {
                let secret = Secret { data: Some(data), ..secret };
                self.secrets.replace(SECRET, &params, &secret).await?;
            }
            None => {
                let metadata =
                    ObjectMeta { name: Some(SECRET.to_owned()), ..ObjectMeta::default() };
                let secret = Secret { metadata, data: Some(data), ..Secret::default() };
                self.secrets.create(&params, &secret).await?;
            }
        }
        Ok(())
    }

    /// Compares the `caBundle` of the webhook's configuration with the certificates, and patches it if this replica
    /// leads. Returns whether they match afterwards; `false` if there is no configuration.
    async fn trust(&self, certificates: &Certificates, leads: bool) -> Result<bool> {
        let Some(configuration) = self.configurations.get_opt(CONFIGURATION).await? else {
            return Ok(false);
        };
        let now = k8s_openapi::jiff::Timestamp::from_second(Moment::get().unix)?;
        let Some(patch) = trust_patch(&configuration, certificates, now) else { return Ok(true) };
        let is_trusted = patch.get("webhooks").is_none();
        if !leads {
            return Ok(is_trusted);
        }
        self.configurations
            .patch(CONFIGURATION, &PatchParams::default(), &Patch::Strategic(patch))
            .await?;
        if !is_trusted {
            let created = configuration.metadata.creation_timestamp;
            let age = created.map(|created| now.as_second() - created.0.as_second());
            info!(
                configuration_age_seconds = age,
                "wrote CA bundle to the webhook configuration: new pods get the readiness gate"
            );
        }
        Ok(true)
    }
}

/// Returns the patch of a configuration without the current `caBundle` or without [`TRUSTED_SINCE`]; `None` if nothing
/// changes. A rotation, where the API server trusts the present certificate all along, keeps the annotation.
fn trust_patch(
    configuration: &MutatingWebhookConfiguration,
    certificates: &Certificates,
    now: k8s_openapi::jiff::Timestamp,
) -> Option<Value> {
    let bundle = ByteString(certificates.bundle().into_bytes());
    let bundles = || {
        let webhooks = configuration.webhooks.iter().flatten();
        webhooks.map(|webhook| (webhook, webhook.client_config.ca_bundle.as_ref()))
    };
    let differing = bundles().filter(|(_, present)| *present != Some(&bundle));
    let webhooks: Vec<Value> = differing
        .map(|(webhook, _)| json!({ "name": webhook.name, "clientConfig": { "caBundle": bundle } }))
        .collect();
    let authority = certificates.current.authority.as_bytes();
    let contains =
        |present: &ByteString| present.0.windows(authority.len()).any(|part| part == authority);
    let is_trusted = bundles().all(|(_, present)| present.is_some_and(contains));
    let annotations = configuration.metadata.annotations.as_ref();
    let is_annotated = annotations.is_some_and(|all| all.contains_key(TRUSTED_SINCE));
    let mut patch = serde_json::Map::new();
    if !webhooks.is_empty() {
        patch.insert("webhooks".into(), webhooks.into());
    }
    if !is_trusted || !is_annotated {
        let annotations = json!({ "annotations": { TRUSTED_SINCE: now.to_string() } });
        patch.insert("metadata".into(), annotations);
    }
    (!patch.is_empty()).then(|| patch.into())
}

fn read(secret: &Secret) -> Option<Certificates> {
    let data = secret.data.as_ref()?.get(FIELD)?;
    serde_json::from_slice(&data.0)
        .inspect_err(|error| warn!(%error, "cannot parse Secret {SECRET}: replacing it"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trusted_since_is_the_time_of_the_first_trusted_bundle() {
        let at = |second| k8s_openapi::jiff::Timestamp::from_second(second).unwrap();
        let issue =
            |now| ServerCertificate::new(&["localhost".to_owned()], now, Duration::from_mins(20));
        let first = Certificates { current: issue(0).unwrap(), next: None, previous: None };
        let mut known = json!({ "metadata": {}, "webhooks": [{
            "name": "gate.netpold.io", "clientConfig": {}, "sideEffects": "None", "admissionReviewVersions": ["v1"],
        }]});
        let patch = |known: &Value, certificates, now| {
            let configuration = serde_json::from_value(known.clone()).unwrap();
            trust_patch(&configuration, certificates, at(now))
        };
        let new = patch(&known, &first, 60).unwrap();
        assert_eq!(new["metadata"]["annotations"][TRUSTED_SINCE], "1970-01-01T00:01:00Z");
        known["metadata"] = new["metadata"].clone();
        known["webhooks"][0]["clientConfig"] = new["webhooks"][0]["clientConfig"].clone();
        assert_eq!(patch(&known, &first, 70), None);
        // A rotation adds an authority: the server trusts the present certificate meanwhile.
        let both = Certificates { next: Some(issue(1).unwrap()), ..first.clone() };
        let rotated = patch(&known, &both, 80).unwrap();
        assert!(
            rotated.get("metadata").is_none()
                && rotated["webhooks"][0]["clientConfig"]["caBundle"].is_string()
        );
        // An upgrade of the manifests empties the bundle: pods have no gate until it is back.
        known["webhooks"][0]["clientConfig"] = json!({});
        let again = patch(&known, &first, 90).unwrap();
        assert_eq!(again["metadata"]["annotations"][TRUSTED_SINCE], "1970-01-01T00:01:30Z");
        // A configuration of a former version has the bundle, but no annotation.
        known["metadata"] = json!({});
        known["webhooks"][0]["clientConfig"] = again["webhooks"][0]["clientConfig"].clone();
        let annotated = patch(&known, &first, 100).unwrap();
        assert!(annotated.get("webhooks").is_none() && annotated.get("metadata").is_some());
    }

    #[test]
    fn an_authority_is_known_before_its_certificate_is_served_and_after() {
        let lifetime = Duration::from_mins(20);
        let issued = |now| ServerCertificate::new(&["localhost".to_owned()], now, lifetime);
        let at = |certificates: &Certificates, now, trusted| {
            certificates.step(now, trusted, || issued(now)).unwrap()
        };
        let first = Certificates { current: issued(0).unwrap(), next: None, previous: None };
        assert!(first.current.loaded().is_ok());
        assert_eq!(at(&first, 799, true), None);
        let both = at(&first, 800, true).unwrap();
        assert_eq!(both.current, first.current);
        let next = both.next.clone().unwrap();
        assert_eq!(both.bundle(), [&*first.current.authority, &next.authority].concat());
        assert_eq!((at(&both, 899, true), at(&both, 900, false)), (None, None));
        let second = at(&both, 900, true).unwrap();
        assert_eq!((&second.current, &second.next), (&next, &None));
        assert_eq!(second.bundle(), [next.authority, first.current.authority].concat());
        assert_eq!(at(&second, 1000, true), None);
        let third = at(&second, 5000, true).unwrap();
        assert_eq!((third.current.issued, third.next, third.previous), (5000, None, None));
    }
}
