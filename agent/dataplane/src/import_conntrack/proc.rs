//! `/proc/net/nf_conntrack`: a line for each flow.
//!
//! `ipv4 2 tcp 6 86397 ESTABLISHED src=… dst=… sport=… dport=… [UNREPLIED] src=… dst=… sport=… dport=… [ASSURED] mark=0
//! …` (`net/netfilter/nf_conntrack_standalone.c`). Numbers are decimal; IPv6 addresses are written in full.

use std::collections::HashSet;
use std::fs;
use std::io::{self, ErrorKind};

use netpold_ebpf::packet::protocol::TCP;

use super::entry::{ConntrackEntry, KernelFlow, PartialTuple};

/// Path for the calling thread: threads of one process may be in several network namespaces.
const PATH: &str = "/proc/thread-self/net/nf_conntrack";
/// Names in the order of `enum tcp_conntrack`, from NONE on.
const TCP_STATES: [&str; 10] = [
    "NONE",
    "SYN_SENT",
    "SYN_RECV",
    "ESTABLISHED",
    "FIN_WAIT",
    "CLOSE_WAIT",
    "LAST_ACK",
    "TIME_WAIT",
    "CLOSE",
    "SYN_SENT2",
];

/// Reads all flows of the calling thread's network namespace. Kernels before 6.18 resume a read by the number of
/// flows shown, so they skip a flow if another one ends between two reads. So the file is read twice.
///
/// # Errors
/// The kernel is built without the file, or writes it in another format.
pub(super) fn flows() -> io::Result<Vec<KernelFlow>> {
    let (mut seen, mut flows) = (HashSet::new(), Vec::new());
    for _ in 0..2 {
        for line in fs::read_to_string(PATH)?.lines() {
            let entry = parse(line).ok_or_else(|| io::Error::from(ErrorKind::InvalidData))?;
            if seen.insert((entry.original, entry.reply)) {
                flows.extend(entry.flow());
            }
        }
    }
    Ok(flows)
}

/// Parses a line; `None` if it is malformed.
fn parse(line: &str) -> Option<ConntrackEntry> {
    let mut words = line.split_ascii_whitespace().peekable();
    // Family and its number, protocol and its number; the protocol's name may be "unknown".
    let protocol: u8 = words.nth(3)?.parse().ok()?;
    // A flow in hardware or a flowtable has no timeout.
    let remaining = words.next_if(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
    let remaining = match remaining {
        Some(seconds) => Some(seconds.parse().ok()?),
        None => None,
    };
    let (mut tcp_state, mut replied, mut assured) = (0, true, false);
    if protocol == TCP {
        let state = words.next()?;
        tcp_state = TCP_STATES.iter().position(|name| *name == state)? as u8;
    }
    let (mut tuples, mut tuple) = (Vec::with_capacity(2), PartialTuple::default());
    for word in words {
        match word {
            "[UNREPLIED]" => replied = false,
            "[ASSURED]" => assured = true,
            _ => {
                let Some((name, value)) = word.split_once('=') else { continue };
                if name == "src" {
                    tuples.extend(std::mem::take(&mut tuple).whole(protocol));
                }
                read(&mut tuple, name, value)?;
            }
        }
    }
    tuples.extend(tuple.whole(protocol));
    let [original, reply] = tuples.try_into().ok()?;
    let picked_up = None;
    Some(ConntrackEntry { original, reply, remaining, tcp_state, picked_up, replied, assured })
}

/// Sets a field of a tuple; `None` if the value is malformed.
fn read(tuple: &mut PartialTuple, name: &str, value: &str) -> Option<()> {
    match name {
        "src" => tuple.source = Some(value.parse().ok()?),
        "dst" => tuple.destination = Some(value.parse().ok()?),
        "sport" | "id" => tuple.source_port = value.parse().ok()?,
        "dport" => tuple.destination_port = value.parse().ok()?,
        "type" => tuple.message = Some(value.parse().ok()?),
        _ => {}
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use netpold_ebpf::layout::{CT_FIN_INGRESS, CT_REPLIED, CT_STREAM};

    use super::*;

    #[test]
    fn lines_are_understood() {
        let udp = "ipv4     2 udp      17 179 src=10.0.0.1 dst=10.96.0.10 sport=4000 dport=53 packets=4 bytes=9 \
                   src=10.0.0.2 dst=10.0.0.1 sport=5353 dport=4000 [ASSURED] mark=0 secctx=null zone=1 use=2";
        let flow = parse(udp).unwrap().flow().unwrap();
        assert_eq!(flow.remaining, Some(179));
        assert_eq!(flow.flags, CT_REPLIED | CT_STREAM);
        let (_, [sent, on]) = flow.sent_on().unwrap();
        let told = |[from, to]: [std::net::SocketAddr; 2]| format!("{from} {to}");
        assert_eq!(told(sent), "10.0.0.1:4000 10.96.0.10:53");
        assert_eq!(told(on), "10.0.0.1:4000 10.0.0.2:5353");

        let tcp = "ipv6     10 tcp      6 9 LAST_ACK src=2001:0db8:0000:0000:0000:0000:0000:0001 \
                   dst=2001:0db8:0000:0000:0000:0000:0000:0002 sport=1 dport=2 \
                   src=2001:0db8:0000:0000:0000:0000:0000:0002 dst=2001:0db8:0000:0000:0000:0000:0000:0001 \
                   sport=2 dport=1 [ASSURED] mark=0 use=1";
        let flow = parse(tcp).unwrap().flow().unwrap();
        assert_eq!(flow.flags, CT_REPLIED | CT_FIN_INGRESS);
        assert_eq!(flow.seen_from_start, None, "not in this file");
        let over = tcp.replace("LAST_ACK", "TIME_WAIT");
        assert!(parse(&over).unwrap().flow().is_none());

        let sctp = "ipv4 2 sctp 132 209 ESTABLISHED src=10.0.0.2 dst=10.0.0.1 sport=1 dport=2 src=10.0.0.1 dst=10.0.0.2 \
                    sport=2 dport=1 [ASSURED] mark=0 use=1";
        let opening = tcp.replace("LAST_ACK", "SYN_SENT");
        for (line, seen) in [(udp, true), (sctp, false), (opening.as_str(), true)] {
            assert_eq!(parse(line).unwrap().flow().unwrap().seen_from_start, Some(seen), "{line}");
        }

        let offloaded = "ipv4 2 tcp 6 ESTABLISHED src=10.0.0.1 dst=10.0.0.2 sport=1 dport=2 src=10.0.0.2 \
                         dst=10.0.0.1 sport=2 dport=1 [OFFLOAD] mark=0 use=1";
        assert_eq!(parse(offloaded).unwrap().remaining, None);
        for other in
            ["", "ipv4 2 tcp 6 9", "ipv4 2 udp 17 3 src=10.0.0.1 dst=10.0.0.2 sport=1 dport=2"]
        {
            assert!(parse(other).is_none(), "{other}");
        }
    }
}
