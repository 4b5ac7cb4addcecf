//! Watches of netpold's own kinds.

use std::collections::BTreeSet;
use std::fmt::Debug;

use futures::StreamExt;
use kube::runtime::watcher::{self, Event, ListSemantic};
use kube::runtime::{WatchStreamExt, watcher as follow_kind};
use kube::{Api, Client, Resource};
use netpold_core::model::Key;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use netpold_kube::cluster::is_quiet;

/// Page size of lists: a node's report can have 400 kB.
const PAGE: u32 = 50;

/// Event of a watch.
#[derive(Debug)]
pub(super) enum FollowEvent<K> {
    /// The object was created or changed.
    Is(K),
    /// The object with this key is gone. The namespace is empty for cluster-scoped kinds.
    Gone(Key),
    /// The initial list is complete.
    Listed,
}

/// Sends the events of a kind until the receiver is dropped.
pub(super) async fn follow<K>(client: Client, said: mpsc::Sender<FollowEvent<K>>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = watcher::Config {
        page_size: Some(PAGE),
        list_semantic: ListSemantic::MostRecent,
        ..watcher::Config::default()
    };
    let mut events = follow_kind(Api::<K>::all(client), config).default_backoff().boxed();
    let (mut known, mut listed): (BTreeSet<Key>, BTreeSet<Key>) = Default::default();
    let mut failing = false;
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            // The watch of a kind without changes ends by timeout; kube opens another one.
            Err(error) if is_quiet(&error) => {
                debug!("restarting watch of {}: no event before the timeout", K::plural(&()));
                continue;
            }
            // The server's history begins later than the list, as with a new kind or a quiet one; kube lists again.
            Err(watcher::Error::WatchError(status)) if status.code == 410 => {
                debug!("listing {} again: the list was too old to continue", K::plural(&()));
                continue;
            }
            Err(error) => {
                if !failing {
                    warn!(%error, "cannot watch {}; the last known objects stay in use", K::plural(&()));
                }
                failing = true;
                continue;
            }
        };
        if failing {
            info!("watching {} again", K::plural(&()));
            failing = false;
        }
        let mut all = Vec::new();
        match event {
            Event::Apply(object) => {
                known.insert(key(&object));
                all.push(FollowEvent::Is(object));
            }
            Event::Delete(object) => {
                let key = key(&object);
                known.remove(&key);
                all.push(FollowEvent::Gone(key));
            }
            Event::Init => listed.clear(),
            Event::InitApply(object) => {
                listed.insert(key(&object));
                all.push(FollowEvent::Is(object));
            }
            Event::InitDone => {
                let gone = known.difference(&listed).cloned();
                all.extend(gone.map(FollowEvent::Gone));
                all.push(FollowEvent::Listed);
                known = std::mem::take(&mut listed);
            }
        }
        for seen in all {
            if said.send(seen).await.is_err() {
                return;
            }
        }
    }
}

/// Returns the key of an object.
pub(super) fn key<K: Resource>(object: &K) -> Key {
    let metadata = object.meta();
    Key::new(
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}
