//! Peer slices, listed and watched.
//!
//! Only the controller writes them, so kube's own watcher suffices: an object that cannot be decoded is not a tenant's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::Api;
use kube::api::ListParams;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event, ListSemantic};
use netpold_api::peer_slice::{HEARTBEAT, PeerSlice};
use tokio::sync::mpsc;

use super::answer::is_quiet;
use super::connection::Connection;
use super::failure::{Failure, is_outage};
use super::list::PAGE;
use super::outage::{Following, Outage, OutageMember, random_part};

/// Time over which the agents of a cluster spread their requests for the heartbeat.
const ASKED: Duration = Duration::from_secs(1);
/// Timeout of that request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest pause after a failure.
const LONGEST: Duration = Duration::from_secs(30);

/// Event of the slices.
#[derive(Debug)]
pub(super) enum SliceEvent {
    /// All slices, from a list.
    Listed(Vec<PeerSlice>),
    /// A slice was created or changed.
    Set(Box<PeerSlice>),
    /// The slice of this name is gone.
    Gone(String),
    /// A request failed.
    Failed {
        /// Description of the failure.
        text: String,
        /// Whether the server does not answer at all.
        is_unreachable: bool,
    },
}

/// Sends the events of slices until the receiver is dropped.
pub(super) async fn follow(
    connection: Arc<Connection>,
    member: OutageMember,
    events: mpsc::Sender<SliceEvent>,
) {
    let mut backoff = DefaultBackoff::default();
    while !events.is_closed() {
        let config = watcher::Config {
            page_size: Some(PAGE),
            list_semantic: ListSemantic::MostRecent,
            ..watcher::Config::default()
        };
        let api = Api::<PeerSlice>::all(connection.client());
        let mut stream = std::pin::pin!(watcher::watcher(api, config));
        let mut listed = Vec::new();
        while let Some(event) = stream.next().await {
            let event = match event {
                Ok(event) => event,
                Err(error) if is_quiet(&error) => continue,
                Err(watcher::Error::WatchError(status)) if status.code == 410 => continue,
                Err(error) => {
                    let text = error.to_string();
                    let failure = failure(error);
                    let is_unreachable = failure.as_ref().is_some_and(Failure::is_unreachable);
                    let failed = SliceEvent::Failed { text, is_unreachable };
                    if events.send(failed).await.is_err() {
                        return;
                    }
                    member.set(Following::Fails);
                    member.pause(backoff.next().unwrap_or(LONGEST)).await;
                    if failure.is_some_and(|failure| failure.calls_for_renewal()) {
                        connection.renew().await;
                    }
                    break;
                }
            };
            if !is_answer(&event) {
                listed.clear();
                continue;
            }
            member.set(Following::Works);
            if matches!(event, Event::InitDone) {
                member.set_answered();
            }
            backoff.reset();
            let Some(event) = taken(event, &mut listed) else { continue };
            if events.send(event).await.is_err() {
                return;
            }
        }
    }
}

/// Requests the heartbeat and records any answer, including a refusal. The answer comes from the store and not from a
/// cache of the server, so it shows that the controller could write.
pub(super) async fn request_heartbeat(connection: Arc<Connection>, outage: Arc<Outage>) {
    tokio::time::sleep(random_part(ASKED)).await;
    let api = Api::<PeerSlice>::all(connection.client());
    let params = ListParams::default().fields(&format!("metadata.name={HEARTBEAT}"));
    let answer = tokio::time::timeout(PATIENCE, api.list(&params)).await;
    let is_answered = match answer {
        Ok(Ok(_)) => true,
        Ok(Err(kube::Error::Api(status))) => is_refusal(status.code),
        Ok(Err(_)) | Err(_) => false,
    };
    if is_answered {
        outage.set_answered(Instant::now());
    }
}

/// Whether a status is the server's own answer: one without etcd answers 500 or 504.
const fn is_refusal(code: u16) -> bool {
    code < 500 && !is_outage(Some(code))
}

/// Whether the server answered: the watcher announces a list before it requests the list.
const fn is_answer(event: &Event<PeerSlice>) -> bool {
    !matches!(event, Event::Init)
}

/// Gathers the slices of a list; returns the event to send.
fn taken(event: Event<PeerSlice>, listed: &mut Vec<PeerSlice>) -> Option<SliceEvent> {
    Some(match event {
        Event::Init => return None,
        Event::InitApply(slice) => {
            listed.push(slice);
            return None;
        }
        Event::InitDone => SliceEvent::Listed(std::mem::take(listed)),
        Event::Apply(slice) => SliceEvent::Set(Box::new(slice)),
        Event::Delete(slice) => SliceEvent::Gone(slice.metadata.name.unwrap_or_default()),
    })
}

/// Returns the failure of a request.
fn failure(error: watcher::Error) -> Option<Failure> {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => Some(Failure::from_error(error)),
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_etcd_is_no_answer() {
        assert!([403, 404].into_iter().all(is_refusal));
        assert!(![401, 429, 500, 503, 504].into_iter().any(is_refusal));
    }

    #[test]
    fn the_announcement_of_a_list_is_no_answer() {
        assert!(!is_answer(&Event::Init));
        let slice = PeerSlice::default;
        let answers = [
            Event::InitApply(slice()),
            Event::InitDone,
            Event::Apply(slice()),
            Event::Delete(slice()),
        ];
        assert!(answers.iter().all(is_answer));
    }
}
