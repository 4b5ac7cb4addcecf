//! Waiting, in commands that answer and end.

use std::future::Future;
use std::io;

use anyhow::{Context, Result};
use tokio::sync::oneshot;

/// Runs a future to its end.
///
/// # Errors
/// Of the future, or the process has no more file descriptors or threads.
pub fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(future)
}

/// Waits until standard input ends. A command that goes on until it is told to stop must stop then if it has
/// `--local`: nobody signals a process in an agent's pod, but the end of the connection ends its standard input.
///
/// # Errors
/// There are no more threads.
pub async fn standard_input_ends() -> Result<()> {
    let (sender, ended) = oneshot::channel();
    // A thread of its own, which blocks: nobody waits for it.
    let thread = std::thread::Builder::new().name("standard-input".into());
    let read = move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = sender.send(());
    };
    thread.spawn(read).context("cannot read standard input")?;
    // It ends either way.
    let _ = ended.await;
    Ok(())
}
