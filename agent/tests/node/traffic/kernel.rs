//! Kernels without a feature, simulated for a process by seccomp(2).

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use libc::sock_filter;

/// Offsets in `struct seccomp_data`: number of the system call, and its first argument.
const NUMBER: u32 = 0;
const ARGUMENT: u32 = 16;
const BPF_PROG_QUERY: u32 = 16;
const BPF_BTF_LOAD: u32 = 18;

const fn step(code: u32, jump_if: u8, jump_else: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: jump_if, jf: jump_else, k }
}

const fn load(offset: u32) -> sock_filter {
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}

/// Continues if the value is equal, else skips some steps.
const fn unless(value: u32, skip: u8) -> sock_filter {
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skip, value)
}

const fn answer(action: u32) -> sock_filter {
    step(libc::BPF_RET | libc::BPF_K, 0, 0, action)
}

const ALLOW: sock_filter = answer(libc::SECCOMP_RET_ALLOW);

const fn error(errno: libc::c_int) -> sock_filter {
    answer(libc::SECCOMP_RET_ERRNO | errno as u32)
}

static NO_BPF: [sock_filter; 4] =
    [load(NUMBER), unless(libc::SYS_bpf as u32, 1), error(libc::ENOSYS), ALLOW];

static NO_TCX: [sock_filter; 6] = [
    load(NUMBER),
    unless(libc::SYS_bpf as u32, 3),
    load(ARGUMENT),
    unless(BPF_PROG_QUERY, 1),
    error(libc::EINVAL),
    ALLOW,
];

static NO_BTF: [sock_filter; 6] = [
    load(NUMBER),
    unless(libc::SYS_bpf as u32, 3),
    load(ARGUMENT),
    unless(BPF_BTF_LOAD, 1),
    error(libc::EINVAL),
    ALLOW,
];

/// Filter that passes every bpf(2) call to a listener.
pub(crate) static NOTIFY_OF_BPF: [sock_filter; 4] =
    [load(NUMBER), unless(libc::SYS_bpf as u32, 1), answer(libc::SECCOMP_RET_USER_NOTIF), ALLOW];

/// Refuses every bpf(2) call.
pub(crate) fn without_bpf(command: &mut Command) {
    filtered(command, &NO_BPF);
}

/// Answers the query for TCX as a kernel before 6.6 does.
pub(crate) fn without_tcx(command: &mut Command) {
    filtered(command, &NO_TCX);
}

/// Refuses BTF, as a kernel built without it does.
pub(crate) fn without_btf(command: &mut Command) {
    filtered(command, &NO_BTF);
}

#[expect(clippy::multiple_unsafe_ops_per_block, reason = "system calls in a row")]
fn filtered(command: &mut Command, filter: &'static [sock_filter]) {
    let install = || {
        let length = filter.len() as u16;
        let program = libc::sock_fprog { len: length, filter: filter.as_ptr().cast_mut() };
        // SAFETY: the pointers are to a local and a static of the right types; the kernel only
        // reads them.
        let done = unsafe {
            let mode = libc::SECCOMP_MODE_FILTER;
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) == 0
        };
        done.then_some(()).ok_or_else(io::Error::last_os_error)
    };
    // SAFETY: the closure only makes prctl system calls, which are async-signal-safe.
    unsafe { command.pre_exec(install) };
}
