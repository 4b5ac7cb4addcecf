//! XDP against the pod's hook: the uplink's programs see every packet of every story before it.

use std::os::fd::{AsFd, AsRawFd};

use aya::maps::{HashMap, MapData};
use aya::programs::Xdp;
use netpold::dataplane::test_run::{Attributes, call};
use netpold_ebpf::layout::{ENDPOINT_SLOTS, Endpoint};
use netpold_ebpf::packet;
use netpold_ebpf::reason::Reason;
use netpold_ebpf::uplink::{Scope, drops};

use super::packets::Who;
use super::world::{IFINDEX, UPLINK, World};

/// The programs, and what they drop.
pub(crate) const PROGRAMS: [(&str, Scope); 2] =
    [("netpold_uplink", Scope::Openings), ("netpold_uplink_all", Scope::All)];
/// BPF_PROG_TEST_RUN lets XDP see loopback as the device that a packet came by, which here is the
/// pod's own. So XDP finds the pod in another slot, as behind another interface.
const SLOT: u32 = IFINDEX + 1;
const XDP_DROP: u32 = 1;

/// The pod's record for XDP.
pub(crate) fn twin(pod: Endpoint) -> (usize, Endpoint) {
    (SLOT as usize, Endpoint { ifindex: SLOT + ENDPOINT_SLOTS, ..pod })
}

/// What XDP said of a packet, to be held against what the pod's hook says.
pub(crate) struct Said {
    dropped: [bool; 2],
    /// Whether the host's code, which reads whatever there is, would have dropped it.
    expected: [bool; 2],
    plain: bool,
}

impl World {
    /// Loads the uplink's programs and tells them where the pod is.
    pub(crate) fn prepare_uplink(&mut self) {
        for (name, _) in PROGRAMS {
            let program = self.bpf.program_mut(name).expect(name);
            let program: &mut Xdp = program.try_into().expect(name);
            program.load().unwrap_or_else(|error| panic!("{name}: {error:?}"));
        }
        let map = self.bpf.map_mut("LOCALS4").expect("LOCALS4");
        let mut four: HashMap<&mut MapData, u32, u32> = map.try_into().expect("LOCALS4");
        four.insert(u32::from_be_bytes(Who::Pod.v4()), SLOT, 0).expect("LOCALS4");
        let map = self.bpf.map_mut("LOCALS6").expect("LOCALS6");
        let mut six: HashMap<&mut MapData, [u8; 16], u32> = map.try_into().expect("LOCALS6");
        six.insert(Who::Pod.v6(), SLOT, 0).expect("LOCALS6");
    }

    /// Shows a packet to XDP, before the pod's hook sees it.
    pub(crate) fn show_uplink(&self, frame: &[u8]) -> Said {
        let link = packet::link(&frame);
        let expected = |scope| drops(&frame, link, &self.host, UPLINK, scope).is_some();
        Said {
            dropped: PROGRAMS.map(|(name, _)| self.run_xdp(name, frame)),
            expected: PROGRAMS.map(|(_, scope)| expected(scope)),
            plain: is_plain(frame),
        }
    }

    fn run_xdp(&self, name: &str, frame: &[u8]) -> bool {
        let Some(aya::programs::Program::Xdp(program)) = self.bpf.program(name) else {
            panic!("{name} is no XDP program");
        };
        let mut attributes = Attributes {
            program: program.fd().expect(name).as_fd().as_raw_fd().cast_unsigned(),
            data_size_in: frame.len() as u32,
            data_in: frame.as_ptr() as u64,
            repeat: 1,
            ..Attributes::default()
        };
        // SAFETY: the frame is as long as is said and outlives the call.
        unsafe { call(&mut attributes) }.expect(name);
        attributes.retval == XDP_DROP
    }
}

impl Said {
    /// XDP drops nothing that the pod's hook passes, and all plain packets that it drops for want
    /// of a rule; connections that begin, if nothing else is asked for.
    pub(crate) fn hold_against(&self, reason: Reason, frame: &[u8]) {
        for (index, (name, scope)) in PROGRAMS.into_iter().enumerate() {
            if self.dropped[index] {
                assert_eq!(reason, Reason::Policy, "{name} drops {frame:02x?}");
            }
            if self.plain {
                let (dropped, expected) = (self.dropped[index], self.expected[index]);
                assert_eq!(dropped, expected, "{name} of {frame:02x?}");
            }
            if self.plain && scope == Scope::All {
                assert_eq!(self.dropped[index], reason == Reason::Policy, "{name} {frame:02x?}");
            }
        }
    }
}

/// A whole TCP or UDP packet to the pod without IP options or extension headers, of the length that
/// it states: what the programs decide on.
fn is_plain(frame: &[u8]) -> bool {
    let Ok((kind, offset)) = packet::link(&frame) else { return false };
    let Some(header) = frame.get(offset as usize..) else { return false };
    match (kind, header) {
        (packet::ETHERTYPE_IPV4, [0x45, _, _, _, _, _, 0 | 0x40, 0, _, 6 | 17, ..]) => {
            header.get(16..20) == Some(&Who::Pod.v4())
        }
        (packet::ETHERTYPE_IPV6, [first, _, _, _, _, _, 6 | 17, ..]) => {
            first >> 4 == 6 && header.get(24..40) == Some(&Who::Pod.v6())
        }
        _ => false,
    }
}
