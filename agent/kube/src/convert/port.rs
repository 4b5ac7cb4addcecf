//! Protocols and names of ports.

use netpold_core::model::Protocol;

/// Returns the protocol of a field: absent means TCP; `None` if the API has no such protocol.
#[must_use]
pub fn protocol(name: Option<&str>) -> Option<Protocol> {
    match name {
        None | Some("TCP") => Some(Protocol::Tcp),
        Some("UDP") => Some(Protocol::Udp),
        Some("SCTP") => Some(Protocol::Sctp),
        Some(_) => None,
    }
}

/// Returns whether a name is an IANA service name (RFC 6335 section 5.1), as the API server checks it.
pub(super) fn is_port_name(name: &str) -> bool {
    (1..=15).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && name.bytes().any(|b| b.is_ascii_lowercase())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}
