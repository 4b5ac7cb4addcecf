//! `netpold status` and `netpold rules`: ask the agent via its control socket.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, anyhow};

use super::{PATIENCE, RULES_REQUEST, STATUS_REQUEST};
use crate::cli::{Output, RulesArgs, StatusArgs};
use crate::rule_use::{self, Answer};
use crate::status::{text, understood};

/// Prints the agent's status, as text or JSON.
///
/// # Errors
/// No agent answers, or its answer is not one of this version.
pub fn run(args: &StatusArgs) -> Result<()> {
    let json = request(&args.socket, STATUS_REQUEST)?;
    let text = match args.output {
        Output::Json => {
            let value: serde_json::Value = understood(&json)?;
            format!("{value:#}\n")
        }
        Output::Text => text(&json)?,
    };
    print(&text)
}

/// Prints what rules were used for, as text or JSON.
///
/// # Errors
/// As for [`run`].
pub fn rules(args: &RulesArgs) -> Result<()> {
    let json = request(&args.socket, RULES_REQUEST)?;
    let mut answer: Answer = understood(&json)?;
    answer.select(args.namespace.as_deref(), args.unused);
    print(&match args.output {
        Output::Json => format!("{:#}\n", serde_json::to_value(&answer)?),
        Output::Text => rule_use::text(&answer)?,
    })
}

fn print(text: &str) -> Result<()> {
    match anstream::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "an enum of another crate, open to further variants"
)]
fn request(socket: &Path, request: &str) -> Result<String> {
    let shown = socket.display();
    let mut stream = UnixStream::connect(socket).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => anyhow!(
            "no agent is listening on {shown}: is `netpold run` running, and with this --socket?"
        ),
        ErrorKind::PermissionDenied => {
            anyhow!("{shown} may not be opened: use the account that the agent runs as, as root")
        }
        _ => anyhow!(error).context(format!("{shown} cannot be opened")),
    })?;
    let mut exchange = || {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{request}\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    exchange().with_context(|| format!("the agent on {shown} does not answer"))
}
