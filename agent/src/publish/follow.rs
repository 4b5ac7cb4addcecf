//! The own node's objects as the API has them, followed; of each only what is compared.
//!
//! What these say counts for no verdict: kube's watcher does, and an object that it cannot decode holds up no more than
//! the conditions.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use kube::{Api, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::debug;

use super::failing::random_part;
use crate::source::cluster::answer::is_quiet;
use crate::source::cluster::connection::Connection;

/// A watch ends by itself after this long, and a random part of as much again.
const WATCH: Duration = Duration::from_secs(145);
/// After so many failures in a row another connection may help.
const PATIENCE: u32 = 3;

/// What is read of a pod's or node's status.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
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
    /// Of a Node's condition.
    pub(super) last_heartbeat_time: Option<Time>,
}

/// Events in flight.
const IN_FLIGHT: usize = 64;

/// Follows the objects that a field selector chooses, until nobody listens any more.
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
        // From the server's cache, which finds a node's pods without reading all there are.
        let config = watcher::Config::default().fields(fields).timeout(seconds).any_semantic();
        let mut events = pin!(watcher::watcher(Api::all(connection.client()), config));
        let mut failures = 0;
        while failures < PATIENCE {
            match events.next().await {
                // Which is said before the server is asked.
                Some(Ok(Event::Init)) => {
                    let _ = to.send(Event::Init).await;
                }
                Some(Ok(event)) => {
                    failures = 0;
                    backoff.reset();
                    let _ = to.send(event).await;
                }
                // Nothing changed: kube asks again, and nobody waits.
                Some(Err(error)) if is_quiet(&error) => {
                    debug!(fields, "nothing came on the watch: asked for again");
                }
                Some(Err(error)) => {
                    // The source watches the same kinds, and says what is wrong.
                    debug!(%error, fields, "cannot be followed");
                    failures += 1;
                    sleep(backoff.next().unwrap_or(WATCH)).await;
                }
                None => break,
            }
        }
        connection.renew().await;
    }
}
