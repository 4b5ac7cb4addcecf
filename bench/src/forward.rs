//! Forwarding between two pods' veths on one core, with live frames.
//!
//! The kernel takes frames from `BPF_PROG_TEST_RUN` as if the first veth had received them. They pass its TC ingress,
//! are routed, and leave through the second veth's TC egress into the other pod's namespace, which discards them
//! because their hardware address matches no device.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use netpold_core::model::Direction;
use netpold_dataplane::attach::{AttachMode, Attacher, Hook};
use netpold_dataplane::bpf::test_run::{Run, run};
use netpold_ebpf::judge::proof::DEFAULT_BIT;
use netpold_testbed::{Netns, udp_frame};
use serde::Serialize;

use crate::bytecode::{attach_xdp, send_live};
use crate::cluster::{FlowCluster, Local, PORT, Size};
use crate::figures::{MeasuredFigures, Spread, say, spread, table};
use crate::filter::{BenchFilter, installed, iptables_forward, nft_forward, other, traffic};
use crate::host;
use crate::live::{Then, Varies, sender};
use crate::packet::{load_empty, program};
use crate::world::LoadedCluster;

/// Source port.
const CLIENT_PORT: u16 = 40_000;
/// Payload that makes a frame 60 bytes long.
const PAYLOAD: [u8; 18] = [0; 18];
/// Destination hardware address, which no pod's veth has.
const ELSEWHERE: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// Hardware address of the first veth's host side.
const NODE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Cost of one filter.
#[derive(Debug, Serialize)]
pub(crate) struct Forwarding {
    /// The filter.
    pub(crate) filter: String,
    /// Nanoseconds per packet.
    pub(crate) total: Spread,
    /// Nanoseconds per packet above no filter.
    pub(crate) over_none: Spread,
}

struct ForwardFilter {
    name: String,
    filter: BenchFilter,
    samples: Vec<f64>,
}

/// The host sides of two pods' veths, and the frame between the pods.
struct VethPair {
    from: Local,
    to: Local,
    frame: Vec<u8>,
    sender: OwnedFd,
    _receive: OwnedFd,
    _pods: [Netns; 2],
}

/// Measures all filters, interleaved.
pub(crate) fn measure(
    sizes: &[Size],
    rounds: u32,
    packets: u32,
    buckets: u32,
    pins: &Path,
    progress: &dyn Fn(&str),
) -> Result<MeasuredFigures<Forwarding>> {
    netpold_testbed::sweep();
    let path = VethPair::build()?;
    let mut attacher = Attacher::new(&pins.join("links"), AttachMode::Tcx)?;
    let mut refused = Vec::new();
    let mut subjects = vec![
        ForwardFilter::new("none", BenchFilter::None),
        ForwardFilter::new("empty TCX", BenchFilter::Empty(load_empty()?)),
    ];
    for (number, size) in sizes.iter().enumerate() {
        progress(&format!("forwarding: compiling and writing {size}"));
        let world = path.world(*size, &pins.join(number.to_string()), buckets)?;
        let name = format!("netpold, {} pods, {} rules", size.pods, size.rules);
        subjects.push(ForwardFilter::new(&name, BenchFilter::Netpold(Box::new(world))));
    }
    for (tool, filters) in [("nft", path.nft(100)), ("iptables", path.iptables(100))] {
        if installed(tool) {
            subjects.extend(filters);
        } else {
            refused.push(format!("forwarding with {tool}: it is not installed"));
        }
    }
    for round in 0..rounds {
        progress(&format!("forwarding: round {} of {rounds}", round + 1));
        for subject in &mut subjects {
            subject.filter.set(&path.hooks(), &mut attacher).context(subject.name.clone())?;
            let sent = path.send(packets);
            subject.filter.unset(&path.hooks(), &mut attacher)?;
            subject.samples.push(sent.context(subject.name.clone())?);
        }
    }
    let none = subjects.first().map(|s| s.samples.clone()).unwrap_or_default();
    let figures = subjects.into_iter().map(|subject| Forwarding {
        total: Spread::of(&subject.samples),
        over_none: Spread::over(&subject.samples, &none),
        filter: subject.name,
    });
    Ok(MeasuredFigures { figures: figures.collect(), refused })
}

impl ForwardFilter {
    fn new(name: &str, filter: BenchFilter) -> Self {
        Self { name: name.to_owned(), filter, samples: Vec::new() }
    }
}

impl VethPair {
    fn build() -> Result<Self> {
        let pods = [Netns::create("bench-a")?, Netns::create("bench-b")?];
        for (pod, name) in pods.iter().zip(["a", "b"]) {
            let path = pod.path();
            let netns = path.display();
            host::ip(&[&format!(
                "link add fw{name}0 type veth peer name fw{name}1 netns {netns}"
            )])?;
            pod.ip(&format!("link set fw{name}1 up\n"))?;
        }
        let mac = mac_text(NODE_MAC);
        host::ip(&[
            &format!("link set fwa0 address {mac}"),
            "link set fwa0 up",
            "link set fwb0 up",
        ])?;
        let (from, to) =
            (Local::isolated(host::ifindex("fwa0")?), Local::also_isolated(host::ifindex("fwb0")?));
        let pod = mac_text(ELSEWHERE);
        for (local, name) in [(from, "fwa0"), (to, "fwb0")] {
            let address = local.address(false);
            host::ip(&[
                &format!("route add {address}/32 dev {name}"),
                &format!("neigh add {address} lladdr {pod} dev {name} nud permanent"),
            ])?;
        }
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")
            .context("cannot turn on forwarding")?;
        let ends = |local: Local, port| (local.address(false), port).into();
        let (client, server) = (ends(from, CLIENT_PORT), ends(to, PORT));
        let frame = udp_frame(NODE_MAC, ELSEWHERE, client, server, &PAYLOAD)?;
        let sender = sender(&frame, Then::Receive, Varies::Nothing);
        let sender = sender.context("cannot load the sending program")?;
        // `BPF_PROG_TEST_RUN` accepts only an interface with an XDP program as origin of the frames.
        let receive =
            attach_xdp(&sender, from.ifindex, 0).context("cannot attach XDP to a veth")?;
        Ok(Self { from, to, frame, sender, _receive: receive, _pods: pods })
    }

    /// Tables with both pods under policy, as clients of each other, and with the flow established at both.
    fn world(&self, size: Size, pins: &Path, buckets: u32) -> Result<LoadedCluster> {
        let cluster = FlowCluster::new(size, [self.from, self.to]);
        let mut world = LoadedCluster::new(pins, cluster.changes(), buckets)?;
        let ends = |local: Local, port| (local.address(false), port).into();
        let (client, server) = (ends(self.from, CLIENT_PORT), ends(self.to, PORT));
        let answer = udp_frame(NODE_MAC, ELSEWHERE, server, client, &PAYLOAD)?;
        for (frame, from, to) in [(&self.frame, self.from, self.to), (&answer, self.to, self.from)]
        {
            for (direction, at) in [(Direction::Egress, from), (Direction::Ingress, to)] {
                let program = program(&mut world, direction)?;
                let packet = Run {
                    packet: frame,
                    ifindex: at.ifindex,
                    ingress_ifindex: from.ifindex,
                    mark: 1 << DEFAULT_BIT,
                    cb: [0; 2],
                    repeat: 1,
                };
                let answer = run(program.as_fd(), &packet)?;
                ensure!(answer.retval == u32::MAX, "the flow is not allowed: {answer:?}");
            }
        }
        Ok(world)
    }

    /// Hooks on the path between the pods.
    fn hooks(&self) -> [Hook; 2] {
        [
            Hook { ifindex: self.from.ifindex, direction: Direction::Egress },
            Hook { ifindex: self.to.ifindex, direction: Direction::Ingress },
        ]
    }

    /// Nanoseconds per packet; checks that all packets arrived.
    fn send(&self, packets: u32) -> Result<f64> {
        let before = traffic("fwb0")?.1;
        let start = Instant::now();
        send_live(&self.sender, &self.frame, self.from.ifindex, packets)
            .context("cannot send live frames")?;
        let took = start.elapsed();
        let forwarded = traffic("fwb0")?.1 - before;
        ensure!(
            forwarded >= u64::from(packets),
            "only {forwarded} of {packets} packets were forwarded"
        );
        Ok(took.as_secs_f64() * 1e9 / f64::from(packets))
    }

    /// One chain with conntrack (established first, as usual), and one without, with other rules before the matching
    /// one.
    fn nft(&self, rules: u32) -> Vec<ForwardFilter> {
        let (from, to) = (self.from.address(false), self.to.address(false));
        let allow = format!("ip saddr {from} ip daddr {to} udp dport {PORT} accept");
        let others: String = (0..rules)
            .map(|n| format!("ip saddr {} udp dport {PORT} accept\n", other(n)))
            .collect();
        let tracked = nft_forward(&format!("ct state established,related accept\n{others}{allow}"));
        let linear = nft_forward(&format!("{others}{allow}"));
        let name = |what: &str| format!("nftables, {what}, {rules} rules");
        vec![
            ForwardFilter::new(&name("conntrack"), tracked),
            ForwardFilter::new(&name("stateless"), linear),
        ]
    }

    /// A chain of rules after conntrack.
    fn iptables(&self, rules: u32) -> Vec<ForwardFilter> {
        let (from, to) = (self.from.address(false), self.to.address(false));
        let tracked = "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT".to_owned();
        let others = (0..rules).map(|n| format!("-s {} -p udp --dport {PORT} -j ACCEPT", other(n)));
        let allow = format!("-s {from} -d {to} -p udp --dport {PORT} -j ACCEPT");
        let chain = iptables_forward(std::iter::once(tracked).chain(others).chain([allow]));
        vec![ForwardFilter::new(&format!("iptables, conntrack, {rules} rules"), chain)]
    }
}

pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Prints the results.
pub(crate) fn print(forwarding: &[Forwarding]) {
    if !forwarding.is_empty() {
        say(
            "\nForwarding: ns per 60-byte UDP packet from veth to veth, one core (minimum / median)",
        );
        let rows =
            forwarding.iter().map(|f| vec![f.filter.clone(), spread(f.total), spread(f.over_none)]);
        table(&["filter", "in all", "over no filter"], rows);
    }
}
