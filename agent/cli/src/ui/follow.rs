//! Events of all agents as server-sent events, with the filter words of `observe`.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use clap::Parser;
use clap::builder::Resettable;
use clap::{CommandFactory, FromArgMatches};
use futures::StreamExt as _;
use netpold_api::filter::ObserveRequest;
use netpold_api::observe::ObserveLine;
use netpold_client::arguments::time;
use netpold_client::live::{Agents, ClusterArgs};
use netpold_client::socket::parse_answer;
use netpold_core::model::Direction;
use netpold_core::printable::printable;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc::Sender;

use super::map::PartyIndex;
use super::snapshot::ObjectSnapshot;
use crate::observe::{FilterArgs, arguments, printable_line, why};

/// Flags of `observe` that the page may set.
const WORDS: [&str; 9] =
    ["namespace", "pod", "peer", "direction", "verdict", "port", "protocol", "reason", "since"];

/// A request for events: values of flags of `observe`, by name.
#[derive(Deserialize)]
pub(super) struct FollowQuestion {
    words: BTreeMap<String, String>,
}

/// Words as flags.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct FollowFlags {
    #[command(flatten)]
    filter: FilterArgs,
    #[arg(long, value_parser = time)]
    since: Option<Duration>,
}

impl FollowQuestion {
    /// Builds the request to the agents.
    ///
    /// # Errors
    /// A word or its value is unknown; the reason is that of `observe`.
    pub(super) fn request(&self) -> Result<ObserveRequest> {
        let mut flags = Vec::new();
        for (word, value) in &self.words {
            if !WORDS.contains(&word.as_str()) {
                bail!("{word:?} is no filter of observe");
            }
            if !value.trim().is_empty() {
                flags.push(format!("--{word}={}", value.trim()));
            }
        }
        // The environment is that of the server, not of the question.
        let command = FollowFlags::command().mut_args(|arg| arg.env(Resettable::Reset));
        let matches = command.try_get_matches_from(flags).map_err(|error| reason(&error))?;
        let words = FollowFlags::from_arg_matches(&matches).map_err(|error| reason(&error))?;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (since, filter) = (words.since.map(millis), words.filter.filter()?);
        Ok(ObserveRequest { since, follow: true, filter })
    }
}

/// Returns the first line of an error of clap.
fn reason(error: &clap::Error) -> anyhow::Error {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    anyhow!("{}", first.strip_prefix("error: ").unwrap_or(first))
}

/// Sends the events of all agents until the receiver is gone.
///
/// # Errors
/// The agents cannot be found.
pub(super) async fn send(
    cluster: ClusterArgs,
    world: Arc<ObjectSnapshot>,
    request: ObserveRequest,
    sender: Sender<String>,
) -> Result<()> {
    let agents = Agents::find(&cluster).await?;
    let arguments = arguments(&request);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut lines = pin!(agents.stream(&arguments));
    let places = PartyIndex::new(world.cluster(), &world.named.parties);
    let send = async |event: &Value| sender.send(format!("data: {event}\n\n")).await.is_ok();
    if !send(&json!({ "revision": world.revision })).await {
        return Ok(());
    }
    loop {
        let next = tokio::select! {
            next = lines.next() => next,
            () = sender.closed() => return Ok(()),
        };
        let event = match next {
            None => json!({ "problem": "every agent closed its stream" }),
            Some((node, Err(error))) => {
                json!({ "problem": printable(&format!("node {node}: {error}")) })
            }
            Some((node, Ok(line))) => match event(&places, &line) {
                Ok(event) => event,
                Err(error) => json!({ "problem": printable(&format!("node {node}: {error:#}")) }),
            },
        };
        if !send(&event).await || event["problem"] == "every agent closed its stream" {
            return Ok(());
        }
    }
}

/// Returns a line of `observe` with its parties on the map, and its reason in words.
fn event(places: &PartyIndex<'_>, line: &str) -> Result<Value> {
    let line: ObserveLine = parse_answer(line)?;
    let (mut from, mut to, mut words) = (None, None, String::new());
    if let ObserveLine::Event(event) = &line {
        let pod = event.pod.as_ref().and_then(|pod| places.of_pod(pod));
        let ends = event.pod.as_ref().zip(event.peer.as_ref());
        let peer = ends.and_then(|(pod, peer)| places.of_peer(pod, peer, event.remote));
        (from, to) = match event.direction {
            Direction::Egress => (pod, peer),
            Direction::Ingress => (peer, pod),
        };
        words = printable(&why(&event.attribution)).into_owned();
    }
    Ok(json!({ "line": printable_line(&line)?, "from": from, "to": to, "why": words }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(words: &[(&str, &str)]) -> Result<ObserveRequest> {
        let words = words.iter().map(|(word, value)| ((*word).to_owned(), (*value).to_owned()));
        FollowQuestion { words: words.collect() }.request()
    }

    #[test]
    fn words_are_those_of_observe() {
        let words = [
            ("verdict", "deny,audit"),
            ("namespace", "shop"),
            ("port", "80,443"),
            ("since", "10m"),
            ("pod", ""),
        ];
        let request = request(&words).unwrap();
        assert_eq!((request.since, request.follow), (Some(600_000), true));
        assert_eq!(request.filter.namespace.as_deref(), Some("shop"));
        assert_eq!((request.filter.ports, request.filter.verdicts.len()), (vec![80, 443], 2));
        assert_eq!(request.filter.pod, None, "an empty field is no filter");
    }

    #[test]
    fn no_word_becomes_another_flag() {
        for (word, value) in [
            ("kubeconfig", "/etc/shadow"),
            ("direction", "up"),
            ("verdict", "--help"),
            ("reason", "none"),
        ] {
            assert!(request(&[(word, value)]).is_err(), "{word}");
        }
        let pod = request(&[("namespace", "--output=json")]).unwrap();
        assert_eq!(pod.filter.namespace.as_deref(), Some("--output=json"), "a value stays a value");
    }
}
