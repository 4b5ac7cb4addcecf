//! Endpoints by the addresses of their pods.

/// Lookup of local pods by address. An address that two of them claim is in no table, since the node's routes decide
/// which of them gets the packet.
pub trait LocalEndpoints {
    /// Endpoint slot of the pod with an IPv4 address (`u32::from_be_bytes`).
    fn local4(&self, address: u32) -> Option<u32>;
    /// Endpoint slot of the pod with an IPv6 address, given as words in memory order.
    fn local6(&self, address: [u64; 2]) -> Option<u32>;
}
