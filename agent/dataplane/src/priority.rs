//! Scheduling of the threads that packets wait for.

/// Highest priority of an ordinary thread.
const NICE: i32 = -20;

/// Schedules the calling thread, and threads that it starts from now on, before all ordinary threads (`SCHED_FIFO`,
/// lowest priority), regardless of the container's share of processor time. Only for threads that run for microseconds
/// at a time. With cgroups of version 1 without a real-time share (`CONFIG_RT_GROUP_SCHED`), only raises the thread's
/// nice value. Needs `CAP_SYS_NICE`; without it, logs `effect`.
pub fn raise(effect: &str) {
    if !schedule(libc::SCHED_FIFO, 1) && !nice(NICE) {
        tracing::debug!("no CAP_SYS_NICE: while processors are busy, {effect}");
    }
}

/// Schedules the calling thread as an ordinary thread again: the effect of [`raise`] would survive `execve(2)`.
pub fn lower() {
    schedule(libc::SCHED_OTHER, 0);
    nice(0);
}

fn schedule(policy: i32, priority: i32) -> bool {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameters outlive the call; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) == 0 }
}

fn nice(value: i32) -> bool {
    // SAFETY: setpriority(2) takes no pointers; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, value) == 0 }
}
