//! XDP compared with the pod's hook: the XDP programs judge every packet of every test before the hook does.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use aya::maps::{HashMap, MapData};
use aya::programs::{ProgramInfo, Xdp};
use netpold_dataplane::bpf::test_run::{Attributes, call};
use netpold_ebpf::endpoint::Rows;
use netpold_ebpf::layout::{ENDPOINT_SLOTS, Endpoint, endpoint_slot};
use netpold_ebpf::packet::{parse, protocol};
use netpold_ebpf::reason::Reason;
use netpold_ebpf::xdp::uplink::Scope;
use netpold_ebpf::xdp::{pod, uplink};
use netpold_testkit::node::Plain;

use super::world::{Direction, IFINDEX, UPLINK, World};
use netpold_testkit::frames::Who;

/// XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Early {
    Uplink(Scope),
    Sent,
}

/// All XDP programs.
pub(crate) const EARLY: [Early; 3] =
    [Early::Uplink(Scope::Openings), Early::Uplink(Scope::All), Early::Sent];
/// Slot of the pod for the uplink's programs. In `BPF_PROG_TEST_RUN`, the receiving device of XDP is loopback, which is
/// also the pod's interface in these tests; so the uplink's programs find the pod in a slot of another interface.
const SLOT: u32 = endpoint_slot(IFINDEX, 0) ^ (ENDPOINT_SLOTS / 2);
const XDP_DROP: u32 = 1;

/// Returns slot and record of the pod for the uplink's programs.
pub(crate) fn twin(pod: Endpoint) -> (usize, Endpoint) {
    (SLOT as usize, Endpoint { ifindex: u32::MAX, ..pod })
}

impl Early {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Uplink(Scope::Openings) => "netpold_uplink",
            Self::Uplink(Scope::All) => "netpold_uplink_all",
            Self::Sent => "netpold_sent",
        }
    }

    /// Returns whether the program judges packets on their way to or from the pod's hook.
    fn precedes(self, direction: Direction, came_from: u32) -> bool {
        match self {
            Self::Uplink(_) => direction == Direction::Ingress && came_from == UPLINK,
            Self::Sent => direction == Direction::Egress,
        }
    }
}

/// Verdict of an XDP program, for comparison with the verdict of the pod's hook.
#[derive(Debug)]
pub(crate) struct EarlyVerdict {
    program: Early,
    dropped: bool,
    /// Drop reason of the same code on the host, with the headers that the XDP program reads.
    expected: Option<Reason>,
    /// Drop reason of the same code on the host, with all headers.
    thorough: Option<Reason>,
    /// Whether the pod's rules have domain names; then only the hook drops packets from the pod.
    has_names: bool,
}

impl World {
    /// Loads the programs, and writes the pod's slot for the programs of the uplink.
    pub(crate) fn prepare_early(&mut self) {
        for program in EARLY {
            let name = program.name();
            let program = self.bpf.program_mut(name).expect(name);
            let program: &mut Xdp = program.try_into().expect(name);
            program.load().unwrap_or_else(|error| panic!("{name}: {error:?}"));
        }
        let pod = self.host.policy.slot(endpoint_slot(IFINDEX, 0));
        let map = self.bpf.map_mut("LOCALS4").expect("LOCALS4");
        let mut four: HashMap<&mut MapData, u32, u32> = map.try_into().expect("LOCALS4");
        four.insert(pod.addr4[0], SLOT, 0).expect("LOCALS4");
        let map = self.bpf.map_mut("LOCALS6").expect("LOCALS6");
        let mut six: HashMap<&mut MapData, [u8; 16], u32> = map.try_into().expect("LOCALS6");
        six.insert(pod.addr6[0], SLOT, 0).expect("LOCALS6");
    }

    /// Runs the XDP programs in front of the pod's hook on a packet.
    pub(crate) fn judge_early(
        &mut self,
        direction: Direction,
        came_from: u32,
        frame: &[u8],
    ) -> Vec<EarlyVerdict> {
        let early = EARLY.into_iter().filter(|program| program.precedes(direction, came_from));
        early.map(|program| self.judge_with(program, direction, frame)).collect()
    }

    fn judge_with(&mut self, program: Early, direction: Direction, frame: &[u8]) -> EarlyVerdict {
        let host = &self.host;
        let (expected, thorough) = match program {
            Early::Uplink(scope) => {
                let plain = Plain(frame);
                let link = parse::link(&plain);
                let expected = uplink::drops(&plain, link, host, UPLINK, scope);
                let thorough = uplink::drops(&frame, parse::link(&frame), host, UPLINK, scope);
                (expected.map(|_| Reason::Policy), thorough.map(|_| Reason::Policy))
            }
            Early::Sent => {
                let plain = Plain(frame);
                let expected = pod::drops(&plain, parse::link(&plain), host, IFINDEX);
                let thorough = pod::drops(&frame, parse::link(&frame), host, IFINDEX);
                (expected.map(|(_, reason)| reason), thorough.map(|(_, reason)| reason))
            }
        };
        let counted = expected.unwrap_or(Reason::Policy);
        let before = self.dropped(direction, counted);
        let dropped = self.run_early(program, frame, 1).0 == XDP_DROP;
        let after = self.dropped(direction, counted);
        assert_eq!(after - before, u64::from(dropped), "{program:?}: {counted:?} counted");
        let has_names = Rows(self.host.policy.slot(endpoint_slot(IFINDEX, 0)).rows).has_names();
        EarlyVerdict { program, dropped, expected, thorough, has_names }
    }

    /// Runs an XDP program. Returns its return value, and nanoseconds per run.
    pub(crate) fn run_early(&self, program: Early, frame: &[u8], repeat: u32) -> (u32, u32) {
        run(self.early_fd(program), frame, repeat)
    }

    pub(crate) fn early_fd(&self, program: Early) -> BorrowedFd<'_> {
        self.xdp(program).fd().expect("a loaded program").as_fd()
    }

    /// Returns the kernel's information about an XDP program.
    pub(crate) fn early_info(&self, program: Early) -> ProgramInfo {
        self.xdp(program).info().expect("program info")
    }

    fn xdp(&self, program: Early) -> &Xdp {
        match self.bpf.program(program.name()) {
            Some(aya::programs::Program::Xdp(program)) => program,
            _ => panic!("{program:?} is no XDP program"),
        }
    }
}

/// Runs an XDP program at loopback. Returns its return value, and nanoseconds per run.
pub(crate) fn run(program: BorrowedFd<'_>, frame: &[u8], repeat: u32) -> (u32, u32) {
    let mut attributes = Attributes {
        program: program.as_raw_fd().cast_unsigned(),
        data_size_in: frame.len() as u32,
        data_in: frame.as_ptr() as u64,
        repeat,
        ..Attributes::default()
    };
    // SAFETY: the frame has the given length and outlives the call.
    unsafe { call(&mut attributes) }.expect("a test run");
    (attributes.retval, attributes.duration)
}

impl EarlyVerdict {
    /// Asserts that XDP drops exactly the packets that the same code drops on the host, each for the hook's reason. XDP
    /// must also drop every plain packet that the hook drops with [`Reason::Policy`] or, from the pod,
    /// [`Reason::SpoofedSource`]. Exceptions: uplinks with [`Scope::Openings`], and pods with domain names in their
    /// rules.
    pub(crate) fn assert_agrees(&self, reason: Reason, frame: &[u8]) {
        let context = || format!("{self:?}, the hook {reason:?}, of {frame:02x?}");
        assert_eq!(self.dropped, self.expected.is_some(), "{}", context());
        if self.dropped {
            assert_eq!(self.expected, Some(reason), "{}", context());
        }
        if !is_plain(frame) {
            return;
        }
        assert_eq!(self.expected, self.thorough, "{}", context());
        let sure = match self.program {
            // The tests also run the pod's hook on packets to other addresses.
            Early::Uplink(Scope::All) => is_for_pod(frame) && reason == Reason::Policy,
            Early::Uplink(Scope::Openings) => false,
            Early::Sent if self.has_names => false,
            Early::Sent => matches!(reason, Reason::Policy | Reason::SpoofedSource),
        };
        assert!(self.dropped || !sure, "{}", context());
    }
}

/// Returns the EtherType and the packet after the link header.
fn ip(frame: &[u8]) -> Option<(u16, &[u8])> {
    let (kind, offset) = parse::link(&frame).ok()?;
    Some((kind, frame.get(offset as usize..)?))
}

/// Returns whether the frame is a whole TCP, UDP or SCTP packet without IP options or extension headers, the only
/// kind that the XDP programs decide on.
fn is_plain(frame: &[u8]) -> bool {
    match ip(frame) {
        Some((
            protocol::ETHERTYPE_IPV4,
            [0x45, _, _, _, _, _, 0 | 0x40, 0, _, 6 | 17 | 132, ..],
        )) => true,
        Some((protocol::ETHERTYPE_IPV6, [first, _, _, _, _, _, 6 | 17 | 132, ..])) => {
            first >> 4 == 6
        }
        _ => false,
    }
}

fn is_for_pod(frame: &[u8]) -> bool {
    match ip(frame) {
        Some((protocol::ETHERTYPE_IPV4, header)) => header.get(16..20) == Some(&Who::Pod.v4()),
        Some((protocol::ETHERTYPE_IPV6, header)) => header.get(24..40) == Some(&Who::Pod.v6()),
        _ => false,
    }
}
