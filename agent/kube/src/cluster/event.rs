//! Creation of a Kubernetes Event (`events.k8s.io/v1`).

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use tokio::time::timeout;

use super::connection::Connection;
use super::failure::{code_of, is_outage, is_terminating};

/// Longest time to wait for the answer to an Event.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longest name of an Event, in bytes (a DNS subdomain, RFC 1123).
const NAME_MAX: usize = 253;

/// Longest note that the API accepts, in bytes.
pub(super) const NOTE_MAX: usize = 1024;

/// Error of an Event that was not written.
#[derive(Debug)]
pub(super) struct EventError {
    pub(super) text: String,
    /// Whether no Event could be written, on any object.
    pub(super) is_outage: bool,
    /// Whether the object's namespace is being deleted.
    pub(super) is_terminating: bool,
}

impl std::fmt::Display for EventError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Creates an Event of a reason and an action. Existing Events are never updated: a count of repetitions would need
/// another permission.
pub(super) async fn publish(
    connection: &Connection,
    instance: &str,
    (reason, action): (&str, &str),
    note: &str,
    regarding: ObjectReference,
) -> Result<(), EventError> {
    let now = Timestamp::now();
    let name = event_name(regarding.name.as_deref().unwrap_or_default(), now.as_nanosecond());
    let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".into());
    let event = Event {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        action: Some(action.into()),
        event_time: Some(MicroTime(now)),
        note: Some(note.to_owned()),
        reason: Some(reason.into()),
        regarding: Some(regarding),
        reporting_controller: Some("netpold".into()),
        reporting_instance: Some(instance.to_owned()),
        type_: Some("Warning".into()),
        ..Event::default()
    };
    let api = Api::<Event>::namespaced(connection.client(), &namespace);
    match timeout(PATIENCE, api.create(&PostParams::default(), &event)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(EventError {
            text: error.to_string(),
            is_outage: is_outage(code_of(&error)),
            is_terminating: is_terminating(&error),
        }),
        Err(_) => {
            Err(EventError { text: "no answer".into(), is_outage: true, is_terminating: false })
        }
    }
}

/// Returns the name of an Event: its object's name, cut to the API's limit, and a time in nanoseconds that makes it
/// unique.
fn event_name(object: &str, nanoseconds: i128) -> String {
    let suffix = format!(".{nanoseconds:x}");
    let end = object.floor_char_boundary(NAME_MAX.saturating_sub(suffix.len()));
    // Each part between dots must end with a letter or digit.
    format!("{}{suffix}", object[..end].trim_end_matches(['.', '-']))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 253 bytes is the longest name of a policy or pod.
    #[test]
    fn a_name_of_an_event_is_one_that_the_api_takes() {
        let nanoseconds = Timestamp::now().as_nanosecond();
        assert!(event_name("web", nanoseconds).starts_with("web.1"));
        for length in 200..=253 {
            for object in ["p".repeat(length), "p.".repeat(127)[..length].to_owned()] {
                let name = event_name(object.trim_end_matches('.'), nanoseconds);
                assert!(name.len() <= NAME_MAX, "{} bytes", name.len());
                let is_label = |label: &str| {
                    !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
                };
                assert!(name.split('.').all(is_label), "{name}");
            }
        }
    }
}
