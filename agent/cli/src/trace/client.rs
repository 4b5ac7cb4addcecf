//! Client side: sends the request to the agent of the pod's node, and shows the lines of the answer.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use anyhow::Result;
use futures::StreamExt as _;
use netpold_api::trace::{TRACE_REQUEST, TraceLine, TraceRequest};
use netpold_client::live::{self, ALL_ANSWERED, Agents, SOME_ANSWERED, node_of};
use netpold_client::output::{Output, is_reader_open};
use netpold_client::socket::{AnswerLines, parse_answer};

use super::args::{TraceArgs, arguments};
use super::render::text;

/// Longest time for an agent to load programs, on a busy node.
const LOADING: Duration = Duration::from_mins(1);

/// Shows the judgement of a pod's packets, as text or JSON lines. Returns the exit status.
///
/// # Errors
/// No agent answers, or it refuses.
pub fn run(args: &TraceArgs) -> Result<u8> {
    let request = args.request()?;
    if args.cluster.is_requested() {
        return live::block_on(trace_in_cluster(args, &request));
    }
    trace_on_node(&args.socket, &request, args.cluster.local, args.output)
}

fn trace_on_node(path: &Path, request: &TraceRequest, local: bool, output: Output) -> Result<u8> {
    let mut lines = AnswerLines::send_request(path, TRACE_REQUEST, request, LOADING, local)?;
    while let Some(line) = lines.read()? {
        let parsed = parse_answer(&line)?;
        let is_end = matches!(parsed, TraceLine::Ended { .. });
        if !print_line(&line, parsed, output)? || is_end {
            return Ok(ALL_ANSWERED);
        }
    }
    Ok(if local { ALL_ANSWERED } else { SOME_ANSWERED })
}

async fn trace_in_cluster(args: &TraceArgs, request: &TraceRequest) -> Result<u8> {
    let pod = request.pod().map_err(anyhow::Error::msg)?;
    let node = node_of(&args.cluster, pod).await?;
    let agents = Agents::find(&args.cluster).await?.on_nodes(&BTreeSet::from([node]));
    let arguments = arguments(request);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut lines = pin!(agents.stream(&arguments));
    while let Some((node, line)) = lines.next().await {
        match line {
            Ok(line) => {
                let parsed: TraceLine = parse_answer(&line)?;
                let is_end = matches!(parsed, TraceLine::Ended { .. });
                if !print_line(&line, parsed, args.output)? || is_end {
                    return Ok(ALL_ANSWERED);
                }
            }
            Err(error) => live::report(&[(node, error)]),
        }
    }
    Ok(SOME_ANSWERED)
}

/// Shows a line; returns whether the reader of the output is still there.
fn print_line(line: &str, parsed: TraceLine, output: Output) -> Result<bool> {
    let shown = match output {
        Output::Json => line.to_owned(),
        Output::Text => text(&parsed)?,
    };
    let mut stdout = anstream::stdout().lock();
    Ok(is_reader_open(writeln!(stdout, "{shown}").and_then(|()| stdout.flush()))?)
}
