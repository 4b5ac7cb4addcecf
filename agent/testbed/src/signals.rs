//! Termination signals as a flag, so that a program can end by itself: destructors do not run when a signal kills it.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Stops SIGINT, SIGTERM and SIGHUP from killing the process; [`interrupted`] reports them.
///
/// # Errors
/// Errors of sigaction(2).
pub fn catch_interrupts() -> Result<()> {
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::SA_RESTART, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { sigaction(signal, &action) }.with_context(|| format!("cannot catch {signal}"))?;
    }
    Ok(())
}

/// Whether one of these signals arrived.
#[must_use]
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
