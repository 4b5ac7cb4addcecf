//! Probes: whether a packet arrives and its answer returns.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Once;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollTimeout, poll};

use crate::ProbeProtocol;
use crate::host::Host;

mod attempt;
mod result;

use attempt::Attempt;
pub(crate) use attempt::nonce;
pub use result::ProbeResult;

/// A question whether `from` reaches an address and port.
#[derive(Clone, Copy, Debug)]
pub struct ReachProbe<'a> {
    /// Source, a pod or node.
    pub from: &'a Host,
    /// Protocol of the request.
    pub protocol: ProbeProtocol,
    /// Destination address.
    pub to: IpAddr,
    /// Destination port; without meaning for ICMP.
    pub port: u16,
}

impl Host {
    /// Sends one probe; for many at once see [`probe_all`].
    #[must_use]
    pub fn probe(
        &self,
        protocol: ProbeProtocol,
        to: IpAddr,
        port: u16,
        timeout: Duration,
    ) -> ProbeResult {
        let probe = ReachProbe { from: self, protocol, to, port };
        let failed = || ProbeResult::Failed("no answer from the prober".into());
        probe_all(&[probe], timeout).pop().unwrap_or_else(failed)
    }
}

/// Sends many probes at the same time and returns results in their order, after about the time of one probe that times
/// out. Requests without a connection are repeated once, after half the timeout.
#[must_use]
pub fn probe_all(probes: &[ReachProbe<'_>], timeout: Duration) -> Vec<ProbeResult> {
    raise_file_limit();
    let mut by_host: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, probe) in probes.iter().enumerate() {
        by_host.entry(probe.from.netns().name()).or_default().push(index);
    }
    let mut results = vec![ProbeResult::Timeout; probes.len()];
    std::thread::scope(|scope| {
        let threads: Vec<_> = by_host
            .values()
            .map(|indexes| {
                let mine: Vec<ReachProbe<'_>> = indexes.iter().map(|i| probes[*i]).collect();
                (indexes, scope.spawn(move || probe_from_one(&mine, timeout)))
            })
            .collect();
        for (indexes, thread) in threads {
            let answers = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            for (index, answer) in indexes.iter().zip(answers) {
                results[*index] = answer;
            }
        }
    });
    results
}

/// Sends all probes of one host: opens the sockets inside its namespace, then runs one poll loop.
fn probe_from_one(probes: &[ReachProbe<'_>], timeout: Duration) -> Vec<ProbeResult> {
    let Some(first) = probes.first() else { return Vec::new() };
    let open = || -> Vec<io::Result<Attempt>> {
        probes.iter().map(|p| Attempt::open(p.protocol, SocketAddr::new(p.to, p.port))).collect()
    };
    let opened = match first.from.run(open) {
        Ok(opened) => opened,
        Err(e) => return vec![ProbeResult::Failed(format!("{e:#}")); probes.len()],
    };
    let mut results: Vec<Option<ProbeResult>> = Vec::with_capacity(probes.len());
    let mut running = Vec::with_capacity(probes.len());
    for (index, attempt) in opened.into_iter().enumerate() {
        let started = attempt.and_then(|mut a| a.start().map(|()| a));
        results.push(started.as_ref().err().map(from_error));
        running.extend(started.ok().map(|attempt| (index, attempt)));
    }
    wait(running, &mut results, timeout);
    results.into_iter().map(|r| r.unwrap_or(ProbeResult::Timeout)).collect()
}

fn wait(
    mut running: Vec<(usize, Attempt)>,
    results: &mut [Option<ProbeResult>],
    timeout: Duration,
) {
    let start = Instant::now();
    let (middle, end) = (start + timeout / 2, start + timeout);
    let mut repeated = false;
    while !running.is_empty() {
        let now = Instant::now();
        let until = if repeated { end } else { middle };
        let left = until.saturating_duration_since(now).as_millis();
        let mut fds: Vec<PollFd<'_>> =
            running.iter().map(|(_, a)| PollFd::new(a.socket().as_fd(), a.interest())).collect();
        let count = poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO));
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        let mut ready = ready.into_iter();
        running.retain_mut(|(index, attempt)| {
            if ready.next() == Some(true) {
                results[*index] = attempt.turn().unwrap_or_else(|e| Some(from_error(&e)));
            }
            results[*index].is_none()
        });
        // The timeout counts only after a poll that found no socket ready: if this thread did not run for a while,
        // answers may be there nevertheless.
        if count == Ok(0) && now >= end {
            return;
        }
        if !repeated && now >= middle {
            repeated = true;
            for (_, attempt) in &mut running {
                let _ = attempt.repeat();
            }
        }
    }
}

fn from_error(error: &io::Error) -> ProbeResult {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED | libc::ECONNRESET | libc::ENOPROTOOPT | libc::EPROTO) => {
            ProbeResult::Refused
        }
        Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN) => ProbeResult::Unreachable,
        _ => ProbeResult::Failed(error.to_string()),
    }
}

/// Raises the soft limit of open files, usually 1,024: a matrix of probes holds a thousand sockets open.
fn raise_file_limit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the pointer is to a local of the right type.
        if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
            limit.rlim_cur = limit.rlim_max;
            // SAFETY: as above.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        }
    });
}
