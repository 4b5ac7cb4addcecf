//! Addresses in the record of an endpoint.

use std::net::IpAddr;

use netpold_ebpf::layout::{ENDPOINT_ADDRS, EP_ADDR4_SHIFT, EP_ADDR6_SHIFT, Endpoint};

/// Maximum number of addresses of a family in a record: half of the slots, so that an update can write new addresses
/// before the former ones become invalid.
const MOST: usize = ENDPOINT_ADDRS / 2;

/// Addresses of a pod, up to the number that a record can hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Addresses {
    v4: Vec<u32>,
    v6: Vec<[u8; 16]>,
    /// Whether the pod has more addresses of a family than a record can hold.
    pub(crate) crowded: bool,
}

impl Addresses {
    /// Takes the first [`MOST`] addresses of each family.
    pub(super) fn first_of_each_family(addresses: &[IpAddr]) -> Self {
        let mut this = Self::default();
        for address in addresses {
            match address {
                IpAddr::V4(v4) => this.v4.push(v4.to_bits()),
                IpAddr::V6(v6) => this.v6.push(v6.octets()),
            }
        }
        this.crowded = this.v4.len() > MOST || this.v6.len() > MOST;
        this.v4.truncate(MOST);
        this.v6.truncate(MOST);
        this
    }

    /// Writes the addresses, and the flags of their slots, into a record without flags. `installed`: the record to be
    /// replaced.
    pub(super) fn place(&self, installed: Option<&Endpoint>, record: &mut Endpoint) {
        let (old4, old6, flags) =
            installed.map_or_else(Default::default, |old| (old.addr4, old.addr6, old.flags));
        let (addr4, valid4) = place(&self.v4, old4, (flags >> EP_ADDR4_SHIFT) as u32);
        let (addr6, valid6) = place(&self.v6, old6, (flags >> EP_ADDR6_SHIFT) as u32);
        record.addr4 = addr4;
        record.addr6 = addr6;
        record.flags = u64::from(valid4 << EP_ADDR4_SHIFT | valid6 << EP_ADDR6_SHIFT);
    }
}

/// Places addresses in slots. Present addresses keep their slot, new ones take invalid slots, and freed slots keep
/// their content.
fn place<T: Copy + PartialEq>(
    wanted: &[T],
    mut slots: [T; ENDPOINT_ADDRS],
    valid: u32,
) -> ([T; ENDPOINT_ADDRS], u32) {
    let is_valid = |slot: usize| valid >> slot & 1 != 0;
    let mut now = 0u32;
    let mut new = Vec::new();
    for address in wanted {
        match (0..ENDPOINT_ADDRS).find(|slot| is_valid(*slot) && slots[*slot] == *address) {
            Some(slot) => now |= 1 << slot,
            None => new.push(*address),
        }
    }
    let free = (0..ENDPOINT_ADDRS).filter(|slot| !is_valid(*slot));
    for (address, slot) in new.into_iter().zip(free) {
        slots[slot] = address;
        now |= 1 << slot;
    }
    (slots, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_keeps_its_slot_and_a_free_slot_its_content() {
        let empty = [0; ENDPOINT_ADDRS];
        let (slots, valid) = place(&[10, 20], empty, 0);
        assert_eq!((slots[..2].to_vec(), valid), (vec![10, 20], 0b11));
        // 20 keeps its slot; 30 takes a slot that no packet reads, not the slot of 10.
        let (slots, valid) = place(&[30, 20], slots, valid);
        assert_eq!((slots[..3].to_vec(), valid), (vec![10, 20, 30], 0b110));
        let (slots, valid) = place(&[20], slots, valid);
        assert_eq!((slots[..3].to_vec(), valid), (vec![10, 20, 30], 0b010));
    }

    #[test]
    fn addresses_beyond_the_room_of_a_record_are_left_out() {
        let of = |addresses: &[&str]| {
            Addresses::first_of_each_family(
                &addresses.iter().map(|it| it.parse().unwrap()).collect::<Vec<_>>(),
            )
        };
        let fits = of(&["10.0.0.1", "10.0.0.2", "fd00::1"]);
        assert!(!fits.crowded && fits.v4.len() == 2 && fits.v6.len() == 1);
        let crowded = of(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
        assert!(crowded.crowded && crowded.v4.len() == MOST);
    }
}
