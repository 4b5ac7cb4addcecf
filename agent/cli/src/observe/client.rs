//! Client side: asks the agent, or all agents of a cluster, and prints the stream.

use std::io::Write;
use std::path::Path;
use std::pin::pin;

use anyhow::{Result, bail};
use futures::StreamExt as _;
use netpold_api::filter::ObserveRequest;
use netpold_api::observe::{OBSERVE_REQUEST, ObserveLine};
use netpold_api::socket::PATIENCE;
use netpold_client::live::{self, ALL_ANSWERED, Agents, SOME_ANSWERED};
use netpold_client::output::{Output, is_reader_open};
use netpold_client::socket::{AnswerLines, parse_answer};

use super::args::{ObserveArgs, arguments};
use super::render::text;

/// Most events of a cluster sorted at once.
const SORTED_MAX: usize = 50_000;
/// Prints the events of this node or of a cluster, as text or JSON lines. Returns the exit status.
///
/// # Errors
/// No agent answers, or an agent ends a stream early.
pub fn run(args: &ObserveArgs) -> Result<u8> {
    let request = args.request()?;
    if args.cluster.is_requested() {
        return live::block_on(print_cluster(args, &request));
    }
    let mut lines = open_stream(&args.socket, &request, args.cluster.local && request.follow)?;
    while let Some(line) = lines.read()? {
        if !print_line(&line, args.output)? {
            return Ok(ALL_ANSWERED);
        }
    }
    if request.follow && !args.cluster.local {
        let socket = args.socket.display();
        bail!("the agent on {socket} closed the stream: it exited, or serves too many clients");
    }
    Ok(ALL_ANSWERED)
}

/// Prints the events of a cluster: in the order of arrival with `follow`, else by time.
async fn print_cluster(args: &ObserveArgs, request: &ObserveRequest) -> Result<u8> {
    let agents = Agents::find(&args.cluster).await?;
    let arguments = arguments(request);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut lines = pin!(agents.stream(&arguments));
    let (mut kept, mut failures) = (Vec::new(), Vec::new());
    while let Some((node, line)) = lines.next().await {
        match line {
            Ok(line) if request.follow => {
                if !print_line(&line, args.output)? {
                    break;
                }
            }
            Ok(_) if kept.len() == SORTED_MAX => {
                bail!("more than {SORTED_MAX} lines: narrow the request, as with --since or -n");
            }
            Ok(line) => kept.push((sort_key(&parse_answer(&line)?), line)),
            Err(error) => {
                // Reported at once: the other streams may last for hours.
                let failure = [(node, error)];
                live::report(&failure);
                failures.extend(failure);
            }
        }
    }
    kept.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (_, line) in kept {
        if !print_line(&line, args.output)? {
            break;
        }
    }
    Ok(if failures.is_empty() { ALL_ANSWERED } else { SOME_ANSWERED })
}

/// Returns the sort key of a line; lines about lost events come last.
fn sort_key(line: &ObserveLine) -> (bool, String) {
    match line {
        ObserveLine::Event(event) => (false, event.time.clone()),
        ObserveLine::Lost { .. } => (true, String::new()),
    }
}

/// Prints a line. Returns whether the reader is still there.
fn print_line(line: &str, output: Output) -> Result<bool> {
    let shown = match output {
        Output::Json => line.to_owned(),
        Output::Text => text(&parse_answer(line)?)?,
    };
    let mut stdout = anstream::stdout().lock();
    Ok(is_reader_open(writeln!(stdout, "{shown}").and_then(|()| stdout.flush()))?)
}

/// Asks an agent, and waits for the start of the stream: from then on it misses no event. See [`AnswerLines::send_request`].
///
/// # Errors
/// No agent answers, or it refuses.
pub fn open_stream(
    socket: &Path,
    request: &ObserveRequest,
    ends_with_input: bool,
) -> Result<AnswerLines> {
    AnswerLines::send_request(socket, OBSERVE_REQUEST, request, PATIENCE, ends_with_input)
}
