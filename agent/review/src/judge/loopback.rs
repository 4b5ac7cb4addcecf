//! Loopback addresses, which no policy regards: a socket's packets to them stay in the network namespace of the sender.

use std::net::IpAddr;

use netpold_core::explain::{Explanation, Verdict};
use netpold_core::probe::{Party, Probe};

/// Answers a probe with a loopback address; `None` for any other.
pub(super) fn explain_loopback(probe: &Probe) -> Option<Explanation> {
    let loopback = |party: &Party| match party {
        Party::Address(address) => is_loopback(*address).then_some(*address),
        Party::Pod(_) | Party::Service(_) => None,
    };
    let (from, to) = (loopback(&probe.from), loopback(&probe.to));
    let address = to.or(from)?;
    if let (None, Party::Pod(pod)) = (from, &probe.from) {
        let note = format!(
            "{address} is a loopback address: these packets stay in pod {pod} (on the host's network: in its node), and \
             no policy applies to them"
        );
        let known = Explanation::unknown(probe, String::new());
        let (verdict, reason, note) = (Verdict::Allow, None, Some(note));
        return Some(Explanation { verdict, reason, note, ..known });
    }
    let reason = format!(
        "{address} is a loopback address: its packets never leave the pod or node that sends them; name the pod, or the \
         address by which the other side sees it"
    );
    Some(Explanation::unknown(probe, reason))
}

/// Returns whether an address is in `127.0.0.0/8` or `::1`, also as an IPv4-mapped one.
fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}
