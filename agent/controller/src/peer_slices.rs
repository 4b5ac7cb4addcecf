//! Writes peer slices, in cycles: each writes the slices that changed before it began.
//!
//! Writes carry the `resourceVersion` of the slice as it was known, so a former leader overwrites nothing. After a cycle
//! without failures every change of pods up to its version is on the API server; the heartbeat carries that version.
//! Without progress, or while this replica cannot follow the objects, there is no heartbeat.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::{Api, Client};
use netpold_api::peer_slice::{
    HEARTBEAT, INDEX, PeerHeartbeat, PeerSlice, PeerSliceSpec, SLICE_PREFIX,
};
use netpold_api::source::SourceStatus;
use netpold_slices::{SliceNumber, decode};
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tracing::{debug, info, warn};

use crate::lease::Leading;
use crate::peer_input::PeerInput;
use crate::peer_packing::PeerPacking;

/// Time between the beginnings of two cycles: changes are gathered meanwhile.
const GATHER: Duration = Duration::from_millis(300);
/// Shortest time between two writes of a cycle: 100 a second.
const PACE: Duration = Duration::from_millis(10);
/// Most writes in flight.
const IN_FLIGHT: usize = 16;
/// Timeout of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Time between two heartbeats.
const BEAT: Duration = Duration::from_secs(3);
/// Time without progress after which heartbeats stop.
const STUCK: Duration = Duration::from_secs(10);
/// Slices per page of a list.
const PAGE: u32 = 500;

/// A slice on the API server.
#[derive(Clone, Debug)]
struct Written {
    version: String,
    spec: PeerSliceSpec,
}

/// Writer of peer slices; only the leader writes.
pub(super) struct PeerSlices {
    api: Api<PeerSlice>,
    leading: Leading,
    input: mpsc::UnboundedReceiver<PeerInput>,
    source: watch::Receiver<SourceStatus>,
    packing: PeerPacking,
    in_sync: bool,
    /// Version of the input so far, and of the last cycle without failures.
    versions: [u64; 2],
    /// Slices on the API server; `None`: they were not listed since this replica leads.
    written: Option<BTreeMap<String, Written>>,
    progress: Instant,
    /// Time of the last heartbeat.
    beat: Option<Instant>,
    is_failing: bool,
}

impl PeerSlices {
    pub(super) fn new(
        client: Client,
        leading: Leading,
        input: mpsc::UnboundedReceiver<PeerInput>,
        source: watch::Receiver<SourceStatus>,
    ) -> Self {
        Self {
            api: Api::all(client),
            leading,
            input,
            source,
            packing: PeerPacking::default(),
            in_sync: false,
            versions: [0; 2],
            written: None,
            progress: Instant::now(),
            beat: None,
            is_failing: false,
        }
    }

    /// Writes until the source has ended.
    pub(super) async fn run(mut self) {
        let mut gather = tokio::time::interval(GATHER);
        gather.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            gather.tick().await;
            loop {
                match self.input.try_recv() {
                    Ok(input) => self.take(input),
                    Err(mpsc::error::TryRecvError::Empty) => break,
                    Err(mpsc::error::TryRecvError::Disconnected) => return,
                }
            }
            if !self.leading.is() {
                self.written = None;
                continue;
            }
            if !self.in_sync {
                continue;
            }
            match self.cycle().await {
                Ok(()) => self.is_failing = false,
                Err(error) => {
                    if !self.is_failing {
                        warn!(%error, "cannot write peer slices; will retry");
                    }
                    self.is_failing = true;
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    fn take(&mut self, input: PeerInput) {
        input.changes.into_iter().for_each(|change| self.packing.take(change));
        self.in_sync |= input.in_sync;
        self.versions[0] = self.versions[0].max(input.version);
    }

    async fn cycle(&mut self) -> Result<(), kube::Error> {
        if self.written.is_none() {
            self.take_over().await?;
        }
        let version = self.versions[0];
        self.packing.look_at_names(Instant::now());
        let (failure, wrote) = self.write_due().await;
        if failure.is_none() || wrote {
            self.progress = Instant::now();
        }
        if let Some(error) = failure {
            return Err(error);
        }
        self.versions[1] = version;
        self.write_index().await?;
        self.beat().await
    }

    /// Lists the slices that the last leader left, and continues with them.
    async fn take_over(&mut self) -> Result<(), kube::Error> {
        let mut written = BTreeMap::new();
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = in_time(self.api.list(&params)).await?;
            for slice in page.items {
                let version = slice.metadata.resource_version.unwrap_or_default();
                let name = slice.metadata.name.unwrap_or_default();
                written.insert(name, Written { version, spec: slice.spec });
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                break;
            }
        }
        let pods = |(name, written): (&String, &Written)| {
            // Pods of a slice that cannot be decoded get places anew.
            Some((number(name)?, decode(&written.spec).unwrap_or_default()))
        };
        let index = written.get(INDEX).and_then(|written| written.spec.vocabulary.clone());
        let found: BTreeMap<SliceNumber, _> = written.iter().filter_map(pods).collect();
        info!(slices = found.len(), "continuing with the peer slices on the API server");
        self.packing.take_over(found, index.as_ref(), Instant::now());
        self.written = Some(written);
        Ok(())
    }

    /// Writes the slices that changed. Returns the first failure, and whether any write succeeded.
    async fn write_due(&mut self) -> (Option<kube::Error>, bool) {
        let due = self.packing.take_due();
        let mut pace = tokio::time::interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let pace = std::sync::Arc::new(tokio::sync::Mutex::new(pace));
        let requests = due.into_iter().map(|number| {
            let name = format!("{SLICE_PREFIX}{number}");
            let request = self.request(&name, self.packing.content(number));
            let pace = std::sync::Arc::clone(&pace);
            async move {
                pace.lock().await.tick().await;
                (number, request.await)
            }
        });
        let requests: Vec<_> = requests.collect();
        let mut answers = futures::stream::iter(requests).buffer_unordered(IN_FLIGHT);
        let (mut results, mut failure, mut wrote) = (Vec::new(), None, false);
        while let Some(result) = answers.next().await {
            results.push(result);
        }
        drop(answers);
        for (number, result) in results {
            match result {
                Ok(state) => {
                    wrote = true;
                    self.is_written(&format!("{SLICE_PREFIX}{number}"), state);
                }
                Err(error) => {
                    self.packing.put_back(number);
                    // Another version than the known one: somebody else wrote, so everything is listed again.
                    if matches!(&error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
                    {
                        self.written = None;
                    }
                    failure.get_or_insert(error);
                }
            }
        }
        (failure, wrote)
    }

    fn is_written(&mut self, name: &str, state: Option<Written>) {
        let Some(written) = &mut self.written else { return };
        match state {
            Some(state) => drop(written.insert(name.to_owned(), state)),
            None => drop(written.remove(name)),
        }
    }

    /// Returns the request that gives a slice its content; its output is the state on the API server.
    fn request(
        &self,
        name: &str,
        content: Option<PeerSliceSpec>,
    ) -> impl Future<Output = Result<Option<Written>, kube::Error>> + use<> {
        let (api, leading) = (self.api.clone(), self.leading.clone());
        let known = self.written.as_ref().and_then(|written| written.get(name)).cloned();
        let name = name.to_owned();
        async move {
            let Some(spec) = content else {
                if let Some(known) = known {
                    may_write(&leading)?;
                    delete(&api, &name, known.version).await?;
                }
                return Ok(None);
            };
            if let Some(known) = known.as_ref().filter(|known| known.spec == spec) {
                return Ok(Some(known.clone()));
            }
            may_write(&leading)?;
            let version = known.map(|known| known.version);
            debug!(name, "writing peer slice");
            write(&api, &name, version, spec).await.map(Some)
        }
    }

    async fn write_index(&mut self) -> Result<(), kube::Error> {
        let Some(index) = self.packing.index() else { return Ok(()) };
        let spec = PeerSliceSpec { vocabulary: Some(index.clone()), ..PeerSliceSpec::default() };
        let state = self.request(INDEX, Some(spec)).await;
        self.note(INDEX, state)?;
        self.packing.index_is_written(&index);
        Ok(())
    }

    async fn beat(&mut self) -> Result<(), kube::Error> {
        let now = Instant::now();
        let follows = self.source.borrow().kinds.iter().all(|kind| kind.error.is_none());
        let is_stuck = now.duration_since(self.progress) >= STUCK;
        let known = self.written.as_ref().and_then(|written| written.get(HEARTBEAT));
        let known = known.and_then(|known| known.spec.heartbeat.clone()).unwrap_or_default();
        let is_due = self.beat.is_none_or(|last| now.duration_since(last) >= BEAT);
        if !is_due || is_stuck || !follows {
            return Ok(());
        }
        let heartbeat =
            PeerHeartbeat { number: known.number.wrapping_add(1), pods_version: self.versions[1] };
        let spec = PeerSliceSpec { heartbeat: Some(heartbeat), ..PeerSliceSpec::default() };
        let state = self.request(HEARTBEAT, Some(spec)).await;
        self.note(HEARTBEAT, state)?;
        self.beat = Some(now);
        Ok(())
    }

    fn note(
        &mut self,
        name: &str,
        state: Result<Option<Written>, kube::Error>,
    ) -> Result<(), kube::Error> {
        match state {
            Ok(state) => self.is_written(name, state),
            Err(error) => {
                self.written = None;
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Returns the number in the name of a slice with pods.
fn number(name: &str) -> Option<SliceNumber> {
    name.strip_prefix(SLICE_PREFIX)?.parse().ok()
}

/// # Errors
/// This replica leads no more.
fn may_write(leading: &Leading) -> Result<(), kube::Error> {
    let ended = || kube::Error::Service("this replica leads no more".into());
    leading.is().then_some(()).ok_or_else(ended)
}

async fn delete(api: &Api<PeerSlice>, name: &str, version: String) -> Result<(), kube::Error> {
    let preconditions = Preconditions { resource_version: Some(version), uid: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    in_time(api.delete(name, &params)).await.map(|_| ())
}

async fn write(
    api: &Api<PeerSlice>,
    name: &str,
    version: Option<String>,
    spec: PeerSliceSpec,
) -> Result<Written, kube::Error> {
    let exists = version.is_some();
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        resource_version: version,
        // An empty entry: the server records no owners of fields, 0.3 kB that nobody reads.
        managed_fields: Some(vec![ManagedFieldsEntry::default()]),
        ..ObjectMeta::default()
    };
    let slice = PeerSlice { metadata, spec };
    let params = PostParams::default();
    let slice = match exists {
        true => in_time(api.replace(name, &params, &slice)).await?,
        false => in_time(api.create(&params, &slice)).await?,
    };
    let version = slice.metadata.resource_version.unwrap_or_default();
    Ok(Written { version, spec: slice.spec })
}

/// # Errors
/// The request failed, or was not answered in [`PATIENCE`].
async fn in_time<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    let answer = tokio::time::timeout(PATIENCE, request).await;
    answer.unwrap_or_else(|_| Err(kube::Error::Service("no answer in time".into())))
}
