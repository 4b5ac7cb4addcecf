//! Key of a flow.

use netpold_ebpf::layout::{Ct4Key, Ct6Key};

/// Key of a flow of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKey {
    /// IPv4 key.
    V4(Ct4Key),
    /// IPv6 key.
    V6(Ct6Key),
}

impl FlowKey {
    /// Returns the IP protocol number.
    pub(super) const fn protocol(&self) -> u8 {
        match self {
            Self::V4(key) => key.protocol as u8,
            Self::V6(key) => key.protocol as u8,
        }
    }
}
