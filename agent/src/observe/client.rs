//! The command's side: asks the agent, and shows what comes.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::args::ObserveArgs;
use super::event::Line;
use super::filter::Request;
use super::render::text;
use super::server::OBSERVE_REQUEST;
use crate::output::Output;
use crate::socket;

/// Shows what happens, as text or JSON lines.
///
/// # Errors
/// No agent answers, or it ends before all is said.
pub fn run(args: &ObserveArgs) -> Result<()> {
    let request = args.request()?;
    let mut lines = Lines::ask(&args.socket, &request)?;
    let mut output = anstream::stdout().lock();
    while let Some(line) = lines.read()? {
        let shown = match args.output {
            Output::Json => line,
            Output::Text => text(&understood(&line)?)?,
        };
        match writeln!(output, "{shown}").and_then(|()| output.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
    if request.follow {
        bail!(
            "the agent on {} has ended the stream: it ended, or serves others",
            args.socket.display()
        );
    }
    Ok(())
}

/// A line of the stream.
///
/// # Errors
/// It is none, as of another version's agent, or the agent refuses.
pub fn understood(line: &str) -> Result<Line> {
    #[derive(Deserialize)]
    struct Refusal {
        error: String,
    }
    serde_json::from_str(line).or_else(|error| match serde_json::from_str::<Refusal>(line) {
        Ok(refusal) => bail!("the agent refuses: {}", refusal.error),
        Err(_) => {
            Err(error).context("the agent's answer is not understood; is it another version?")
        }
    })
}

/// The lines of a stream.
#[derive(Debug)]
pub struct Lines {
    reader: BufReader<std::os::unix::net::UnixStream>,
}

impl Lines {
    /// Asks an agent, and waits until it has begun.
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
        // From here on it speaks when something happens.
        reader.get_ref().set_read_timeout(None)?;
        Ok(Self { reader })
    }

    /// The next line; none: the agent has ended the stream.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn read(&mut self) -> io::Result<Option<String>> {
        let mut line = String::new();
        let length = self.reader.read_line(&mut line)?;
        Ok((length > 0).then(|| line.trim_end().to_owned()))
    }
}
