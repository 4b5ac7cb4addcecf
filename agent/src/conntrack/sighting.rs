//! A flow in the table, for whoever goes along with a pass.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use netpold_ebpf::flow::cached_verdict::CachedVerdict;
use netpold_ebpf::flow::control::Control;
use netpold_ebpf::flow::key::Key;
use netpold_ebpf::layout::{Ct4Key, Ct6Key};

use super::FlowKey;

/// A flow that a pass meets, expired or not, before it is removed.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'t> {
    /// Number of its way, through both tables; a pass goes through them in this order.
    pub way: u32,
    /// Its state.
    pub control: Control,
    /// The pass's time, in jiffies.
    pub now: u32,
    /// Ticks a second.
    pub hz: u32,
    /// The way.
    pub(super) words: &'t [AtomicU64],
}

/// Who takes part in a flow, either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowTuple {
    /// Number of the endpoint.
    pub endpoint: u32,
    /// The other side.
    pub remote: IpAddr,
    /// The pod's port.
    pub local_port: u16,
    /// The other side's port.
    pub remote_port: u16,
    /// IP protocol number.
    pub protocol: u8,
}

impl<'t> Sighting<'t> {
    /// A flow at a place of a table. `words` are those of its way, the control word first.
    #[must_use]
    pub const fn new(
        way: u32,
        control: Control,
        (now, hz): (u32, u32),
        words: &'t [AtomicU64],
    ) -> Self {
        Self { way, control, now, hz, words }
    }

    /// How long ago the flow's last packet was.
    #[must_use]
    pub fn idle(&self) -> Duration {
        Duration::from_secs(self.control.age(self.now).into()) / self.hz.max(1)
    }

    /// The flow; `None` if the way is being written.
    #[must_use]
    pub fn tuple(&self) -> Option<FlowTuple> {
        let key = match self.words.len() {
            <[u64; 2] as Key>::STRIDE => {
                // SAFETY: the words lie in memory as the key does, and every value of theirs is one.
                FlowKey::V4(unsafe { std::mem::transmute::<[u64; 2], Ct4Key>(self.key()) })
            }
            _ => {
                // SAFETY: as above.
                FlowKey::V6(unsafe { std::mem::transmute::<[u64; 4], Ct6Key>(self.key()) })
            }
        };
        // After the key.
        fence(Ordering::Acquire);
        let again = Control(self.words[0].load(Ordering::Relaxed));
        let same = again.is_valid() && again.incarnation() == self.control.incarnation();
        same.then(|| key.into())
    }

    /// How the flow was judged last, of whatever revision of policy and incarnation of the way.
    #[must_use]
    pub fn cached_verdict(&self) -> CachedVerdict {
        let key = match self.words.len() {
            <[u64; 2] as Key>::STRIDE => <[u64; 2] as Key>::WORDS,
            _ => <[u64; 4] as Key>::WORDS,
        };
        CachedVerdict(self.words[1 + key].load(Ordering::Relaxed))
    }

    fn key<const WORDS: usize>(&self) -> [u64; WORDS] {
        std::array::from_fn(|index| self.words[1 + index].load(Ordering::Relaxed))
    }
}

impl From<FlowKey> for FlowTuple {
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
