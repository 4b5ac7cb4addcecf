//! Links of the agent's namespace (veths, other devices, bridge ports), and their last reported state.

use std::collections::BTreeMap;

use crate::device::{Device, LinkTable};
use crate::event::DiscoveryEvent;
use crate::message::LinkEvent;
use crate::table::VethTable;

/// Links of the agent's namespace, and their last reported state.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    pub(super) veths: VethTable,
    devices: LinkTable<Device>,
    /// Bridge of each bridge port.
    ports: LinkTable<u32>,
}

impl Inventory {
    /// Applies a link message: the link, and its bridge if it is a port.
    pub(super) fn set_link(&mut self, (link, bridge): (LinkEvent, Option<u32>)) {
        match link {
            LinkEvent::Now(veth) => {
                self.ports.is(veth.index, bridge);
                self.veths.set_link(veth);
            }
            LinkEvent::Other(index, device) => {
                self.ports.is(index, bridge);
                self.devices.is(index, Some(device));
            }
            LinkEvent::Gone(index) => {
                self.veths.remove_link(index);
                self.devices.remove_link(index);
                self.ports.remove_link(index);
            }
        }
    }

    /// Replaces all links by a complete list. `lost`: events before it are missing, see [`VethTable::set_links`].
    pub(super) fn set_links(&mut self, links: Vec<(LinkEvent, Option<u32>)>, lost: bool) {
        let (mut veths, mut devices, mut ports) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for (link, bridge) in links {
            let index = match link {
                LinkEvent::Now(veth) => {
                    veths.push(veth);
                    veths.last().map(|veth| veth.index)
                }
                LinkEvent::Other(index, device) => {
                    devices.insert(index, device);
                    Some(index)
                }
                LinkEvent::Gone(_) => None,
            };
            ports.extend(index.zip(bridge));
        }
        self.veths.set_links(veths, lost);
        self.devices.are(devices);
        self.ports.are(ports);
    }

    /// Returns the differences to the last reported state, and stores the current state as reported.
    pub(super) fn differences(&mut self) -> Vec<DiscoveryEvent> {
        let mut events = self.veths.differences();
        let inner = self.veths.inner().map(|(index, name)| (index, Device::inner(name.to_owned())));
        events.extend(self.devices.difference_with(inner.collect()).map(DiscoveryEvent::Devices));
        events.extend(self.ports.difference().map(DiscoveryEvent::Ports));
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::VethLink;

    fn veth(index: u32) -> LinkEvent {
        let name = format!("veth{index}");
        let (peer, namespace) = (2, Some(0));
        LinkEvent::Now(VethLink {
            index,
            peer,
            namespace,
            leads_away: true,
            name,
            ..VethLink::default()
        })
    }

    fn uplink(index: u32) -> LinkEvent {
        LinkEvent::Other(index, Device::new("eth0".into(), "", 1, false))
    }

    /// Returns the indexes of the reported veths, devices and ports.
    fn told(inventory: &mut Inventory) -> [Option<Vec<u32>>; 3] {
        let mut told: [Option<Vec<u32>>; 3] = [None, None, None];
        for event in inventory.differences() {
            match event {
                DiscoveryEvent::Veth(veth) => told[0].get_or_insert_default().push(veth.index),
                DiscoveryEvent::Devices(devices) => told[1] = Some(devices.into_keys().collect()),
                DiscoveryEvent::Ports(ports) => told[2] = Some(ports.into_keys().collect()),
                DiscoveryEvent::VethGone(_)
                | DiscoveryEvent::OwnAddresses(_)
                | DiscoveryEvent::InSync => {}
            }
        }
        told
    }

    #[test]
    fn a_listing_says_what_events_say_link_by_link() {
        let links = || vec![(veth(7), Some(5)), (veth(8), None), (uplink(3), Some(5))];
        let (mut listed, mut followed) = (Inventory::default(), Inventory::default());
        listed.set_links(links(), false);
        links().into_iter().for_each(|link| followed.set_link(link));
        let all = told(&mut listed);
        assert_eq!(all, [Some(vec![7, 8]), Some(vec![3]), Some(vec![3, 7])]);
        assert_eq!(told(&mut followed), all);
        followed.set_link((LinkEvent::Gone(3), None));
        assert_eq!(told(&mut followed), [None, Some(vec![]), Some(vec![7])]);
        listed.set_links(vec![(veth(7), Some(5)), (veth(8), None)], false);
        assert_eq!(told(&mut listed), [None, Some(vec![]), Some(vec![7])]);
    }
}
