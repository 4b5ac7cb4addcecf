//! One kind: listed once, then followed, and listed again where following is not possible.
//!
//! Connections and requests are kube's. The loop around them is ours, because what it does is what
//! this source is about: it tells when a watch is alive (bookmarks count), takes a server that has no
//! streaming lists for what it is, and asks anew where a watch has gone silent. So is what comes in
//! (`answer.rs`): kube decodes whole objects, and takes one that it cannot decode for the end.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::{ListParams, WatchParams};
use kube::core::{Request, Resource};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use netpold_core::model::Change;
use tokio::sync::mpsc;

use super::answer::{Answer, Event, Events};
use super::availability::{Availability, Meaning};
use super::connection::Connection;
use super::failure::Failure;
use super::hub::Update;
use super::kind::{Absence, Kind};
use super::list;
use super::outage::{Following, Member};
use super::store::Store;
use crate::source::KindStatus;
use crate::source::convert::Read;

/// How long a server may take to begin a streaming list and between its objects.
const STREAM_PAUSE: Duration = Duration::from_secs(30);
/// The longest pause after a failure.
const LONGEST: Duration = Duration::from_mins(5);
/// A watch ends by itself after this long, and a random part of as much again: an agent on every
/// node must not return at the same moment. kube accepts less than 295 s.
const WATCH_SECONDS: u32 = 145;
/// A watch that ends sooner than this was no watch; asking again at once would be a hot loop.
const SHORT: Duration = Duration::from_secs(1);

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
    outage: Member,
    updates: mpsc::Sender<Update>,
    number: usize,
    /// Further narrowing by fields.
    fields: Option<String>,
    store: Store<K>,
    state: State,
    /// The server may have streaming lists.
    streaming: bool,
    backoff: DefaultBackoff,
    availability: Availability,
    /// The last watch was given up after this time without an event.
    quiet: Option<Duration>,
}

impl<K: Kind> Follower<K> {
    /// `number` is the kind's among all that are followed.
    pub(super) fn new(
        connection: Arc<Connection>,
        outage: Member,
        updates: mpsc::Sender<Update>,
        number: usize,
        fields: Option<String>,
    ) -> Self {
        Self {
            connection,
            outage,
            updates,
            number,
            fields: fields.or_else(|| K::FIELDS.map(str::to_owned)),
            store: Store::new(),
            state: State::List,
            streaming: true,
            backoff: DefaultBackoff::default(),
            availability: Availability::new(kind_name::<K>(), K::ABSENCE),
            quiet: None,
        }
    }

    /// The status before anything is known.
    pub(super) fn status(&self) -> KindStatus {
        self.availability.status.clone()
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
                let failure = self.confirmed(failure).await;
                self.failed(verb, &failure).await;
            }
        }
    }

    /// All objects in pages; consistent, since later pages are of the first one's version.
    async fn paged_list(&mut self) -> Result<(), Failure> {
        self.begin_list();
        let mut params = list::params::<K>(self.fields.as_deref());
        loop {
            let (mut changes, metadata) = self.page(&params).await?;
            let at = Instant::now();
            self.heard();
            params.continue_token = metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_some() {
                self.say(changes, at).await;
                continue;
            }
            let version = metadata.resource_version.unwrap_or_default();
            changes.extend(self.complete(version));
            self.say(changes, at).await;
            return Ok(());
        }
    }

    /// One page: what changed, and what it says of itself.
    async fn page(&mut self, params: &ListParams) -> Result<(Vec<Change>, ListMeta), Failure> {
        let (client, timeout) = (self.connection.client(), self.connection.timeout());
        let mut changes = Vec::new();
        let take = |read: &Read| changes.extend(self.store.listed(read));
        let metadata = list::page::<K>(&client, None, params, timeout, take).await?;
        Ok((changes, metadata))
    }

    /// All objects as the first events of a watch, which then goes on. The server holds one object
    /// at a time in memory, and so do we.
    async fn streamed_list(&mut self) -> Result<(), Failure> {
        self.begin_list();
        let params = WatchParams { send_initial_events: true, ..self.watch_params() };
        // No version: as recent as a list, not as old as some cache may be.
        let mut answer = match self.ask(Self::request().watch(&params, ""), STREAM_PAUSE).await {
            Ok(answer) => answer,
            Err(Failure::Silent(_)) => {
                return self.without_streaming("no answer to a streaming list");
            }
            Err(Failure::NotUnderstood(reason)) => return self.without_streaming(&reason),
            // Whether the kind is served is for a plain list to say.
            Err(Failure::NotServed) => return self.without_streaming("not found"),
            Err(failure) => return Err(failure),
        };
        let (mut events, mut complete) = (Events::default(), false);
        while !complete {
            match self.take(&mut answer, &mut events, &mut complete).await {
                Ok(true) => {}
                Ok(false) => return Err(Failure::Refused("the list broke off".into())),
                Err(Failure::Silent(_)) => {
                    return self.without_streaming("the streaming list does not end");
                }
                Err(Failure::NotUnderstood(reason)) => return self.without_streaming(&reason),
                Err(failure) => return Err(failure),
            }
        }
        answer.patience = self.connection.timeout();
        self.follow(answer, events).await
    }

    fn without_streaming(&mut self, reason: &str) -> Result<(), Failure> {
        let kind = &self.availability.status.kind;
        tracing::debug!(kind, reason, "no streaming lists here: paged ones");
        self.streaming = false;
        Ok(())
    }

    /// Changes from a version on, until the server ends the watch, as it does every few minutes.
    async fn watch(&mut self, version: String) -> Result<(), Failure> {
        let began = Instant::now();
        let request = Self::request().watch(&self.watch_params(), &version);
        let (quiet, patience) = (self.quiet.take(), self.connection.timeout());
        let answer = self.ask(request, patience).await;
        let answer = answer.map_err(|failure| match quiet {
            Some(quiet) if failure.is_no_answer() => Failure::Silent(quiet),
            _ => failure,
        })?;
        self.heard();
        self.say(Vec::new(), began).await;
        self.follow(answer, Events::default()).await?;
        if began.elapsed() < SHORT {
            tokio::time::sleep(SHORT).await;
        }
        Ok(())
    }

    /// Takes in events after a list, until the watch ends or is silent for too long.
    ///
    /// Silence alone is no fault: objects of a kind may not change for hours, and a server whose etcd reports no
    /// progress sends no bookmarks. A connection whose other end is gone, or a proxy that has forgotten it, looks the
    /// same, and TCP keepalive would find the former only. So the watch is asked for again from its last version, over
    /// HTTP/1.1 on another connection: a server that is there answers that at once, and only one that does not is
    /// reported.
    async fn follow(&mut self, mut answer: Answer, mut events: Events) -> Result<(), Failure> {
        let mut complete = true;
        loop {
            match self.take(&mut answer, &mut events, &mut complete).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(Failure::Silent(time)) => {
                    let kind = &self.availability.status.kind;
                    tracing::debug!(kind, ?time, "nothing came on the watch: asked for again");
                    self.quiet = Some(time);
                    return Ok(());
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Takes in the events that come next; whether there may be more. `complete`: those of a streaming
    /// list have come.
    async fn take(
        &mut self,
        answer: &mut Answer,
        events: &mut Events,
        complete: &mut bool,
    ) -> Result<bool, Failure> {
        let (mut at, mut changes, mut outcome) = (None, Vec::new(), Ok(()));
        let more = answer.parts(|part| {
            at.get_or_insert_with(Instant::now);
            if let Some(event) = events.part(K::KIND, part)
                && outcome.is_ok()
            {
                outcome = self.event(event, complete).map(|change| changes.extend(change));
            }
        });
        let more = more.await;
        let outcome = outcome.and(more);
        if let Ok(true) = outcome {
            self.heard();
        }
        // What came before a failure is told too: the watch goes on after it, and the next list will
        // not find it changed.
        self.say(changes, at.unwrap_or_else(Instant::now)).await;
        outcome
    }

    /// Takes an event in, and its version as the one to go on from.
    fn event(&mut self, event: Event, complete: &mut bool) -> Result<Vec<Change>, Failure> {
        let (change, version) = match event {
            Event::Object(read) if *complete => (self.store.update(&read), read.identity.version),
            Event::Object(read) => (self.store.listed(&read), None),
            Event::Gone(identity) => (self.store.remove(&identity), identity.version),
            Event::Mark { version, ends_list: true } if !*complete => {
                *complete = true;
                return Ok(self.complete(version));
            }
            Event::Mark { version, .. } => (None, Some(version)),
            Event::Failed(failure) => return Err(failure),
        };
        if let Some(version) = version.filter(|version| *complete && !version.is_empty()) {
            self.state = State::Watch(version);
        }
        Ok(change.into_iter().collect())
    }

    fn request() -> Request {
        Request::new(K::url_path(&(), None))
    }

    async fn ask(
        &self,
        request: Result<hyper::Request<Vec<u8>>, kube::core::request::Error>,
        patience: Duration,
    ) -> Result<Answer, Failure> {
        let request = request.map_err(|error| Failure::of(kube::Error::BuildRequest(error)))?;
        Answer::to(&self.connection.client(), request, patience).await
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
        self.availability.status.lists += 1;
    }

    /// The list of that version is complete; what it took away.
    fn complete(&mut self, version: String) -> Vec<Change> {
        self.state = State::Watch(version);
        self.availability.status.in_sync = true;
        self.store.complete()
    }

    /// The server answers as it should.
    fn heard(&mut self) {
        self.availability.heard();
        self.backoff.reset();
        self.outage.set(Following::Works);
    }

    /// Of a group or version without any kind a server says nothing of its own: whether it has none is in its
    /// list of what it serves. That is read only where it may matter: 5,000 agents ask for absent kinds.
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
            Meaning::Nothing => Vec::new(),
            Meaning::KnownIsAll => {
                self.store.absent();
                Vec::new()
            }
            Meaning::AllGone => self.store.none(),
        };
        if failure.calls_for_list() {
            self.state = State::List;
        }
        self.say(changes, Instant::now()).await;
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

    async fn say(&mut self, changes: Vec<Change>, at: Instant) {
        let status = &mut self.availability.status;
        status.objects = self.store.len();
        status.undecoded = self.store.undecoded();
        let update = Update {
            kind: self.number,
            changes,
            at,
            status: status.clone(),
            synced: self.store.synced(),
            problems: self.store.problems(),
        };
        // Nobody listens any more: the loop sees that too.
        let _ = self.updates.send(update).await;
    }
}

/// `networkpolicies.networking.k8s.io`
pub(super) fn kind_name<K: Resource<DynamicType = ()>>() -> String {
    match K::group(&()) {
        group if group.is_empty() => K::plural(&()).into_owned(),
        group => format!("{}.{group}", K::plural(&())),
    }
}
