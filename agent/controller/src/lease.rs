//! Leader election by Lease, as in Kubernetes' own controllers: only the holder writes. Other hosts' clocks do not
//! count: a Lease has expired if its resource version stayed the same for the Lease's duration on the local clock.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use netpold_core::lock::lock;
use tokio::sync::watch;
use tracing::{info, warn};

/// Name of the Lease.
const NAME: &str = "netpold-controller";
/// Duration of the Lease after its last renewal.
const DURATION: Duration = Duration::from_secs(15);
/// Time without a successful renewal after which a leader stops to lead, well before the Lease expires.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Time between two attempts.
const RETRY: Duration = Duration::from_secs(2);
/// Timeout of one attempt.
const PATIENCE: Duration = Duration::from_secs(4);

/// Receiver's view of the election.
#[derive(Clone, Debug)]
pub(super) struct ElectionView {
    flag: watch::Receiver<bool>,
    until: Arc<Mutex<Option<Instant>>>,
}

impl ElectionView {
    /// Whether this replica leads at this moment. Compares with the deadline itself, so that a process that was
    /// suspended stops before it writes.
    pub(super) fn leads(&self) -> bool {
        let until = *lock(&self.until);
        *self.flag.borrow() && until.is_some_and(|until| Instant::now() < until)
    }

    /// A replica that leads.
    #[cfg(test)]
    pub(super) fn for_ever() -> Self {
        let until = Instant::now().checked_add(Duration::from_hours(1));
        Self { flag: watch::channel(true).1, until: Arc::new(Mutex::new(until)) }
    }

    /// Waits until the replica starts or stops to lead.
    ///
    /// # Errors
    /// The election has ended.
    pub(super) async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.flag.changed().await
    }
}

/// Candidate of the election.
pub(super) struct Election {
    api: Api<Lease>,
    identity: String,
    leading: watch::Sender<bool>,
    /// Deadline of the leadership; `None`: this replica does not lead.
    until: Arc<Mutex<Option<Instant>>>,
    /// Resource version of the Lease, and the time at which it was first seen.
    seen: Option<(String, Instant)>,
    /// Start of the last successful renewal.
    renewed: Option<Instant>,
}

impl Election {
    pub(super) fn new(client: Client, namespace: &str, identity: String) -> (Self, ElectionView) {
        let (leading, flag) = watch::channel(false);
        let until = Arc::new(Mutex::new(None));
        let leads = ElectionView { flag, until: Arc::clone(&until) };
        let api = Api::namespaced(client, namespace);
        (Self { api, identity, leading, until, seen: None, renewed: None }, leads)
    }

    /// Takes part in the election until `ends` is true or its sender is gone, then releases the Lease.
    pub(super) async fn run(mut self, mut ends: watch::Receiver<bool>) {
        let mut failing = false;
        while !*ends.borrow() {
            let began = Instant::now();
            // The timeout ends at the renewal deadline: a later response is of no use.
            let left = self
                .renewed
                .map_or(PATIENCE, |renewed| RENEW_DEADLINE.saturating_sub(renewed.elapsed()));
            let patience = if left.is_zero() { PATIENCE } else { PATIENCE.min(left) };
            match tokio::time::timeout(patience, self.attempt(began)).await {
                Ok(Ok(holds)) => {
                    failing = false;
                    self.renewed = holds.then_some(began);
                }
                Ok(Err(kube::Error::Api(status))) if status.code == 409 => {}
                Ok(Err(error)) => {
                    if !failing {
                        warn!(%error, "cannot renew lease {NAME}");
                    }
                    failing = true;
                }
                Err(_) => {
                    if !failing {
                        warn!("cannot renew lease {NAME}: no answer from the API server");
                    }
                    failing = true;
                }
            }
            self.publish_leadership();
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                changed = ends.changed() => if changed.is_err() { break },
            }
            self.publish_leadership();
        }
        self.release().await;
    }

    fn publish_leadership(&self) {
        let until = self.renewed.map(|renewed| renewed + RENEW_DEADLINE);
        *lock(&self.until) = until;
        let leads = self.renewed.is_some_and(|renewed| renewed.elapsed() < RENEW_DEADLINE);
        self.leading.send_if_modified(|leading| {
            let modified = *leading != leads;
            *leading = leads;
            modified
        });
    }

    /// Renews the Lease, or acquires it if it has expired. Returns whether this replica holds it.
    async fn attempt(&mut self, now: Instant) -> Result<bool, kube::Error> {
        let Some(lease) = self.api.get_opt(NAME).await? else {
            let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.spec(None)) };
            self.api.create(&PostParams::default(), &lease).await?;
            info!(identity = self.identity, "acquired lease: none existed");
            return Ok(true);
        };
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let since = match &self.seen {
            Some((seen, since)) if *seen == version => *since,
            _ => now,
        };
        self.seen = Some((version, since));
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let duration = seconds.map_or(DURATION, Duration::from_secs);
        if !holder.is_empty()
            && holder != self.identity
            && now.saturating_duration_since(since) < duration
        {
            return Ok(false);
        }
        let renewed = Lease { spec: Some(self.spec(Some(&spec))), ..lease };
        self.api.replace(NAME, &PostParams::default(), &renewed).await?;
        if holder != self.identity {
            info!(identity = self.identity, before = holder, "acquired lease");
        }
        Ok(true)
    }

    fn spec(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let transitions = before.and_then(|before| before.lease_transitions).unwrap_or_default();
        let same = before.filter(|before| before.holder_identity.as_ref() == Some(&self.identity));
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(DURATION.as_secs() as i32),
            acquire_time: same.map_or(Some(now.clone()), |same| same.acquire_time.clone()),
            renew_time: Some(now),
            lease_transitions: Some(transitions + i32::from(before.is_some() && same.is_none())),
            ..LeaseSpec::default()
        }
    }

    /// Releases the Lease, so that another replica can acquire it without waiting for its expiry.
    async fn release(&mut self) {
        let held = self.renewed.take().is_some();
        self.publish_leadership();
        if !held {
            return;
        }
        let released = async {
            let mut lease = self.api.get(NAME).await?;
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_ref() != Some(&self.identity) {
                return Ok(());
            }
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            self.api.replace(NAME, &PostParams::default(), &lease).await.map(drop)
        };
        match tokio::time::timeout(PATIENCE, released).await {
            Ok(Ok(())) => info!("released lease"),
            Ok(Err(error)) => {
                warn!(%error, "cannot release lease; another replica acquires it in 15 s");
            }
            Err(_) => warn!("cannot release lease: no answer; another replica acquires it in 15 s"),
        }
    }
}
