//! Lines for the screen, from an agent or from all agents of a cluster.

use std::path::Path;
use std::pin::pin;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Result;
use futures::StreamExt as _;
use netpold_api::filter::ObserveRequest;
use netpold_api::observe::ObserveLine;
use netpold_client::live::{self, Agents, ClusterArgs};
use netpold_client::socket::{AnswerLines, parse_answer};
use netpold_core::printable::printable;

use crate::observe::{arguments, open_stream, printable_line};

/// Pause between two attempts to reach an agent that has ended.
const RETRY: Duration = Duration::from_secs(2);

/// Line of the stream, or the reason why there is none.
pub(super) type FeedLine = Result<ObserveLine, String>;

fn parse_feed_line(line: &str) -> FeedLine {
    let line = parse_answer(line).and_then(|line| printable_line(&line));
    line.map_err(|error| printable(&format!("{error:#}")).into_owned())
}

/// Sends lines until the receiver is gone; reconnects to an agent that has ended.
pub(super) fn send_node_lines(
    mut lines: AnswerLines,
    socket: &Path,
    request: &ObserveRequest,
    sender: &SyncSender<FeedLine>,
) {
    // Kept events were shown already.
    let again = ObserveRequest { since: None, ..request.clone() };
    loop {
        let problem = loop {
            let line = match lines.read() {
                Ok(Some(line)) => parse_feed_line(&line),
                Ok(None) => break "the agent closed the stream".to_owned(),
                Err(error) => break format!("cannot read from the agent: {error}"),
            };
            if sender.send(line).is_err() {
                return;
            }
        };
        if sender.send(Err(format!("{problem}; reconnecting"))).is_err() {
            return;
        }
        lines = loop {
            std::thread::sleep(RETRY);
            if let Ok(lines) = open_stream(socket, &again, false) {
                break lines;
            }
        };
    }
}

/// Sends lines of all agents of a cluster, on a thread of its own; returns once the agents are found.
///
/// # Errors
/// The cluster cannot be reached, or it has no agents.
pub(super) fn send_cluster_lines(
    cluster: ClusterArgs,
    request: &ObserveRequest,
    sender: SyncSender<FeedLine>,
) -> Result<()> {
    let (begun, beginning) = sync_channel(1);
    let arguments = arguments(request);
    std::thread::spawn(move || {
        let followed = live::block_on(async {
            let agents = match Agents::find(&cluster).await {
                Ok(agents) => agents,
                Err(error) => {
                    let _ = begun.send(Err(error));
                    return Ok(());
                }
            };
            let _ = begun.send(Ok(()));
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let mut lines = pin!(agents.stream(&arguments));
            while let Some((node, line)) = lines.next().await {
                let line = match line {
                    Ok(line) => parse_feed_line(&line),
                    Err(error) => Err(printable(&format!("node {node}: {error}")).into_owned()),
                };
                // Blocks while the queue is full; nothing else runs on this thread.
                if sender.send(line).is_err() {
                    return Ok(());
                }
            }
            let _ = sender.send(Err("every agent closed its stream".to_owned()));
            Ok(())
        });
        drop(followed);
    });
    beginning.recv()?
}
