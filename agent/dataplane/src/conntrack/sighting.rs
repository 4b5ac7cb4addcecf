//! A flow in the flow table, as a pass hands it to observers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use netpold_ebpf::flow::cached_verdict::CachedVerdict;
use netpold_ebpf::flow::control::Control;
use netpold_ebpf::flow::key::FlowTableKey;
use netpold_ebpf::layout::{Ct4Key, Ct6Key};

use super::key::FlowKey;

/// A flow that a pass visits. A pass visits expired flows too, before it removes them.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'t> {
    /// Number of the way, counted through both tables in the order of a pass.
    pub way: u32,
    /// Control word of the way.
    pub control: Control,
    /// Time of the pass, in jiffies.
    pub now: u32,
    /// Ticks per second.
    pub hz: u32,
    /// Words of the way.
    pub(super) words: &'t [AtomicU64],
}

/// Endpoint, remote address, ports and protocol of a flow of either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointFlow {
    /// Number of the endpoint.
    pub endpoint: u32,
    /// Address of the other side.
    pub remote: IpAddr,
    /// Port of the pod.
    pub local_port: u16,
    /// Port of the other side.
    pub remote_port: u16,
    /// IP protocol number.
    pub protocol: u8,
}

impl<'t> Sighting<'t> {
    /// Creates the sighting of a flow. `words`: words of the flow's way, the control word first.
    #[must_use]
    pub const fn new(
        way: u32,
        control: Control,
        (now, hz): (u32, u32),
        words: &'t [AtomicU64],
    ) -> Self {
        Self { way, control, now, hz, words }
    }

    /// Returns the time since the flow's last packet.
    #[must_use]
    pub fn idle(&self) -> Duration {
        Duration::from_secs(self.control.age(self.now).into()) / self.hz.max(1)
    }

    /// Returns the flow's tuple; `None` if the way is being written.
    #[must_use]
    pub fn tuple(&self) -> Option<EndpointFlow> {
        let key = match self.words.len() {
            <[u64; 2] as FlowTableKey>::STRIDE => {
                // SAFETY: the words have the memory layout of the key, and every value of them is a valid key.
                FlowKey::V4(unsafe { std::mem::transmute::<[u64; 2], Ct4Key>(self.key()) })
            }
            _ => {
                // SAFETY: as for IPv4.
                FlowKey::V6(unsafe { std::mem::transmute::<[u64; 4], Ct6Key>(self.key()) })
            }
        };
        // Orders this check after the reads of the key.
        fence(Ordering::Acquire);
        let again = Control(self.words[0].load(Ordering::Relaxed));
        let same = again.is_valid() && again.incarnation() == self.control.incarnation();
        same.then(|| key.into())
    }

    /// Returns the cached verdict of the way, of any policy revision and any incarnation of the way.
    #[must_use]
    pub fn cached_verdict(&self) -> CachedVerdict {
        let key = match self.words.len() {
            <[u64; 2] as FlowTableKey>::STRIDE => <[u64; 2] as FlowTableKey>::WORDS,
            _ => <[u64; 4] as FlowTableKey>::WORDS,
        };
        CachedVerdict(self.words[1 + key].load(Ordering::Relaxed))
    }

    fn key<const WORDS: usize>(&self) -> [u64; WORDS] {
        std::array::from_fn(|index| self.words[1 + index].load(Ordering::Relaxed))
    }
}

impl From<FlowKey> for EndpointFlow {
    fn from(key: FlowKey) -> Self {
        match key {
            FlowKey::V4(Ct4Key { endpoint, remote, local_port, remote_port, protocol }) => Self {
                endpoint,
                remote: Ipv4Addr::from(remote).into(),
                local_port,
                remote_port,
                protocol: protocol as u8,
            },
            FlowKey::V6(Ct6Key { endpoint, remote, local_port, remote_port, protocol, .. }) => {
                Self {
                    endpoint,
                    remote: Ipv6Addr::from(remote).into(),
                    local_port,
                    remote_port,
                    protocol: protocol as u8,
                }
            }
        }
    }
}
