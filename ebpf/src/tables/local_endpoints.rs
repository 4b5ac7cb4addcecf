//! Endpoints by the addresses of their pods.

/// Where local pods are. An address that two of them claim is nobody's here: which of them gets the
/// packet is for the node's routes to say.
pub trait LocalEndpoints {
    /// Endpoint slot of the pod with an IPv4 address (`u32::from_be_bytes`).
    fn local4(&self, address: u32) -> Option<u32>;
    /// Endpoint slot of the pod with an IPv6 address, given as words in memory order.
    fn local6(&self, address: [u64; 2]) -> Option<u32>;
}
