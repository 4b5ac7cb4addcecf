//! Connections to an agent's control socket.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};

/// Connection to an agent.
#[cfg(unix)]
pub type Stream = std::os::unix::net::UnixStream;
/// Connection to an agent; none is ever opened, since agents need Linux.
#[cfg(not(unix))]
pub type Stream = std::net::TcpStream;

/// Connects and sends the line of a request.
///
/// # Errors
/// No agent listens there, or this account may not connect.
#[cfg(unix)]
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "an enum of another crate, open to further variants"
)]
pub fn ask(socket: &Path, request: &str) -> Result<Stream> {
    use std::io::{ErrorKind, Write as _};

    use anyhow::anyhow;
    use netpold_api::socket::PATIENCE;

    let shown = socket.display();
    let mut stream = Stream::connect(socket).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => anyhow!(
            "no agent is listening on {shown}: is `netpold run` running, and with this --socket?"
        ),
        ErrorKind::PermissionDenied => {
            anyhow!(
                "permission denied on {shown}: use the account that the agent runs as, such as root"
            )
        }
        _ => anyhow!(error).context(format!("cannot open {shown}")),
    })?;
    let mut send = || {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{request}\n").as_bytes())
    };
    send().with_context(|| format!("the agent on {shown} does not answer"))?;
    Ok(stream)
}

/// Fails: agents need Linux.
///
/// # Errors
/// Always.
#[cfg(not(unix))]
pub fn ask(_: &Path, _: &str) -> Result<Stream> {
    anyhow::bail!("no agent runs on this system: name a cluster with --kubeconfig or --context")
}

/// Sends a request and returns the whole answer.
///
/// # Errors
/// No agent listens there, this account may not connect, or the answer takes more than
/// [`PATIENCE`](netpold_api::socket::PATIENCE).
pub fn answer(socket: &Path, request: &str) -> Result<String> {
    let mut stream = ask(socket, request)?;
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    read.with_context(|| format!("the agent on {} does not answer", socket.display()))?;
    Ok(answer)
}
