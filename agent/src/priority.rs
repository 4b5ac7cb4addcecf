//! Scheduling of the threads that packets wait for.

/// Runs the calling thread, and the threads that it starts from now on, before all ordinary ones (`SCHED_FIFO`, lowest
/// priority), however little processor time the container may use. Only for threads that run for microseconds at a time.
/// Needs `CAP_SYS_NICE`; without it, logs `effect`.
pub(crate) fn raise(effect: &str) {
    if !set(libc::SCHED_FIFO, 1) {
        tracing::debug!("no CAP_SYS_NICE: while processors are busy, {effect}");
    }
}

/// Runs the calling thread like any other one. The effect of [`raise`] would survive `execve(2)`.
pub(crate) fn lower() {
    set(libc::SCHED_OTHER, 0);
}

fn set(policy: i32, priority: i32) -> bool {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameters outlive the call, which is about the calling thread.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) == 0 }
}
