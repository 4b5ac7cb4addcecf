//! Limits on EndpointSlices.
//!
//! A Service with a slice beyond a limit counts as one without ports: its addresses grant nothing of their own, and
//! packets that policy allows by these addresses are judged again after the translation.

use crate::model::EndpointSlice;

/// Addresses and ports of all EndpointSlices of a namespace that count, in the order of the slices' names.
pub const NAMESPACE_BACKENDS: usize = 131_072;
/// Addresses of an EndpointSlice: about as many as it may have endpoints.
pub const SLICE_ADDRESSES: usize = 1024;
/// Ports of an EndpointSlice.
pub const SLICE_PORTS: usize = 4096;

/// Whether a slice alone is beyond the limits.
pub(crate) fn is_too_large(slice: &EndpointSlice) -> bool {
    slice.addresses.len() > SLICE_ADDRESSES || slice.ports.len() > SLICE_PORTS
}

/// Share of a slice in the limit of its namespace.
pub(crate) fn units(slice: &EndpointSlice) -> usize {
    (slice.addresses.len() + slice.ports.len()).max(1)
}

/// The slice as it is kept in memory: of one that is too large, as many addresses and ports as show that.
pub(super) fn kept_slice(mut slice: EndpointSlice) -> EndpointSlice {
    if !is_too_large(&slice) {
        return slice;
    }
    slice.ports.truncate(SLICE_PORTS + 1);
    slice.ports.shrink_to_fit();
    slice.addresses.truncate(SLICE_ADDRESSES + 1);
    let EndpointSlice { addresses, not_ready, terminating, .. } = &mut slice;
    addresses.shrink_to_fit();
    for some in [not_ready, terminating] {
        some.retain(|address| addresses.binary_search(address).is_ok());
        some.shrink_to_fit();
    }
    slice
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::model::{Key, Protocol, SlicePort};

    #[test]
    fn a_slice_that_is_too_large_keeps_a_bounded_part() {
        let slice = |addresses: usize, ports: usize| {
            let address = |n| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n as u32));
            let addresses: Vec<IpAddr> = (0..addresses).map(address).collect();
            let port = |n| SlicePort { name: format!("{n}"), protocol: Protocol::Tcp, port: n };
            EndpointSlice {
                key: Key::new("a", "s"),
                service: "s".into(),
                ports: (0..ports as u16).map(port).collect(),
                not_ready: addresses.clone(),
                terminating: Vec::new(),
                addresses,
            }
        };
        let largest = slice(SLICE_ADDRESSES, SLICE_PORTS);
        assert_eq!(kept_slice(largest.clone()), largest);
        for large in [slice(100_000, 1), slice(1, 20_000), slice(100_000, 20_000)] {
            let kept = kept_slice(large.clone());
            assert!(is_too_large(&kept));
            assert!(kept.addresses.len() <= SLICE_ADDRESSES + 1);
            assert_eq!(kept.not_ready.len(), kept.addresses.len());
            assert!(kept.ports.len() <= SLICE_PORTS + 1);
            assert_eq!(kept_slice(kept.clone()), kept);
        }
    }
}
