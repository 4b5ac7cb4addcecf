//! One kind: listed once, then followed, and listed again where following is not possible.
//!
//! Requests, pages, streams and decoding are kube's. The loop around them is ours, because what it
//! does is what this source is about: it tells when a watch is alive (bookmarks count), takes a
//! server that has no streaming lists for what it is, and gives a watch up that has gone silent.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::StreamExt;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::core::Resource;
use kube::core::watch::Bookmark;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use netpold_core::model::Change;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::connection::Connection;
use super::failure::Failure;
use super::hub::Update;
use super::kind::Kind;
use super::store::Store;
use crate::source::KindStatus;

/// Objects a page, as kubectl and client-go ask for.
const PAGE: u32 = 500;
/// Events that are taken in at once where they are there already.
const AT_ONCE: usize = 512;
/// How long a server may take to begin a streaming list and between its objects.
const STREAM_PAUSE: Duration = Duration::from_secs(30);
/// A kind that the server does not serve is asked for again this often.
const NOT_SERVED: Duration = Duration::from_secs(300);
/// A watch ends by itself after this long, and a random part of as much again: an agent on every
/// node must not return at the same moment. kube accepts less than 295 s.
const WATCH_SECONDS: u32 = 145;
/// A watch that ends sooner than this was no watch; asking again at once would be a hot loop.
const SHORT: Duration = Duration::from_secs(1);
/// Bookmark that ends a streaming list.
const LIST_ENDS: &str = "k8s.io/initial-events-end";

/// How far following a kind has come.
enum State {
    /// Everything is to be listed.
    List,
    /// A list was taken in; the watch goes on from this version.
    Watch(String),
}

/// Follows one kind.
pub(super) struct Follower<K> {
    connection: Arc<Connection>,
    updates: mpsc::Sender<Update>,
    number: usize,
    /// Further narrowing by fields.
    fields: Option<String>,
    store: Store<K>,
    state: State,
    /// The server may have streaming lists.
    streaming: bool,
    backoff: DefaultBackoff,
    status: KindStatus,
}

impl<K: Kind> Follower<K> {
    /// `number` is the kind's among all that are followed.
    pub(super) fn new(
        connection: Arc<Connection>,
        updates: mpsc::Sender<Update>,
        number: usize,
        fields: Option<String>,
    ) -> Self {
        Self {
            connection,
            updates,
            number,
            fields: fields.or_else(|| K::FIELDS.map(str::to_owned)),
            store: Store::new(),
            state: State::List,
            streaming: true,
            backoff: DefaultBackoff::default(),
            status: KindStatus { kind: kind_name::<K>(), ..KindStatus::default() },
        }
    }

    /// The status before anything is known.
    pub(super) fn status(&self) -> KindStatus {
        self.status.clone()
    }

    /// Follows until nobody listens any more.
    pub(super) async fn run(mut self) {
        while !self.updates.is_closed() {
            let (verb, outcome) = match &self.state {
                State::List if self.streaming => ("list", self.streamed_list().await),
                State::List => ("list", self.paged_list().await),
                State::Watch(version) => ("watch", self.watch(version.clone()).await),
            };
            if let Err(failure) = outcome {
                self.failed(verb, &failure).await;
            }
        }
    }

    /// All objects in pages; consistent, since later pages are of the first one's version.
    async fn paged_list(&mut self) -> Result<(), Failure> {
        let api = Api::<K>::all(self.connection.client());
        self.begin_list();
        let mut params = ListParams {
            field_selector: self.fields.clone(),
            label_selector: K::LABELS.map(str::to_owned),
            limit: Some(PAGE),
            ..ListParams::default()
        };
        loop {
            let page = api.list(&params).await.map_err(Failure::of)?;
            let at = Instant::now();
            let changes: Vec<Change> =
                page.items.iter().filter_map(|object| self.store.listed(object)).collect();
            self.heard();
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_some() {
                self.say(changes, at).await;
                continue;
            }
            let version = page.metadata.resource_version.unwrap_or_default();
            self.end_list(version, changes, at).await;
            return Ok(());
        }
    }

    /// All objects as the first events of a watch, which then goes on. The server holds one object
    /// at a time in memory, and so do we.
    async fn streamed_list(&mut self) -> Result<(), Failure> {
        let api = Api::<K>::all(self.connection.client());
        self.begin_list();
        let params = WatchParams { send_initial_events: true, ..self.watch_params() };
        // No version: as recent as a list, not as old as some cache may be.
        let stream = match timeout(STREAM_PAUSE, api.watch(&params, "")).await {
            Ok(stream) => stream.map_err(Failure::of),
            Err(_) => Err(Failure::NotUnderstood("no answer to a streaming list".into())),
        };
        let stream = match stream {
            Ok(stream) => stream,
            Err(Failure::NotUnderstood(reason)) => return self.without_streaming(&reason),
            // Whether the kind is served is for a plain list to say.
            Err(Failure::NotServed) => return self.without_streaming("not found"),
            Err(failure) => return Err(failure),
        };
        let mut events = stream.boxed().ready_chunks(AT_ONCE);
        loop {
            let Ok(chunk) = timeout(STREAM_PAUSE, events.next()).await else {
                return self.without_streaming("the streaming list does not end");
            };
            let Some(chunk) = chunk else {
                return Err(Failure::Refused("the list broke off".into()));
            };
            let (at, mut changes, mut version) = (Instant::now(), Vec::new(), None);
            for event in chunk {
                match event.map_err(Failure::of)? {
                    WatchEvent::Bookmark(mark) if ends_list(&mark) => {
                        version = Some(mark.metadata.resource_version);
                        self.end_list(
                            version.clone().unwrap_or_default(),
                            std::mem::take(&mut changes),
                            at,
                        )
                        .await;
                    }
                    event if version.is_some() => changes.extend(self.event(event)?),
                    WatchEvent::Added(o) | WatchEvent::Modified(o) => {
                        changes.extend(self.store.listed(&o))
                    }
                    WatchEvent::Deleted(o) => changes.extend(self.store.remove(&o)),
                    WatchEvent::Bookmark(_) => {}
                    WatchEvent::Error(status) => return Err(Failure::of_status(&status)),
                }
            }
            self.heard();
            self.say(changes, at).await;
            if version.is_some() {
                return self.follow(events).await;
            }
        }
    }

    fn without_streaming(&mut self, reason: &str) -> Result<(), Failure> {
        tracing::debug!(kind = self.status.kind, reason, "no streaming lists here: paged ones");
        self.streaming = false;
        Ok(())
    }

    /// Changes from a version on, until the server ends the watch, as it does every few minutes.
    async fn watch(&mut self, version: String) -> Result<(), Failure> {
        let api = Api::<K>::all(self.connection.client());
        let began = Instant::now();
        let patience = self.connection.timeout();
        let stream = timeout(patience, api.watch(&self.watch_params(), &version))
            .await
            .map_err(|_| Failure::Silent(patience))?
            .map_err(Failure::of)?;
        self.heard();
        self.say(Vec::new(), began).await;
        self.follow(stream.boxed().ready_chunks(AT_ONCE)).await?;
        if began.elapsed() < SHORT {
            tokio::time::sleep(SHORT).await;
        }
        Ok(())
    }

    async fn follow<S>(&mut self, mut events: S) -> Result<(), Failure>
    where
        S: StreamExt<Item = Vec<kube::Result<WatchEvent<K>>>> + Unpin,
    {
        let patience = self.connection.timeout();
        loop {
            let chunk = timeout(patience, events.next()).await;
            let Some(chunk) = chunk.map_err(|_| Failure::Silent(patience))? else { return Ok(()) };
            let (at, mut changes, mut outcome) = (Instant::now(), Vec::new(), Ok(()));
            for event in chunk {
                match event.map_err(Failure::of).and_then(|event| self.event(event)) {
                    Ok(change) => changes.extend(change),
                    Err(failure) => {
                        outcome = Err(failure);
                        break;
                    }
                }
            }
            if outcome.is_ok() {
                self.heard();
            }
            // What came before a failure counts: the watch goes on after it.
            self.say(changes, at).await;
            outcome?;
        }
    }

    /// Takes an event in, and its version as the one to go on from.
    fn event(&mut self, event: WatchEvent<K>) -> Result<Option<Change>, Failure> {
        let (change, version) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                (self.store.update(&object), object.meta().resource_version.clone())
            }
            WatchEvent::Deleted(object) => {
                (self.store.remove(&object), object.meta().resource_version.clone())
            }
            WatchEvent::Bookmark(mark) => (None, Some(mark.metadata.resource_version)),
            WatchEvent::Error(status) => return Err(Failure::of_status(&status)),
        };
        if let Some(version) = version.filter(|version| !version.is_empty()) {
            self.state = State::Watch(version);
        }
        Ok(change)
    }

    fn watch_params(&self) -> WatchParams {
        let random = RandomState::new().hash_one(self.number) % u64::from(WATCH_SECONDS);
        WatchParams {
            field_selector: self.fields.clone(),
            label_selector: K::LABELS.map(str::to_owned),
            timeout: Some(WATCH_SECONDS + u32::try_from(random).unwrap_or(0)),
            bookmarks: true,
            send_initial_events: false,
        }
    }

    fn begin_list(&mut self) {
        self.store.begin();
        self.status.lists += 1;
    }

    async fn end_list(&mut self, version: String, mut changes: Vec<Change>, at: Instant) {
        changes.extend(self.store.complete());
        self.state = State::Watch(version);
        self.status.in_sync = true;
        self.say(changes, at).await;
    }

    /// The server answers as it should.
    fn heard(&mut self) {
        self.status.last_event = unix_seconds();
        self.status.served = true;
        self.status.error = None;
        self.backoff.reset();
    }

    async fn failed(&mut self, verb: &str, failure: &Failure) {
        self.status.restarts += 1;
        let text = failure.text(&format!("{verb} {}", self.status.kind), self.connection.server());
        let absent = K::OPTIONAL && matches!(failure, Failure::NotServed);
        if absent {
            self.store.absent();
            self.status.served = false;
            self.status.in_sync = true;
            self.status.error = Some(format!("{text}; it counts as empty"));
        } else {
            self.status.error = Some(text);
        }
        if failure.calls_for_list() {
            self.state = State::List;
        }
        self.say(Vec::new(), Instant::now()).await;
        let pause = if absent { NOT_SERVED } else { self.backoff.next().unwrap_or(NOT_SERVED) };
        let closed = self.updates.clone();
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = closed.closed() => {}
        }
        if failure.calls_for_renewal() {
            self.connection.renew().await;
        }
    }

    async fn say(&mut self, changes: Vec<Change>, at: Instant) {
        self.status.objects = self.store.len();
        let update = Update {
            kind: self.number,
            changes,
            at,
            status: self.status.clone(),
            synced: self.store.synced(),
            problems: self.store.problems(),
        };
        // Nobody listens any more: the loop sees that too.
        let _ = self.updates.send(update).await;
    }
}

fn ends_list(mark: &Bookmark) -> bool {
    mark.metadata.annotations.contains_key(LIST_ENDS)
}

/// `networkpolicies.networking.k8s.io`
fn kind_name<K: Resource<DynamicType = ()>>() -> String {
    match K::group(&()) {
        group if group.is_empty() => K::plural(&()).into_owned(),
        group => format!("{}.{group}", K::plural(&())),
    }
}

fn unix_seconds() -> Option<u64> {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok().map(|time| time.as_secs())
}
