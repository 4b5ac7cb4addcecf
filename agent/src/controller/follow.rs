//! netpold's own kinds, followed as they change.

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

use crate::source::cluster::answer::is_quiet;

/// Objects a page: a report of a node may have 400 kB.
const PAGE: u32 = 50;

/// What became of an object.
#[derive(Debug)]
pub(super) enum Seen<K> {
    /// It is this now.
    Is(K),
    /// It is gone; of kinds without namespaces the key's is empty.
    Gone(Key),
    /// All there are were named.
    Listed,
}

/// Follows a kind until nobody listens any more.
pub(super) async fn follow<K>(client: Client, said: mpsc::Sender<Seen<K>>)
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
            // A kind that does not change: kube asks for it again.
            Err(error) if is_quiet(&error) => {
                debug!("nothing came on the watch of {}: asked for again", K::plural(&()));
                continue;
            }
            Err(error) => {
                if !failing {
                    warn!(%error, "{} cannot be followed; what was known stays", K::plural(&()));
                }
                failing = true;
                continue;
            }
        };
        if failing {
            info!("{} are followed again", K::plural(&()));
            failing = false;
        }
        let mut all = Vec::new();
        match event {
            Event::Apply(object) => {
                known.insert(key(&object));
                all.push(Seen::Is(object));
            }
            Event::Delete(object) => {
                let key = key(&object);
                known.remove(&key);
                all.push(Seen::Gone(key));
            }
            Event::Init => listed.clear(),
            Event::InitApply(object) => {
                listed.insert(key(&object));
                all.push(Seen::Is(object));
            }
            Event::InitDone => {
                let gone = known.difference(&listed).cloned();
                all.extend(gone.map(Seen::Gone));
                all.push(Seen::Listed);
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

/// Which object this is.
pub(super) fn key<K: Resource>(object: &K) -> Key {
    let metadata = object.meta();
    Key::new(
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}
