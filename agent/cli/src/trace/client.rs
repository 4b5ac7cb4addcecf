//! Client side: sends the request to the agent of the pod's node, and shows the lines of the answer.

use std::collections::BTreeSet;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::Shutdown;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::StreamExt as _;
use netpold_api::trace::{Line, Request, TRACE_REQUEST};
use netpold_core::printable::printable;

use super::args::{TraceArgs, arguments};
use super::render::text;
use crate::live::{self, ALL, Agents, SOME, node_of};
use crate::output::{Output, is_read};
use crate::socket;

/// Longest time for an agent to load programs, on a busy node.
const LOADING: Duration = Duration::from_mins(1);

/// Shows the judgement of a pod's packets, as text or JSON lines. Returns the exit status.
///
/// # Errors
/// No agent answers, or it refuses.
pub fn run(args: &TraceArgs) -> Result<u8> {
    let request = args.request()?;
    if args.cluster.is_meant() {
        return live::block_on(of_cluster(args, &request));
    }
    of_node(&args.socket, &request, args.cluster.local, args.output)
}

fn of_node(path: &Path, request: &Request, local: bool, output: Output) -> Result<u8> {
    let asked = format!("{TRACE_REQUEST} {}", serde_json::to_string(request)?);
    let stream = socket::ask(path, &asked)?;
    stream.set_read_timeout(Some(LOADING))?;
    if local {
        // A process in a pod gets no signal: a lost connection only ends its standard input.
        let stream = stream.try_clone()?;
        std::thread::spawn(move || {
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            let _ = stream.shutdown(Shutdown::Both);
        });
    }
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        let read = reader.read_line(&mut line);
        let silent = || format!("the agent on {} does not answer", path.display());
        if read.with_context(silent)? == 0 {
            return Ok(if local { ALL } else { SOME });
        }
        // From here on the agent sends lines only for packets.
        reader.get_ref().set_read_timeout(None)?;
        let understood = understood(line.trim_end())?;
        let is_end = matches!(understood, Line::Ended { .. });
        if !show(line.trim_end(), understood, output)? || is_end {
            return Ok(ALL);
        }
    }
}

async fn of_cluster(args: &TraceArgs, request: &Request) -> Result<u8> {
    let pod = request.pod().map_err(anyhow::Error::msg)?;
    let node = node_of(&args.cluster, pod).await?;
    let agents = Agents::find(&args.cluster).await?.of(&BTreeSet::from([node]));
    let arguments = arguments(request);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut lines = pin!(agents.stream(&arguments));
    while let Some((node, line)) = lines.next().await {
        match line {
            Ok(line) => {
                let understood = understood(&line)?;
                let is_end = matches!(understood, Line::Ended { .. });
                if !show(&line, understood, args.output)? || is_end {
                    return Ok(ALL);
                }
            }
            Err(error) => live::report(&[(node, error)]),
        }
    }
    Ok(SOME)
}

/// Parses a line of the stream.
fn understood(line: &str) -> Result<Line> {
    let line = serde_json::from_str(line)
        .context("cannot parse the agent's answer; is it another version?")?;
    match line {
        Line::Refused { error } => bail!("the agent refuses: {}", printable(&error)),
        line
        @ (Line::Started { .. } | Line::Packet(_) | Line::Lost { .. } | Line::Ended { .. }) => {
            Ok(line)
        }
    }
}

/// Shows a line; returns whether the reader of the output is still there.
fn show(line: &str, understood: Line, output: Output) -> Result<bool> {
    let shown = match output {
        Output::Json => line.to_owned(),
        Output::Text => text(&understood)?,
    };
    let mut stdout = anstream::stdout().lock();
    Ok(is_read(writeln!(stdout, "{shown}").and_then(|()| stdout.flush()))?)
}
