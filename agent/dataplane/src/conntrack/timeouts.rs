//! Timeouts of flows: at most those of the node's own conntrack.
//!
//! After the kernel has forgotten a flow, it may translate its packets to another backend, so no packet may pass as a
//! reply of a flow that only netpold remembers. The kernel's timeouts are sysctls of the network namespace, which exist
//! once conntrack does; each sweep reads them again.

use std::io;
use std::path::Path;

use netpold_ebpf::flow::control::timeouts;
use netpold_ebpf::layout::{
    TIMEOUT_ECHO, TIMEOUT_ONE_WAY, TIMEOUT_OTHER, TIMEOUT_SCTP_ESTABLISHED, TIMEOUT_SCTP_OPENING,
    TIMEOUT_TCP_ANSWERED, TIMEOUT_TCP_CLOSED, TIMEOUT_TCP_ESTABLISHED, TIMEOUT_TCP_FINISHED,
    TIMEOUT_TCP_HALF_CLOSED, TIMEOUT_TCP_OPENING, TIMEOUT_TCP_RESET, TIMEOUT_UDP_ANSWERED,
    TIMEOUT_UDP_STREAM, TIMEOUTS,
};

/// Directory of the sysctls of the calling process's network namespace.
pub const SYSCTLS: &str = "/proc/sys/net/netfilter";

/// The `nf_conntrack_*` sysctls that limit each of netpold's timeouts. For an established flow with a guessed RST, the
/// kernel's entry remains established.
const BOUNDS: [(usize, &[&str]); 13] = [
    (TIMEOUT_TCP_OPENING, &["tcp_timeout_syn_sent"]),
    (TIMEOUT_TCP_ANSWERED, &["tcp_timeout_syn_recv"]),
    (TIMEOUT_TCP_ESTABLISHED, &["tcp_timeout_established"]),
    (TIMEOUT_TCP_RESET, &["tcp_timeout_established"]),
    (TIMEOUT_TCP_FINISHED, &["tcp_timeout_time_wait"]),
    (TIMEOUT_TCP_CLOSED, &["tcp_timeout_close"]),
    (TIMEOUT_ONE_WAY, &["udp_timeout", "generic_timeout", "gre_timeout"]),
    (TIMEOUT_UDP_ANSWERED, &["udp_timeout"]),
    (TIMEOUT_UDP_STREAM, &["udp_timeout_stream"]),
    (TIMEOUT_OTHER, &["generic_timeout", "gre_timeout_stream"]),
    (TIMEOUT_SCTP_OPENING, &["sctp_timeout_cookie_wait", "sctp_timeout_cookie_echoed"]),
    (TIMEOUT_SCTP_ESTABLISHED, &["sctp_timeout_established"]),
    (TIMEOUT_ECHO, &["icmp_timeout", "icmpv6_timeout"]),
];

/// Returns the timeouts in jiffies of a kernel with `hz` ticks per second: netpold's, or the kernel's where these are
/// shorter. `directory` is [`SYSCTLS`]; an empty directory limits nothing, because the kernel tracks nothing then.
#[must_use]
pub fn current(hz: u32, directory: &Path) -> [u32; TIMEOUTS] {
    bounded(hz, |name| seconds(&directory.join(format!("nf_conntrack_{name}"))).ok())
}

fn seconds(path: &Path) -> io::Result<u32> {
    let text = std::fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

fn bounded(hz: u32, kernel: impl Fn(&str) -> Option<u32>) -> [u32; TIMEOUTS] {
    let mut timeouts = timeouts(hz);
    let jiffies = |name: &str| {
        let seconds = kernel(name)?;
        Some(seconds.saturating_mul(hz.max(1)).min(u32::MAX / 4))
    };
    for (index, names) in BOUNDS {
        let bounds = names.iter().filter_map(|name| jiffies(name));
        timeouts[index] = bounds.fold(timeouts[index], u32::min);
    }
    // A flow changes between these two states at its next packet, and clusters raise the second one to an hour for
    // connections that stay half-closed (kube-proxy).
    let half_closed = ["tcp_timeout_fin_wait", "tcp_timeout_close_wait"];
    if let Some(longer) = half_closed.into_iter().filter_map(jiffies).max() {
        timeouts[TIMEOUT_TCP_HALF_CLOSED] = longer.min(timeouts[TIMEOUT_TCP_ESTABLISHED]);
    }
    timeouts
}

#[cfg(test)]
mod tests {
    use super::*;

    const HZ: u32 = 250;

    #[test]
    fn without_conntrack_ours_hold() {
        assert_eq!(current(HZ, Path::new("/nonexistent")), timeouts(HZ));
    }

    #[test]
    fn the_shorter_one_holds() {
        let of = |name: &'static str, seconds| {
            bounded(HZ, move |asked| (asked == name).then_some(seconds))
        };
        for (index, names) in BOUNDS {
            for name in names {
                let seconds = timeouts(HZ)[index] / HZ;
                assert_eq!(of(name, seconds - 1)[index], (seconds - 1) * HZ, "{name}");
                assert_eq!(of(name, seconds + 1)[index], seconds * HZ, "{name}");
            }
        }
        assert_eq!(of("udp_timeout", u32::MAX), timeouts(HZ), "no overflow");
    }

    #[test]
    fn half_closed_connections_are_kept_as_the_cluster_has_it() {
        let half_closed = |fin_wait, close_wait| {
            let timeouts = bounded(HZ, |name| match name {
                "tcp_timeout_fin_wait" => Some(fin_wait),
                "tcp_timeout_close_wait" => Some(close_wait),
                "tcp_timeout_established" => Some(86_400),
                _ => None,
            });
            timeouts[TIMEOUT_TCP_HALF_CLOSED] / HZ
        };
        assert_eq!(half_closed(120, 60), 120, "the kernel's default");
        assert_eq!(half_closed(120, 3_600), 3_600, "kube-proxy's");
        assert_eq!(half_closed(30, 20), 30);
        assert_eq!(half_closed(30, 1_000_000), 86_400, "never longer than an open one");
    }

    /// The names are those of a kernel: a misspelt one would limit nothing.
    #[test]
    fn this_kernel_has_these_names() {
        let directory = Path::new(SYSCTLS);
        if !directory.join("nf_conntrack_udp_timeout").exists() {
            return println!("SKIPPED: this kernel has no conntrack");
        }
        for name in BOUNDS.into_iter().flat_map(|(_, names)| names) {
            let path = directory.join(format!("nf_conntrack_{name}"));
            // Trackers that a kernel may lack.
            let optional = name.starts_with("gre") || name.starts_with("sctp");
            assert!(optional || seconds(&path).is_ok(), "{name}");
        }
        assert!(seconds(&directory.join("nf_conntrack_tcp_timeout_close_wait")).is_ok());
    }
}
