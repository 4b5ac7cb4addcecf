//! Which of several controllers writes: the one that holds the Lease, as Kubernetes' own controllers do it. Others'
//! clocks are not trusted: a Lease has run out when it was not renewed for its duration since it was first seen so.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::lock::lock;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tracing::{info, warn};

/// Name of the Lease.
const NAME: &str = "netpold-controller";
/// Others wait this long after the last renewal.
const DURATION: Duration = Duration::from_secs(15);
/// A leader that could not renew for this long leads no longer, well before another may.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Time between two attempts.
const RETRY: Duration = Duration::from_secs(2);
/// An attempt may take so long.
const PATIENCE: Duration = Duration::from_secs(4);

/// Whether this controller is the leader.
#[derive(Clone, Debug)]
pub(super) struct Leading {
    flag: watch::Receiver<bool>,
    until: Arc<Mutex<Option<Instant>>>,
}

impl Leading {
    /// It is now. A process that was stopped in its tracks learns of it here before anything else has run again.
    pub(super) fn is(&self) -> bool {
        let until = *lock(&self.until);
        *self.flag.borrow() && until.is_some_and(|until| Instant::now() < until)
    }

    /// Waits until it is, or no longer is.
    ///
    /// # Errors
    /// The election has ended.
    pub(super) async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.flag.changed().await
    }
}

/// Takes part in the election.
pub(super) struct Election {
    api: Api<Lease>,
    identity: String,
    leading: watch::Sender<bool>,
    /// A leader leads until then.
    until: Arc<Mutex<Option<Instant>>>,
    /// The version of the Lease that was seen last, and since when it is this one.
    seen: Option<(String, Instant)>,
    /// When this controller began the renewal that succeeded last.
    renewed: Option<Instant>,
}

impl Election {
    pub(super) fn new(client: Client, namespace: &str, identity: String) -> (Self, Leading) {
        let (leading, flag) = watch::channel(false);
        let until = Arc::new(Mutex::new(None));
        let leads = Leading { flag, until: Arc::clone(&until) };
        let api = Api::namespaced(client, namespace);
        (Self { api, identity, leading, until, seen: None, renewed: None }, leads)
    }

    /// Takes part until `ends` is true, and lets go of the Lease then.
    pub(super) async fn run(mut self, mut ends: watch::Receiver<bool>) {
        let mut failing = false;
        while !*ends.borrow() {
            let began = Instant::now();
            // An answer that comes after the deadline comes too late.
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
                        warn!(%error, "the Lease {NAME} cannot be read or written");
                    }
                    failing = true;
                }
                Err(_) => {
                    if !failing {
                        warn!("the Lease {NAME} cannot be read or written: no answer");
                    }
                    failing = true;
                }
            }
            self.leads_or_not();
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                changed = ends.changed() => if changed.is_err() { break },
            }
            self.leads_or_not();
        }
        self.release().await;
    }

    fn leads_or_not(&self) {
        let until = self.renewed.map(|renewed| renewed + RENEW_DEADLINE);
        *lock(&self.until) = until;
        let leads = self.renewed.is_some_and(|renewed| renewed.elapsed() < RENEW_DEADLINE);
        self.leading.send_if_modified(|leading| {
            let modified = *leading != leads;
            *leading = leads;
            modified
        });
    }

    /// Renews the Lease, or takes it if it has run out; whether this controller holds it then.
    async fn attempt(&mut self, now: Instant) -> Result<bool, kube::Error> {
        let Some(lease) = self.api.get_opt(NAME).await? else {
            let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.spec(None)) };
            self.api.create(&PostParams::default(), &lease).await?;
            info!(identity = self.identity, "leads: there was no Lease");
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
            info!(identity = self.identity, before = holder, "leads");
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

    /// Nobody has to wait for a Lease that is let go of.
    async fn release(&mut self) {
        let held = self.renewed.take().is_some();
        self.leads_or_not();
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
            Ok(Ok(())) => info!("lets go of the Lease"),
            Ok(Err(error)) => warn!(%error, "the Lease cannot be let go of; another leads in 15 s"),
            Err(_) => warn!("the Lease cannot be let go of: no answer; another leads in 15 s"),
        }
    }
}
