//! One kind: listed once, then watched, and listed again if the watch cannot continue.
//!
//! Connections and requests are kube's. The loop around them is netpold's own, because it records when a watch is alive
//! (bookmarks count), and repeats the request of a silent watch. The decoding of answers (`answer.rs`) is its own too:
//! kube decodes whole objects, and an object that kube cannot decode ends its watch.
//!
//! Lists of whole kinds are paged and never streamed (`sendInitialEvents`): a server compresses pages, but not watches, and a
//! compressed list has a tenth of the bytes. A page of 500 objects bounds the memory of server and agent alike.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::{ListParams, VersionMatch, WatchParams};
use kube::core::Request;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use netpold_api::source::KindStatus;
use netpold_core::model::Change;
use tokio::sync::{mpsc, watch};

use super::answer::{Events, ResponseStream, WatchEvent};
use super::availability::{Availability, FailureMeaning};
use super::connection::Connection;
use super::failure::Failure;
use super::hub::KindUpdate;
use super::kind::{Absence, WatchedKind, kind_name};
use super::list;
use super::outage::{Following, OutageMember};
use super::store::Store;
use crate::convert::Read;

/// Longest pause after a failure.
const LONGEST: Duration = Duration::from_mins(5);
/// Duration of a watch, extended by a random part of the same time: the agents of all nodes must not return at the same
/// moment. kube accepts less than 295 s.
const WATCH_SECONDS: u32 = 145;
/// Shortest duration of a real watch; an immediate repetition of a shorter one would be a hot loop.
const SHORT: Duration = Duration::from_secs(1);

/// Progress of following a kind.
enum FollowState {
    /// The next request is a list.
    List,
    /// A list is complete; the watch continues from this version.
    Watch(String),
}

/// Field selector of a part of a kind's objects.
pub(super) struct FieldSelector {
    /// The selector, such as `metadata.name=n1`.
    pub(super) fields: String,
    /// Whether the API server's cache has an index for the selector.
    pub(super) is_indexed: bool,
    /// Whether all objects are needed; then they are listed, and followed from there on.
    pub(super) widened: watch::Receiver<bool>,
}

impl FieldSelector {
    fn is_widened(&self) -> bool {
        *self.widened.borrow()
    }
}

/// Waits until all objects are needed.
async fn until_widened(widened: Option<watch::Receiver<bool>>) {
    let is_widened = match widened {
        Some(mut widened) => widened.wait_for(|widened| *widened).await.is_ok(),
        None => false,
    };
    if !is_widened {
        std::future::pending::<()>().await;
    }
}

/// Follower of one kind.
pub(super) struct Follower<K> {
    connection: Arc<Connection>,
    outage: OutageMember,
    updates: mpsc::Sender<KindUpdate>,
    number: usize,
    /// Narrower field selector, until all objects are needed.
    narrow: Option<FieldSelector>,
    /// Whether the last complete list had no narrower selector.
    is_whole: bool,
    store: Store<K>,
    state: FollowState,
    /// `resourceVersion` of the last list or event; empty before the first.
    version: String,
    /// Whether the last list, from the API server's cache, failed.
    is_cache_refused: bool,
    backoff: DefaultBackoff,
    availability: Availability,
    /// Silence after which the last watch was given up.
    quiet: Option<Duration>,
}

impl<K: WatchedKind> Follower<K> {
    /// Creates a follower; `number` is the kind's index among all followed kinds.
    pub(super) fn new(
        connection: Arc<Connection>,
        outage: OutageMember,
        updates: mpsc::Sender<KindUpdate>,
        number: usize,
        narrow: Option<FieldSelector>,
    ) -> Self {
        Self {
            connection,
            outage,
            updates,
            number,
            narrow,
            is_whole: false,
            store: Store::new(),
            state: FollowState::List,
            version: String::new(),
            is_cache_refused: false,
            backoff: DefaultBackoff::default(),
            availability: Availability::new(kind_name::<K>(), K::ABSENCE),
            quiet: None,
        }
    }

    /// Returns the status before any answer.
    pub(super) fn status(&self) -> KindStatus {
        self.availability.status.clone()
    }

    /// Follows until the receiver of updates is closed.
    pub(super) async fn run(mut self) {
        while !self.updates.is_closed() {
            self.widen();
            let (verb, outcome) = match &self.state {
                FollowState::List => ("list", self.list().await),
                FollowState::Watch(version) => ("watch", self.watch(version.clone()).await),
            };
            if let Err(failure) = outcome {
                let failure = self.confirmed(failure).await;
                self.failed(verb, &failure).await;
            }
        }
    }

    /// Requests all objects from now on if they are needed, beginning with a list.
    fn widen(&mut self) {
        if self.is_widened() {
            self.narrow = None;
            self.state = FollowState::List;
        }
    }

    fn is_widened(&self) -> bool {
        self.narrow.as_ref().is_some_and(FieldSelector::is_widened)
    }

    fn fields(&self) -> Option<&str> {
        self.narrow.as_ref().map_or(K::FIELDS, |narrow| Some(&narrow.fields))
    }

    /// Lists all objects in pages; the list is consistent, since later pages have the first one's version.
    async fn list(&mut self) -> Result<(), Failure> {
        let mut params = self.list_params().await;
        let is_cached = params.resource_version.is_some();
        self.begin_list();
        self.is_cache_refused = is_cached;
        loop {
            let (mut changes, outcome) = self.page(&params).await;
            let at = Instant::now();
            let metadata = match outcome {
                Ok(metadata) => metadata,
                Err(failure) => {
                    // The store already has these objects, so the next list returns no changes for them.
                    self.send_changes(changes, at).await;
                    return Err(failure);
                }
            };
            self.heard();
            if !is_cached {
                self.outage.set_answered();
            }
            params.continue_token = metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_some() {
                self.send_changes(changes, at).await;
                continue;
            }
            let version = metadata.resource_version.unwrap_or_default();
            changes.extend(self.complete(version));
            self.is_cache_refused = false;
            self.send_changes(changes, at).await;
            return Ok(());
        }
    }

    /// Returns the parameters of the next list. For a page of a narrower list, API servers before 1.34 read all objects of
    /// the kind in etcd, and those before 1.31 for any list without a version too. The list is therefore not paged, and
    /// servers before 1.31 answer it from their cache: like a watch, the answer may be behind etcd, but not behind what
    /// this follower knows already.
    async fn list_params(&self) -> ListParams {
        let params = list::params::<K>(self.fields());
        if !self.narrow.as_ref().is_some_and(|narrow| narrow.is_indexed) {
            return params;
        }
        let whole = ListParams { limit: None, ..params };
        if self.is_cache_refused || list::is_cache_consistent(&self.connection).await {
            return whole;
        }
        match self.version.as_str() {
            "" => whole.match_any(),
            version => whole.at(version).matching(VersionMatch::NotOlderThan),
        }
    }

    /// Reads one page; returns its changes, also those before a failure, and its metadata.
    async fn page(&mut self, params: &ListParams) -> (Vec<Change>, Result<ListMeta, Failure>) {
        let (client, timeout) = (self.connection.client(), self.connection.timeout());
        let mut changes = Vec::new();
        let take = |read: &Read| changes.extend(self.store.listed(read));
        let metadata = list::page::<K>(&client, None, params, timeout, take).await;
        (changes, metadata)
    }

    /// Watches changes from a version on, until the server ends the watch, as it does every few minutes.
    async fn watch(&mut self, version: String) -> Result<(), Failure> {
        let began = Instant::now();
        let request = Request::new(K::url_path(&(), None)).watch(&self.watch_params(), &version);
        let request =
            request.map_err(|error| Failure::from_error(kube::Error::BuildRequest(error)))?;
        let (quiet, patience) = (self.quiet.take(), self.connection.timeout());
        let answer = ResponseStream::to(&self.connection.client(), request, patience).await;
        let answer = answer.map_err(|failure| match quiet {
            Some(quiet) if failure.is_no_answer() => Failure::Silent(quiet),
            _ => failure,
        })?;
        self.heard();
        self.send_changes(Vec::new(), began).await;
        self.follow(answer).await?;
        if began.elapsed() < SHORT && !self.is_widened() {
            tokio::time::sleep(SHORT).await;
        }
        Ok(())
    }

    /// Takes in events after a list, until the watch ends or is silent for too long.
    ///
    /// Silence alone is not a fault: objects of a kind may not change for hours, and a server sends no bookmarks if its
    /// etcd reports no progress. A connection to a dead peer, or one that a proxy has forgotten, looks the same, and
    /// TCP keepalive would detect only the former. The watch is therefore requested again from its last version, over
    /// HTTP/1.1 on another connection: a live server answers at once, and only a server that does not is reported.
    async fn follow(&mut self, mut answer: ResponseStream) -> Result<(), Failure> {
        let mut events = Events::default();
        loop {
            match self.apply_events(&mut answer, &mut events).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(Failure::Silent(time)) => {
                    let kind = &self.availability.status.kind;
                    tracing::debug!(kind, ?time, "restarting watch: no event before the timeout");
                    self.quiet = Some(time);
                    return Ok(());
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Takes in the next events; returns whether there may be more.
    async fn apply_events(
        &mut self,
        answer: &mut ResponseStream,
        events: &mut Events,
    ) -> Result<bool, Failure> {
        let widened = until_widened(self.narrow.as_ref().map(|narrow| narrow.widened.clone()));
        let (mut at, mut changes, mut outcome) = (None, Vec::new(), Ok(()));
        let more = answer.parts(|part| {
            at.get_or_insert_with(Instant::now);
            if let Some(event) = events.part(K::KIND, part)
                && outcome.is_ok()
            {
                outcome = self.event(event).map(|change| changes.extend(change));
            }
        });
        let more = tokio::select! {
            biased;
            more = more => more,
            () = widened => Ok(false),
        };
        let outcome = outcome.and(more);
        if let Ok(true) = outcome {
            self.heard();
        }
        // Changes before a failure are sent too: the watch continues after them, and the next list sees them unchanged.
        self.send_changes(changes, at.unwrap_or_else(Instant::now)).await;
        outcome
    }

    /// Takes in an event, and its version for the next watch.
    fn event(&mut self, event: WatchEvent) -> Result<Option<Change>, Failure> {
        let (change, version) = match event {
            WatchEvent::Object(read) => (self.store.update(&read), read.identity.version),
            WatchEvent::Gone(identity) => (self.store.remove(&identity), identity.version),
            WatchEvent::Bookmark(version) => (None, Some(version)),
            WatchEvent::Failed(failure) => return Err(failure),
        };
        if let Some(version) = version.filter(|version| !version.is_empty()) {
            self.version.clone_from(&version);
            self.state = FollowState::Watch(version);
        }
        Ok(change)
    }

    fn watch_params(&self) -> WatchParams {
        let random = RandomState::new().hash_one(self.number) % u64::from(WATCH_SECONDS);
        WatchParams {
            field_selector: self.fields().map(str::to_owned),
            label_selector: K::LABELS.map(str::to_owned),
            timeout: Some(WATCH_SECONDS + u32::try_from(random).unwrap_or(0)),
            bookmarks: true,
            send_initial_events: false,
        }
    }

    fn begin_list(&mut self) {
        self.store.begin();
        self.availability.status.lists += 1;
    }

    /// Completes the list of that version; returns the changes that were held, including removals.
    fn complete(&mut self, version: String) -> Vec<Change> {
        self.version.clone_from(&version);
        self.state = FollowState::Watch(version);
        self.is_whole = self.narrow.is_none();
        self.availability.status.in_sync = true;
        self.store.complete()
    }

    /// Records a good answer of the server.
    fn heard(&mut self) {
        self.availability.heard();
        self.backoff.reset();
        self.outage.set(Following::Works);
    }

    /// Confirms a 404 for an API group or version without any kind, which the server does not identify as its own: the
    /// discovery documents show whether the server has the group. They are read only if the result matters, because
    /// 5,000 agents ask for absent kinds.
    async fn confirmed(&self, failure: Failure) -> Failure {
        if K::ABSENCE != Absence::Usual || !matches!(failure, Failure::NoPath(_)) {
            return failure;
        }
        if self.availability.is_absent() {
            return Failure::NotServed;
        }
        let served = list::is_served::<K>(&self.connection).await;
        if matches!(served, Ok(Ok(false))) { Failure::NotServed } else { failure }
    }

    async fn failed(&mut self, verb: &str, failure: &Failure) {
        let what = format!("{verb} {}", self.availability.status.kind);
        let text = failure.text(&what, self.connection.server());
        let changes = match self.availability.failed(failure, text, self.store.len()) {
            FailureMeaning::Nothing => Vec::new(),
            FailureMeaning::KnownIsAll => {
                self.store.count_as_complete();
                Vec::new()
            }
            FailureMeaning::AllGone => self.store.remove_all(),
        };
        if failure.calls_for_list() {
            self.state = FollowState::List;
        }
        self.send_changes(changes, Instant::now()).await;
        let absent = K::ABSENCE != Absence::Wrong && matches!(failure, Failure::NotServed);
        self.outage.set(if absent { Following::Rests } else { Following::Fails });
        let pause =
            if absent { self.availability.pause() } else { self.backoff.next().unwrap_or(LONGEST) };
        tokio::select! {
            () = self.outage.pause(pause) => {}
            () = self.updates.closed() => {}
        }
        if failure.calls_for_renewal() {
            self.connection.renew().await;
        }
    }

    async fn send_changes(&mut self, changes: Vec<Change>, at: Instant) {
        let status = &mut self.availability.status;
        status.objects = self.store.len();
        status.undecoded = self.store.undecoded();
        let update = KindUpdate {
            kind: self.number,
            changes,
            at,
            status: status.clone(),
            is_settled: self.store.is_settled(),
            is_whole: self.is_whole,
            problems: self.store.problems(),
            version: match &self.state {
                FollowState::Watch(version) => version.parse().unwrap_or_default(),
                FollowState::List => 0,
            },
        };
        // If the receiver is closed, the loop ends as well.
        let _ = self.updates.send(update).await;
    }
}
