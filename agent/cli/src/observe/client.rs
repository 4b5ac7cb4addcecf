//! Client side: asks the agent, or all agents of a cluster, and prints the stream.

use std::io::Write;
use std::path::Path;
use std::pin::pin;

use anyhow::{Result, bail};
use futures::StreamExt as _;
use netpold_api::filter::ObserveRequest;
use netpold_api::observe::{OBSERVE_REQUEST, ObserveLine};
use netpold_api::socket::PATIENCE;
use netpold_client::live::{self, ALL, Agents, SOME};
use netpold_client::output::{Output, is_read};
use netpold_client::socket::{AnswerLines, understood};

use super::args::{ObserveArgs, arguments};
use super::render::text;

/// Most events of a cluster sorted at once.
const ORDERED: usize = 50_000;
/// Prints the events of this node or of a cluster, as text or JSON lines. Returns the exit status.
///
/// # Errors
/// No agent answers, or an agent ends a stream early.
pub fn run(args: &ObserveArgs) -> Result<u8> {
    let request = args.request()?;
    if args.cluster.is_meant() {
        return live::block_on(of_cluster(args, &request));
    }
    let mut lines = ask(&args.socket, &request, args.cluster.local && request.follow)?;
    while let Some(line) = lines.read()? {
        if !show(&line, args.output)? {
            return Ok(ALL);
        }
    }
    if request.follow && !args.cluster.local {
        let socket = args.socket.display();
        bail!("the agent on {socket} closed the stream: it exited, or serves too many clients");
    }
    Ok(ALL)
}

/// Prints the events of a cluster: in the order of arrival with `follow`, else by time.
async fn of_cluster(args: &ObserveArgs, request: &ObserveRequest) -> Result<u8> {
    let agents = Agents::find(&args.cluster).await?;
    let arguments = arguments(request);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut lines = pin!(agents.stream(&arguments));
    let (mut kept, mut failures) = (Vec::new(), Vec::new());
    while let Some((node, line)) = lines.next().await {
        match line {
            Ok(line) if request.follow => {
                if !show(&line, args.output)? {
                    break;
                }
            }
            Ok(_) if kept.len() == ORDERED => {
                bail!("more than {ORDERED} lines: narrow the request, as with --since or -n");
            }
            Ok(line) => kept.push((time(&understood(&line)?), line)),
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
        if !show(&line, args.output)? {
            break;
        }
    }
    Ok(if failures.is_empty() { ALL } else { SOME })
}

/// Returns the sort key of a line; lines about lost events come last.
fn time(line: &ObserveLine) -> (bool, String) {
    match line {
        ObserveLine::Event(event) => (false, event.time.clone()),
        ObserveLine::Lost { .. } => (true, String::new()),
    }
}

/// Prints a line. Returns whether the reader is still there.
fn show(line: &str, output: Output) -> Result<bool> {
    let shown = match output {
        Output::Json => line.to_owned(),
        Output::Text => text(&understood(line)?)?,
    };
    let mut stdout = anstream::stdout().lock();
    Ok(is_read(writeln!(stdout, "{shown}").and_then(|()| stdout.flush()))?)
}

/// Asks an agent, and waits for the start of the stream: from then on it misses no event. See [`AnswerLines::ask`].
///
/// # Errors
/// No agent answers, or it refuses.
pub fn ask(socket: &Path, request: &ObserveRequest, ends_with_input: bool) -> Result<AnswerLines> {
    AnswerLines::ask(socket, OBSERVE_REQUEST, request, PATIENCE, ends_with_input)
}
