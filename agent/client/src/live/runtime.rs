//! Async runtime of commands that answer and exit.

use std::future::Future;
use std::io;

use anyhow::{Context, Result};
use tokio::sync::oneshot;

/// Runs a future to completion.
///
/// # Errors
/// The future's error, or the process has no more file descriptors or threads.
pub fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    runtime()?.block_on(future)
}

/// Runs a future to completion, and does not wait for work that it left to threads: the process ends.
///
/// # Errors
/// As [`block_on`].
pub fn block_on_and_leave<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = runtime()?;
    let result = runtime.block_on(future);
    runtime.shutdown_background();
    result
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().context("cannot start the runtime")
}

/// Waits for the end of standard input. A long-running command with `--local` must exit then: processes in an agent's
/// pod receive no signal, but a closed connection ends their standard input.
///
/// # Errors
/// There are no more threads.
pub async fn standard_input_ends() -> Result<()> {
    let (sender, ended) = oneshot::channel();
    // The read blocks its own thread, which is never joined.
    let thread = std::thread::Builder::new().name("standard-input".into());
    let read = move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        let _ = sender.send(());
    };
    thread.spawn(read).context("cannot read standard input")?;
    // A dropped sender means the end, too.
    let _ = ended.await;
    Ok(())
}
