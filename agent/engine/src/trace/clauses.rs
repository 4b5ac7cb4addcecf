//! Clauses of the kernel's filter for a trace.

use std::net::IpAddr;

use ipnet::IpNet;
use netpold_api::trace::{TracePeer, TraceRequest};
use netpold_core::probe::Party;
use netpold_ebpf::packet::family::V6;
use netpold_ebpf::trace::Clause;

/// Returns the filter clauses for the kernel. `resolve` returns a peer's addresses.
///
/// # Errors
/// `resolve` fails.
pub(crate) fn clauses(
    request: &TraceRequest,
    resolve: impl Fn(&Party) -> Result<Vec<IpAddr>, String>,
) -> Result<Vec<Clause>, String> {
    let protocol = request.protocol.map_or(0, |protocol| protocol.0);
    let port = request.port.unwrap_or(0);
    let any = Clause { protocol, ..Clause::default() };
    let sides = [
        (&request.from, Clause { local_port: port, ..any }),
        (&request.to, Clause { remote_port: port, ..any }),
    ];
    if request.from.is_none() && request.to.is_none() {
        return Ok(vec![Clause { port, ..any }]);
    }
    let mut clauses = Vec::new();
    for (peer, clause) in sides.into_iter().filter_map(|(peer, it)| Some((peer.as_ref()?, it))) {
        let blocks: Vec<IpNet> = match peer {
            TracePeer::Block(block) => vec![*block],
            TracePeer::Party(party) => resolve(party)?.into_iter().map(IpNet::from).collect(),
        };
        clauses.extend(blocks.into_iter().map(|block| with(clause, block)));
    }
    Ok(clauses)
}

/// Restricts a clause to remote addresses of a block.
fn with(clause: Clause, block: IpNet) -> Clause {
    let words = |address: IpAddr| {
        let mut octets = [0; 16];
        match address {
            IpAddr::V4(address) => octets[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => octets = address.octets(),
        }
        V6::words(&octets)
    };
    let family = if block.addr().is_ipv4() { 4 } else { 6 };
    Clause { remote: words(block.network()), mask: words(block.netmask()), family, ..clause }
}

#[cfg(test)]
mod tests {
    use netpold_ebpf::layout::DropEvent;

    use super::*;

    fn request(from: Option<&str>, to: Option<&str>, port: Option<u16>) -> TraceRequest {
        let peer = |text: &str| text.parse().unwrap();
        let (from, to) = (from.map(peer), to.map(peer));
        let (pod, protocol) = ("shop/web".parse().unwrap(), None);
        TraceRequest { pod, from, to, port, protocol, seconds: 60 }
    }

    fn admits(request: &TraceRequest, remote: [u8; 4], local_port: u16, remote_port: u16) -> bool {
        let known = |party: &Party| match party.to_string().as_str() {
            "shop/client" => Ok(vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()]),
            other => Err(format!("no pod {other}")),
        };
        let mut octets = [0; 16];
        octets[..4].copy_from_slice(&remote);
        let event = DropEvent {
            family: 4,
            protocol: 6,
            local_port,
            remote_port,
            remote: octets,
            ..DropEvent::default()
        };
        let clauses = clauses(request, known).unwrap();
        clauses.iter().any(|clause| clause.admits(&event, V6::words(&event.remote)))
    }

    #[test]
    fn a_port_is_that_of_the_side_that_is_connected_to() {
        let from = request(Some("shop/client"), None, Some(80));
        assert!(admits(&from, [10, 0, 0, 7], 80, 4000));
        assert!(!admits(&from, [10, 0, 0, 7], 4000, 80));
        assert!(!admits(&from, [10, 0, 0, 8], 80, 4000));
        let to = request(None, Some("10.0.0.0/29"), Some(80));
        assert!(admits(&to, [10, 0, 0, 7], 4000, 80));
        assert!(!admits(&to, [10, 0, 0, 7], 80, 4000));
        assert!(!admits(&to, [10, 0, 0, 8], 4000, 80));
        let any = request(None, None, Some(80));
        assert!(admits(&any, [10, 0, 0, 8], 4000, 80) && admits(&any, [1, 2, 3, 4], 80, 4000));
        assert!(!admits(&any, [10, 0, 0, 8], 4000, 81));
        let unknown = request(Some("shop/nobody"), None, None);
        let failed = clauses(&unknown, |party| Err(format!("no pod {party}")));
        assert_eq!(failed.unwrap_err(), "no pod shop/nobody");
    }
}
