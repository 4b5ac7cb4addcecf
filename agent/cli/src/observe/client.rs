//! Client side: asks the agent, or all agents of a cluster, and prints the stream.

use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::path::Path;
use std::pin::pin;

use anyhow::{Context, Result, bail};
use futures::StreamExt as _;
use netpold_api::filter::Request;
use netpold_api::observe::{Line, OBSERVE_REQUEST};
use serde::Deserialize;

use super::args::{ObserveArgs, arguments};
use super::render::text;
use crate::live::{self, ALL, Agents, SOME};
use crate::output::{Output, is_read};
use crate::socket;

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
    let mut lines = Lines::ask(&args.socket, &request)?;
    if args.cluster.local && request.follow {
        lines.end_with_standard_input()?;
    }
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
async fn of_cluster(args: &ObserveArgs, request: &Request) -> Result<u8> {
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
fn time(line: &Line) -> (bool, String) {
    match line {
        Line::Event(event) => (false, event.time.clone()),
        Line::Lost { .. } => (true, String::new()),
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

/// Parses a line of the stream.
///
/// # Errors
/// The line has another format, as of another version's agent, or is a refusal.
pub fn understood(line: &str) -> Result<Line> {
    #[derive(Deserialize)]
    struct Refusal {
        error: String,
    }
    serde_json::from_str(line).or_else(|error| match serde_json::from_str::<Refusal>(line) {
        Ok(refusal) => bail!("the agent refuses: {}", refusal.error),
        Err(_) => Err(error).context("cannot parse the agent's answer; is it another version?"),
    })
}

/// Lines of a stream.
#[derive(Debug)]
pub struct Lines {
    reader: BufReader<socket::Stream>,
}

impl Lines {
    /// Asks an agent, and waits for the start of the stream.
    ///
    /// # Errors
    /// No agent answers.
    pub fn ask(socket: &Path, request: &Request) -> Result<Self> {
        let request = format!("{OBSERVE_REQUEST} {}", serde_json::to_string(request)?);
        let stream = socket::ask(socket, &request)?;
        let mut reader = BufReader::new(stream);
        let mut first = String::new();
        let read = reader.read_line(&mut first);
        read.with_context(|| format!("the agent on {} does not answer", socket.display()))?;
        if !first.trim().is_empty() {
            understood(&first)?;
        }
        // After the first line, the agent sends only when events occur.
        reader.get_ref().set_read_timeout(None)?;
        Ok(Self { reader })
    }

    /// Ends the stream when standard input ends: processes in a pod receive no signal, and a lost connection only
    /// closes their standard input.
    ///
    /// # Errors
    /// The connection cannot be shared.
    pub fn end_with_standard_input(&self) -> io::Result<()> {
        let stream = self.reader.get_ref().try_clone()?;
        std::thread::spawn(move || {
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            let _ = stream.shutdown(Shutdown::Both);
        });
        Ok(())
    }

    /// Returns the next line; `None` if the agent has ended the stream.
    ///
    /// # Errors
    /// The connection failed.
    pub fn read(&mut self) -> io::Result<Option<String>> {
        let mut line = String::new();
        let length = self.reader.read_line(&mut line)?;
        Ok((length > 0).then(|| line.trim_end().to_owned()))
    }
}
