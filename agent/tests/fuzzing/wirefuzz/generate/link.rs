//! ARP, neighbour discovery and listener discovery messages.

use std::net::IpAddr;

use netpold_testbed::packet::{frame, icmp_packet};
use netpold_testbed::{Offload, ethernet};

use super::{BROADCAST, Draft, Generator};
use crate::wirefuzz::judge::Sent;
use crate::wirefuzz::read;
use crate::wirefuzz::traits::Trait;
use crate::wirefuzz::world::Party;

impl Generator {
    /// Returns an ARP or neighbour discovery message, in its exact form or with more bytes after it.
    pub(super) fn link_message(&mut self, draft: &mut Draft<'_>) -> Option<Sent> {
        let other = self.random.below(draft.world.parties.len());
        let whose = &draft.world.parties[other];
        if draft.party().pod.is_some() && other != draft.sender && self.chance(20) {
            return self.probe(draft, whose);
        }
        let (party, other) = (draft.party(), whose);
        let to = if self.chance(50) { BROADCAST } else { other.mac };
        let mut frames = vec![if self.chance(50) {
            draft.traits.insert(Trait::Arp);
            let long = 14 + self.random.below(1300);
            let length = self.one(&[15, 18, 19, long]);
            let (claimed, asked) = if self.chance(70) { (party, other) } else { (other, party) };
            let (IpAddr::V4(own), IpAddr::V4(theirs)) = (claimed.addresses[0], asked.addresses[0])
            else {
                return None;
            };
            let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1 + self.random.below(2) as u8];
            arp.extend(party.mac);
            arp.extend(own.octets());
            arp.extend(other.mac);
            arp.extend(theirs.octets());
            arp.extend(draft.payload(length));
            ethernet(to, party.mac, 0x0806, &arp)
        } else {
            draft.traits.insert(Trait::Neighbour);
            let whole =
                if self.chance(50) { self.asking(draft) } else { self.discovery(draft, other) };
            frame(to, party.mac, &whole?)
        }];
        if self.chance(10) {
            self.tag(draft, &mut frames);
        }
        self.steal_station(draft, &mut frames);
        let parsed = frames.first().and_then(|frame| read::frame(frame));
        let traits = std::mem::take(&mut draft.traits);
        Some(Sent { sender: draft.sender, frames, traits, offload: Offload::default(), parsed })
    }

    /// Returns a probe for another party's address, or for an address made of the cookie.
    fn probe(&mut self, draft: &mut Draft<'_>, other: &Party) -> Option<Sent> {
        draft.traits.insert(Trait::Probe);
        let party = draft.party();
        let to = if self.chance(50) { BROADCAST } else { other.mac };
        let mut frames = vec![if self.chance(50) {
            let IpAddr::V4(theirs) = other.addresses[0] else { return None };
            let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1 + self.random.below(2) as u8];
            arp.extend(party.mac);
            arp.extend([0; 4]);
            arp.extend(other.mac);
            arp.extend(theirs.octets());
            arp.extend(draft.payload(15));
            ethernet(to, party.mac, 0x0806, &arp)
        } else {
            let target = <[u8; 16]>::try_from(draft.payload(16)).ok()?;
            let [.., a, b, c] = target;
            let group = IpAddr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]);
            let nobody = IpAddr::from([0_u8; 16]);
            let mut whole = icmp_packet((nobody, group), (135, 0), [0; 4], &target);
            whole[7] = 255;
            frame(to, party.mac, &whole)
        }];
        if self.chance(10) {
            self.tag(draft, &mut frames);
        }
        let parsed = frames.first().and_then(|frame| read::frame(frame));
        let traits = std::mem::take(&mut draft.traits);
        Some(Sent { sender: draft.sender, frames, traits, offload: Offload::default(), parsed })
    }

    /// Returns a solicitation in its exact form, for an address made of the cookie.
    fn asking(&mut self, draft: &Draft<'_>) -> Option<Vec<u8>> {
        let IpAddr::V6(target) = IpAddr::from(<[u8; 16]>::try_from(draft.payload(16)).ok()?) else {
            return None;
        };
        let [.., a, b, c] = target.octets();
        let group = IpAddr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]);
        let mut rest = target.octets().to_vec();
        if self.chance(50) {
            rest.extend([1, 1]);
            rest.extend(draft.party().mac);
        }
        let own = draft.party().addresses[1];
        let mut whole = icmp_packet((own, group), (135, 0), [0; 4], &rest);
        whole[7] = 255;
        Some(whole)
    }

    /// Returns a neighbour or listener discovery message with more bytes than its form has.
    fn discovery(&mut self, draft: &Draft<'_>, other: &Party) -> Option<Vec<u8>> {
        let (own, theirs) = (draft.party().addresses[1], other.addresses[1]);
        let kind = self.one(&[133, 134, 135, 136, 137, 130, 131, 132, 143]);
        let claimed = if self.chance(70) { theirs } else { own };
        let IpAddr::V6(target) = claimed else { return None };
        let rest = [&target.octets()[..], &draft.payload(14 + self.random.below(40))].concat();
        let mut whole = icmp_packet((own, theirs), (kind, 0), [0; 4], &rest);
        whole[7] = self.one(&[255, 255, 1, 64]);
        Some(whole)
    }
}
