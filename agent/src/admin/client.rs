//! `netpold status`: asks the agent via its control socket.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, anyhow};

use super::{PATIENCE, STATUS_REQUEST};
use crate::cli::{Output, StatusArgs};
use crate::status::{text, understood};

/// Prints the agent's status, as text or JSON.
///
/// # Errors
/// No agent answers, or its answer is not one of this version.
pub fn run(args: &StatusArgs) -> Result<()> {
    let json = request(&args.socket)?;
    let text = match args.output {
        Output::Json => {
            let value: serde_json::Value = understood(&json)?;
            format!("{value:#}\n")
        }
        Output::Text => text(&json)?,
    };
    match anstream::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "an enum of another crate, open to further variants"
)]
fn request(socket: &Path) -> Result<String> {
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
        stream.write_all(format!("{STATUS_REQUEST}\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    exchange().with_context(|| format!("the agent on {shown} does not answer"))
}
