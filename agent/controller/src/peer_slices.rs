//! Writes peer slices, as objects change.
//!
//! Writes carry the `resourceVersion` of the slice as it was known, so a former leader overwrites nothing. A write whose
//! answer is lost may take effect later than it was sent, so such a slice is read again before each heartbeat until the
//! server has given up any request. Writes of other slices go on during reads. The heartbeat carries the `resourceVersion`
//! up to which every change of pods is on the API server. There is none while a change waits for too long, while an answer
//! is missing, or while this replica cannot follow the objects.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client};
use netpold_api::peer_slice::{HEARTBEAT, INDEX, PeerHeartbeat, PeerSlice, PeerSliceSpec};
use netpold_api::source::SourceStatus;
use netpold_core::model::Pod;
use netpold_slices::{SliceNumber, decode, slice_name, slice_number};
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};

use crate::lease::ElectionView;
use crate::peer_doubts::{MANY, PeerDoubts, WriteFailure};
use crate::peer_input::PeerInput;
use crate::peer_packing::PeerPacking;
use crate::peer_reads::{
    FoundSlices, PATIENCE, PeerReads, WrittenByName, WrittenSlice, in_time, list,
};

/// Shortest time between two writes: 200 a second.
const PACE: Duration = Duration::from_millis(5);
/// Time between two looks at what is to be done, while nothing is to be written; and between two looks at the names.
const IDLE: Duration = Duration::from_millis(100);
/// Most writes in flight.
const IN_FLIGHT: usize = 16;
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Time between two heartbeats.
const BEAT: Duration = Duration::from_secs(3);
/// Time for which a change of a pod waits for its write at most, without an end of heartbeats.
const LATE: Duration = Duration::from_secs(20);
/// Time after which a former leader's requests have ended, and all slices are read again.
const FORMER: Duration = Duration::from_secs(70);

/// State of a slice after a write; `None`: it does not exist.
type WriteResult = Result<Option<WrittenSlice>, kube::Error>;

/// Writer of peer slices; only the leader writes.
pub(super) struct PeerSlices {
    api: Api<PeerSlice>,
    leading: ElectionView,
    input: mpsc::UnboundedReceiver<PeerInput>,
    source: watch::Receiver<SourceStatus>,
    packing: PeerPacking,
    in_sync: bool,
    /// Time of the last input.
    heard: Instant,
    /// Slices on the API server; `None`: they were not listed since this replica leads.
    written: Option<WrittenByName>,
    doubts: PeerDoubts,
    /// Writes in flight, by the slice's name.
    writes: FuturesUnordered<BoxFuture<'static, (String, WriteResult)>>,
    /// Names of those slices.
    in_flight: BTreeSet<String>,
    reads: PeerReads,
    /// Time of the last list at the beginning of this replica's lead.
    took_over: Instant,
    /// Time of the last look at the names.
    looked: Option<Instant>,
    /// Time of the last heartbeat.
    beat: Option<Instant>,
    /// Beginning of the heartbeat in flight.
    beating: Option<Instant>,
    is_index_in_flight: bool,
    /// Time before which nothing is requested.
    pause: Instant,
    /// Time at which all slices are read again.
    verify: Option<Instant>,
    is_failing: bool,
}

impl PeerSlices {
    pub(super) fn new(
        client: Client,
        leading: ElectionView,
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
            heard: Instant::now(),
            written: None,
            doubts: PeerDoubts::default(),
            writes: FuturesUnordered::new(),
            in_flight: BTreeSet::new(),
            reads: PeerReads::default(),
            took_over: Instant::now(),
            looked: None,
            beat: None,
            beating: None,
            is_index_in_flight: false,
            pause: Instant::now(),
            verify: None,
            is_failing: false,
        }
    }

    /// Writes until the source has ended.
    pub(super) async fn run(mut self) {
        let mut stepped = tokio::time::Instant::now();
        loop {
            let is_idle = self.packing.is_idle() || self.written.is_none();
            let pause = if is_idle { IDLE } else { PACE };
            tokio::select! {
                input = self.input.recv() => match input {
                    Some(input) => self.apply_input(input),
                    None => return,
                },
                Some((name, result)) = self.writes.next() => self.end_write(&name, result),
                Some(answer) = self.reads.next() => self.end_read(answer),
                () = tokio::time::sleep_until(stepped + pause) => {
                    self.step_or_pause().await;
                    stepped = tokio::time::Instant::now();
                }
            }
        }
    }

    fn apply_input(&mut self, input: PeerInput) {
        input.changes.into_iter().for_each(|change| self.packing.apply_change(change, input.at));
        self.heard = input.at;
        self.in_sync |= input.in_sync;
        self.packing.set_version(input.version);
    }

    async fn step_or_pause(&mut self) {
        if !self.leading.leads() {
            self.written = None;
            self.forget_requests();
            return;
        }
        if !self.in_sync || Instant::now() < self.pause {
            return;
        }
        if let Err(error) = self.step().await {
            self.fail(&error);
        }
    }

    /// Pauses after a failure, unless the server refused one slice alone.
    fn fail(&mut self, error: &kube::Error) {
        if !std::mem::replace(&mut self.is_failing, true) {
            warn!(%error, "cannot write peer slices; will retry");
        }
        if WriteFailure::from_error(error) == WriteFailure::Unknown {
            self.pause = Instant::now() + RETRY;
        }
    }

    /// Does what is due: begins a read and a write, renews the heartbeat, writes the index.
    async fn step(&mut self) -> Result<(), kube::Error> {
        if self.written.is_none() {
            self.take_over().await?;
        }
        let now = Instant::now();
        self.begin_read(now);
        let is_old = |looked| now.saturating_duration_since(looked) >= IDLE;
        if self.looked.is_none_or(is_old) {
            self.looked = Some(now);
            self.packing.look_at_names(now);
            self.write_index();
        }
        if self.writes.len() < IN_FLIGHT {
            let doubts = &self.doubts;
            let may_write = |number| !doubts.is_unread(&slice_name(number));
            if let Some((number, content)) = self.packing.begin_write(now, may_write) {
                self.begin_write(slice_name(number), content);
            }
        }
        self.beat(now);
        Ok(())
    }

    /// Begins to read what has to be read: all slices, or those with a write of unknown outcome that were not read since,
    /// before a heartbeat also those that were.
    fn begin_read(&mut self, now: Instant) {
        if !self.reads.may_begin(now) {
            return;
        }
        let is_whole = self.doubts.are_many() || self.verify.is_some_and(|at| now >= at);
        let names = self.doubts.unread(self.beat_due(now));
        if is_whole || !names.is_empty() {
            let names = (!is_whole && names.len() < MANY).then_some(names);
            self.reads.begin(&self.api, names, &self.in_flight, now);
        }
    }

    fn end_read(&mut self, answer: Result<FoundSlices, kube::Error>) {
        let now = Instant::now();
        let known = self.written.iter().flat_map(|written| written.keys().cloned());
        let ended = match self.reads.end(answer, known, now) {
            Ok(ended) => ended,
            Err(error) => return self.fail(&error),
        };
        for (name, read) in ended.slices {
            self.is_read(&name, read, ended.began, now);
        }
        if ended.is_whole {
            // Slices may be deleted, restored from a backup, or written with a stolen token.
            self.verify = Some(now + FORMER);
        }
    }

    /// Begins a write; none waits for the answer to another.
    fn begin_write(&mut self, name: String, content: Option<PeerSliceSpec>) {
        let request = self.request(&name, content);
        self.reads.begin_write(&name);
        self.in_flight.insert(name.clone());
        self.writes.push(Box::pin(async move { (name, request.await) }));
    }

    fn forget_requests(&mut self) {
        self.writes.clear();
        self.in_flight.clear();
        self.reads.forget();
        (self.beating, self.is_index_in_flight) = (None, false);
    }

    /// Lists the slices that the last leader left, and continues with them.
    async fn take_over(&mut self) -> Result<(), kube::Error> {
        let written = list(&self.api, None).await?;
        let pods = |(name, written): (&String, &WrittenSlice)| {
            // Pods of a slice that cannot be decoded get places anew.
            let pods = decode(&written.spec).unwrap_or_default();
            Some((slice_number(name)?, version(Some(written)), pods))
        };
        let mut found: Vec<(SliceNumber, u64, Vec<Pod>)> =
            written.iter().filter_map(pods).collect();
        info!(slices = found.len(), "continuing with the peer slices on the API server");
        // Of a pod in two slices, readers use the one of the newer slice.
        found.sort_by_key(|(_, version, _)| std::cmp::Reverse(*version));
        let found = found.into_iter().map(|(number, _, pods)| (number, pods)).collect();
        let index = written.get(INDEX).and_then(|written| written.spec.vocabulary.clone());
        let now = Instant::now();
        self.packing.take_over(found, &index.unwrap_or_default(), now);
        self.written = Some(written);
        self.forget_requests();
        self.doubts = PeerDoubts::default();
        (self.verify, self.took_over) = (Some(now + FORMER), now);
        Ok(())
    }

    /// Takes in the state of a slice that was read; one that differs from the known state is written.
    fn is_read(&mut self, name: &str, read: Option<WrittenSlice>, began: Instant, now: Instant) {
        let known = self.written.as_ref().and_then(|written| written.get(name));
        if version(known) != version(read.as_ref())
            && let Some(number) = slice_number(name)
        {
            self.packing.mark_foreign(number, now);
        }
        self.is_written(name, read);
        self.doubts.is_read(name, began);
    }

    fn end_write(&mut self, name: &str, result: WriteResult) {
        self.in_flight.remove(name);
        let is_ok = self.end_request(name, result).map_err(|error| self.fail(&error)).is_ok();
        match name {
            INDEX => self.is_index_in_flight = false,
            HEARTBEAT => {
                let begun = self.beating.take().filter(|_| is_ok);
                self.beat = begun.or(self.beat);
            }
            _ => {
                if let Some(number) = slice_number(name) {
                    self.packing.end_write(number, is_ok, Instant::now());
                }
            }
        }
    }

    /// Takes in the result of a write.
    fn end_request(&mut self, name: &str, result: WriteResult) -> Result<(), kube::Error> {
        match result {
            Ok(state) => {
                self.is_failing = false;
                self.is_written(name, state);
                Ok(())
            }
            Err(error) => {
                self.doubts.failed(name, WriteFailure::from_error(&error), Instant::now());
                Err(error)
            }
        }
    }

    fn is_written(&mut self, name: &str, state: Option<WrittenSlice>) {
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
    ) -> impl Future<Output = WriteResult> + use<> {
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

    fn write_index(&mut self) {
        if self.is_index_in_flight {
            return;
        }
        let index = Some(self.packing.index());
        let known = self.written.as_ref().and_then(|written| written.get(INDEX));
        if known.is_some_and(|known| known.spec.vocabulary == index) {
            return;
        }
        let spec = PeerSliceSpec { vocabulary: index, ..PeerSliceSpec::default() };
        self.is_index_in_flight = true;
        self.begin_write(INDEX.to_owned(), Some(spec));
    }

    /// Returns the time since which slices with a write of unknown outcome have to be read before the next heartbeat, if that
    /// is due.
    fn beat_due(&self, now: Instant) -> Option<Instant> {
        let due = self.beat.map_or(self.took_over, |last| last + BEAT);
        let recent = now.checked_sub(PATIENCE).unwrap_or(due);
        (now >= due && self.beating.is_none()).then_some(due.max(recent))
    }

    fn beat(&mut self, now: Instant) {
        let Some(due) = self.beat_due(now) else { return };
        while let Ok(input) = self.input.try_recv() {
            self.apply_input(input);
        }
        let follows = self.source.borrow().kinds.iter().all(|kind| kind.error.is_none());
        let delay = self.packing.delay(now).max(now.saturating_duration_since(self.heard));
        if !follows || delay >= LATE || !self.doubts.unread(Some(due)).is_empty() {
            return;
        }
        let known = self.written.as_ref().and_then(|written| written.get(HEARTBEAT));
        let known = known.and_then(|known| known.spec.heartbeat.clone()).unwrap_or_default();
        let pods_version = self.packing.written_version();
        // A slice has an unknown state, so nothing is known of its age.
        if pods_version == 0 {
            return;
        }
        let heartbeat = PeerHeartbeat { number: known.number.wrapping_add(1), pods_version };
        let spec = PeerSliceSpec { heartbeat: Some(heartbeat), ..PeerSliceSpec::default() };
        self.beating = Some(now);
        self.begin_write(HEARTBEAT.to_owned(), Some(spec));
    }
}

/// Returns the `resourceVersion` as a number; 0 without a slice.
fn version(written: Option<&WrittenSlice>) -> u64 {
    written.and_then(|written| written.version.parse().ok()).unwrap_or_default()
}

/// # Errors
/// This replica leads no more.
fn may_write(leading: &ElectionView) -> Result<(), kube::Error> {
    let ended = || kube::Error::Service("this replica leads no more".into());
    leading.leads().then_some(()).ok_or_else(ended)
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
) -> Result<WrittenSlice, kube::Error> {
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
    Ok(WrittenSlice { version, spec: slice.spec })
}

#[cfg(test)]
mod tests;
