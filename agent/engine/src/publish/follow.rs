//! Watches the API objects of the own node, decoding only the compared fields.
//!
//! These objects influence no verdict, so kube's watcher suffices: an object that it cannot decode delays only the
//! conditions.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use kube::{Api, Resource};
use netpold_kube::cluster::connection::Connection;
use netpold_kube::cluster::{is_quiet, random_part};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::debug;

/// Shortest duration of a watch; a random part of the same duration is added.
const WATCH: Duration = Duration::from_secs(145);
/// Number of failures in a row after which the connection is renewed.
const PATIENCE: u32 = 3;

/// The fields read of a pod's or Node's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ConditionsStatus {
    pub(super) conditions: Option<Vec<Condition>>,
}

/// A condition of a pod or node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
    /// Time of the heartbeat, in conditions of a Node.
    pub(super) last_heartbeat_time: Option<Time>,
}

/// Capacity of the channel of events.
const IN_FLIGHT: usize = 64;

/// Watches the objects that a field selector chooses, until the receiver is dropped.
pub(super) fn follow<K>(connection: Arc<Connection>, fields: String) -> mpsc::Receiver<Event<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let (sender, events) = mpsc::channel(IN_FLIGHT);
    tokio::spawn(async move {
        let forward = forward(&connection, &fields, &sender);
        tokio::select! {
            () = forward => {}
            () = sender.closed() => {}
        }
    });
    events
}

async fn forward<K>(connection: &Connection, fields: &str, to: &mpsc::Sender<Event<K>>)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut backoff = DefaultBackoff::default();
    loop {
        let seconds = u32::try_from((WATCH + random_part(WATCH)).as_secs()).unwrap_or(0);
        // Lists from the API server's cache, which has an index of pods by node. kube requests a list with a page size from
        // etcd, where the server reads all pods for it.
        let config = watcher::Config::default().fields(fields).timeout(seconds).any_semantic();
        let config = watcher::Config { page_size: None, ..config };
        let mut events = pin!(watcher::watcher(Api::all(connection.client()), config));
        let mut failures = 0;
        while failures < PATIENCE {
            match events.next().await {
                // kube emits this event before it asks the server, so it does not reset the failures.
                Some(Ok(Event::Init)) => {
                    let _ = to.send(Event::Init).await;
                }
                Some(Ok(event)) => {
                    failures = 0;
                    backoff.reset();
                    let _ = to.send(event).await;
                }
                // A quiet watch ended without changes: kube watches again, without a pause here.
                Some(Err(error)) if is_quiet(&error) => {
                    debug!(fields, "restarting watch: no event before the timeout");
                }
                Some(Err(error)) => {
                    // The source watches the same kinds and reports the error.
                    debug!(%error, fields, "cannot watch");
                    failures += 1;
                    sleep(backoff.next().unwrap_or(WATCH)).await;
                }
                None => break,
            }
        }
        connection.renew().await;
    }
}
