//! Ctrl-C, turned into something that a program can end orderly on: the guards that clean up do
//! not run when a signal kills the process.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on SIGINT, SIGTERM and SIGHUP no longer kill the process; [`interrupted`] tells of them.
///
/// # Errors
/// Of sigaction(2).
pub fn catch_interrupts() -> Result<()> {
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { sigaction(signal, &action) }.with_context(|| format!("cannot catch {signal}"))?;
    }
    Ok(())
}

/// Whether such a signal came.
#[must_use]
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
