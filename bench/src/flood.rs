//! A flood that policy denies: cost of a packet until its drop.
//!
//! The kernel sends SYNs from ever new ports out of one end of a veth. The other end is the node's uplink; its poll
//! runs on the same core as the sender. So the time covers building, receiving and dropping a frame on one core. The
//! floor is a driver-mode XDP program that drops everything.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use netpold_core::model::Direction;
use netpold_dataplane::attach::{AttachMode, Attacher, Hook};
use netpold_dataplane::xdp::XdpProgram;
use netpold_ebpf::reason::{Reason, counter};
use netpold_ebpf::xdp::uplink::Scope;
use netpold_testbed::Netns;
use serde::Serialize;

use crate::bytecode::{Code, GENERIC, NATIVE, SCHED_CLS, XDP, attach_xdp, send_live};
use crate::cluster::{FlowCluster, Local, PORT, Size};
use crate::figures::{MeasuredFigures, Spread, say, spread, table};
use crate::filter::{BenchFilter, feed, installed, iptables_forward, traffic};
use crate::forward::mac_text;
use crate::frame::syn;
use crate::host;
use crate::live::{Then, Varies, sender};
use crate::packet::program;
use crate::world::LoadedCluster;

/// Cost of one place to drop.
#[derive(Debug, Serialize)]
pub(crate) struct Flood {
    /// Filter and place of the drop.
    pub(crate) dropped_by: String,
    /// Nanoseconds per packet, on one core.
    pub(crate) total: Spread,
    /// Nanoseconds per packet above a driver-mode program that drops everything.
    pub(crate) over_floor: Spread,
    /// Packets dropped per second by one core, at best.
    pub(crate) per_second: f64,
}

/// Hardware address of the node's uplink.
const NODE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// `XDP_DROP`
const DROP: i32 = 1;
/// `TCX_DROP`
const SHOT: i32 = 2;

/// Index that no interface has.
const NOWHERE: u32 = 9999;

/// The filter that drops.
enum Guard {
    /// An XDP program at the uplink.
    Xdp { program: OwnedFd, flags: u32, counts: bool },
    /// A TC program at the veth of the receiving or sending pod.
    Pod { program: OwnedFd, direction: Direction, counts: bool },
    /// nftables or iptables.
    Rules(BenchFilter),
}

struct FloodedFilter {
    name: String,
    guard: Guard,
    samples: Vec<f64>,
}

/// A frame and its sending program.
struct FrameSender {
    frame: Vec<u8>,
    sender: OwnedFd,
}

/// The uplink, the pod behind the node, and the frames.
struct FloodNode {
    pod: Local,
    sending: u32,
    uplink: u32,
    /// From an outside address to the pod.
    to_pod: FrameSender,
    /// From a pod, with the uplink as its veth, to an outside address.
    from_pod: FrameSender,
    /// Tables for the receiving pod.
    receives: LoadedCluster,
    /// Tables for the sending pod at the uplink.
    sends: LoadedCluster,
    _link: OwnedFd,
    _netns: Netns,
}

/// Measures all filters, interleaved.
pub(crate) fn measure(
    rounds: u32,
    packets: u32,
    buckets: u32,
    pins: &Path,
    progress: &dyn Fn(&str),
) -> Result<MeasuredFigures<Flood>> {
    netpold_testbed::sweep();
    progress("flood: compiling and writing a cluster");
    let (node, mut subjects) = FloodNode::build(&pins.join("world"), buckets)?;
    let mut refused = Vec::new();
    for (tool, rules) in [("nft", node.nft()), ("iptables", node.iptables())] {
        if installed(tool) {
            subjects.extend(rules);
        } else {
            refused.push(format!("flood dropped by {tool}: it is not installed"));
        }
    }
    let mut attacher = Attacher::new(&pins.join("links"), AttachMode::Tcx)?;
    let _pinned = host::OneCpu::pin()?;
    for round in 0..rounds {
        progress(&format!("flood: round {} of {rounds}", round + 1));
        for subject in &mut subjects {
            let sample = node.sample(&mut subject.guard, packets, &mut attacher);
            subject.samples.push(sample.with_context(|| subject.name.clone())?);
        }
    }
    let floor = subjects.first().map(|s| s.samples.clone()).unwrap_or_default();
    let figures = subjects.into_iter().map(|subject| {
        let total = Spread::of(&subject.samples);
        Flood {
            dropped_by: subject.name,
            total,
            over_floor: Spread::over(&subject.samples, &floor),
            per_second: 1e9 / total.min,
        }
    });
    Ok(MeasuredFigures { figures: figures.collect(), refused })
}

impl FrameSender {
    fn new(from: IpAddr, to: IpAddr) -> Result<Self> {
        let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else { bail!("the flood is IPv4") };
        let frame = syn(NODE_MAC, (from, 0), (to, PORT));
        let sender =
            sender(&frame, Then::Transmit, Varies::From).context("cannot load the sender")?;
        Ok(Self { frame, sender })
    }
}

impl FloodNode {
    fn build(pins: &Path, buckets: u32) -> Result<(Self, Vec<FloodedFilter>)> {
        let netns = Netns::create("flood")?;
        let path = netns.path();
        let mac = mac_text(NODE_MAC);
        let pod_mac = mac_text([2, 0, 0, 0, 0, 9]);
        host::ip(&[
            "link add flood0 type veth peer name flood1",
            &format!("link set flood0 address {mac}"),
            &format!("link add flp0 type veth peer name flp1 netns {}", path.display()),
        ])?;
        for interface in ["flood0", "flood1", "flp0"] {
            silence(interface);
            host::ip(&[&format!("link set {interface} up")])?;
        }
        netns.ip("link set flp1 up\n")?;
        let pod = Local::isolated(host::ifindex("flp0")?);
        let uplink = host::ifindex("flood0")?;
        // A packet from a pod's veth must have its program's proof or is dropped, so two clusters are needed.
        let cluster = FlowCluster::new(Size::BASE, [pod, Local::also_isolated(NOWHERE)]);
        let sender = Local::also_isolated(uplink);
        let sends = FlowCluster::new(Size::BASE, [pod, sender]);
        let stranger = cluster.denied(false, 1)[0].0;
        let address = pod.address(false);
        host::ip(&[
            &format!("route replace {address}/32 dev flp0"),
            &format!("neigh add {address} lladdr {pod_mac} dev flp0 nud permanent"),
            &format!("route replace {stranger}/32 dev flood0"),
        ])?;
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")
            .context("cannot turn on forwarding")?;
        // Without GRO, a veth accepts XDP frames from other drivers only if it has an XDP program.
        host::enable_gro("flood0")?;
        let to_pod = FrameSender::new(stranger, address)?;
        let from_pod = FrameSender::new(sender.address(false), stranger)?;
        let mut receives = LoadedCluster::new(&pins.join("receives"), cluster.changes(), buckets)?;
        let mut sends = LoadedCluster::new(&pins.join("sends"), sends.changes(), buckets)?;
        let subjects = own(&mut receives, &mut sends)?;
        let sending = host::ifindex("flood1")?;
        // `BPF_PROG_TEST_RUN` accepts only an interface with an XDP program as origin of the frames.
        let link = attach_xdp(&to_pod.sender, sending, NATIVE);
        let link = link.context("cannot attach XDP to a veth")?;
        let node = Self {
            pod,
            sending,
            uplink,
            to_pod,
            from_pod,
            receives,
            sends,
            _link: link,
            _netns: netns,
        };
        Ok((node, subjects))
    }

    /// Nanoseconds per packet; checks that all packets were dropped in the right place.
    fn sample(&self, guard: &mut Guard, packets: u32, attacher: &mut Attacher) -> Result<f64> {
        let hook = |direction| match direction {
            Direction::Ingress => Hook { ifindex: self.pod.ifindex, direction },
            Direction::Egress => Hook { ifindex: self.uplink, direction },
        };
        let mut link = None;
        match guard {
            Guard::Xdp { program, flags, .. } => {
                link = Some(attach_xdp(program, self.uplink, *flags)?);
            }
            Guard::Pod { program, direction, .. } => {
                attacher.attach(program.as_fd(), hook(*direction))?;
            }
            Guard::Rules(filter) => filter.set(&[], attacher)?,
        }
        let sample = self.send(guard, packets);
        match guard {
            Guard::Xdp { .. } => drop(link),
            Guard::Pod { direction, .. } => attacher.detach(hook(*direction))?,
            Guard::Rules(filter) => filter.unset(&[], attacher)?,
        }
        sample
    }

    fn send(&self, guard: &Guard, packets: u32) -> Result<f64> {
        // The first packets after an attachment are slower.
        let stream = if let Guard::Pod { direction: Direction::Egress, .. } = guard {
            &self.from_pod
        } else {
            &self.to_pod
        };
        self.transmit(stream, packets / 100)?;
        let dropped = self.dropped(guard)?;
        let passed = traffic("flp0")?.1;
        let took = self.transmit(stream, packets)?;
        let counted = dropped.zip(self.dropped(guard)?).map(|(before, after)| after - before);
        let passed = traffic("flp0")?.1 - passed;
        ensure!(passed == 0, "{passed} of {packets} packets reached the pod");
        let all = counted.is_none_or(|counted| counted == u64::from(packets));
        ensure!(all, "{counted:?} of {packets} packets were dropped where they should be");
        Ok(took.as_secs_f64() * 1e9 / f64::from(packets))
    }

    /// Sends, and waits until the uplink has received all packets.
    fn transmit(&self, stream: &FrameSender, packets: u32) -> Result<Duration> {
        const PATIENCE: Duration = Duration::from_secs(2);
        let before = traffic("flood0")?.0;
        let start = Instant::now();
        send_live(&stream.sender, &stream.frame, self.sending, packets)
            .context("cannot send live frames")?;
        loop {
            let took = start.elapsed();
            let received = traffic("flood0")?.0 - before;
            if received >= u64::from(packets) {
                return Ok(took);
            }
            ensure!(took < PATIENCE, "the uplink received {received} of {packets} packets");
        }
    }

    /// Packets counted by the filter itself so far; `None` if it does not count.
    fn dropped(&self, guard: &Guard) -> Result<Option<u64>> {
        match guard {
            Guard::Xdp { counts: false, .. } | Guard::Pod { counts: false, .. } => Ok(None),
            Guard::Xdp { .. } | Guard::Pod { .. } => {
                let egress = matches!(guard, Guard::Pod { direction: Direction::Egress, .. });
                let loaded = if egress { &self.sends } else { &self.receives };
                let counters = loaded.generation.counters();
                Ok(Some(counters[counter(egress, Reason::Policy) as usize]))
            }
            Guard::Rules(BenchFilter::Nft(family, _)) => {
                let said = feed("nft", &["list", "counter", family, "bench", "dropped"], "")?;
                number_after(&said, "packets ").map(Some)
            }
            Guard::Rules(_) => {
                let said = feed("iptables-save", &["-c", "-t", "filter"], "")?;
                let line = said.lines().find(|line| line.ends_with("-j DROP"));
                number_after(line.unwrap_or_default(), "[").map(Some)
            }
        }
    }

    /// Drops as early as possible, and where a node's firewall would.
    fn nft(&self) -> Vec<FloodedFilter> {
        let to = self.pod.address(false);
        let early = |family: &str, hook: &str| {
            format!(
                "table {family} bench {{\ncounter dropped {{ }}\nchain first {{\ntype filter hook \
                 {hook};\nip daddr {to} tcp dport {PORT} counter name dropped drop\n}}\n}}\n"
            )
        };
        let tracked = BenchFilter::Nft(
            "ip",
            format!(
                "table ip bench {{\ncounter dropped {{ }}\nchain forward {{\ntype filter hook \
                 forward priority 0;\nct state established,related accept\nip daddr {to} tcp \
                 dport {PORT} counter name dropped drop\n}}\n}}\n"
            ),
        );
        [
            (
                "nftables, netdev ingress",
                BenchFilter::Nft("netdev", early("netdev", "ingress device flood0 priority 0")),
            ),
            (
                "nftables, prerouting",
                BenchFilter::Nft("ip", early("ip", "prerouting priority raw")),
            ),
            ("nftables, forward with conntrack", tracked),
        ]
        .map(|(name, filter)| FloodedFilter::new(name, Guard::Rules(filter)))
        .into()
    }

    fn iptables(&self) -> Vec<FloodedFilter> {
        let to = self.pod.address(false);
        let rules = [
            "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT".to_owned(),
            format!("-d {to} -p tcp --dport {PORT} -j DROP"),
        ];
        let guard = Guard::Rules(iptables_forward(rules.into_iter()));
        vec![FloodedFilter::new("iptables, forward with conntrack", guard)]
    }
}

/// The floor and netpold's programs.
fn own(receives: &mut LoadedCluster, sends: &mut LoadedCluster) -> Result<Vec<FloodedFilter>> {
    let floor = Code::default().end(DROP).load(XDP).context("cannot load a program")?;
    let mut uplink = |scope| -> Result<OwnedFd> {
        Ok(receives.generation.xdp(XdpProgram::Uplink(scope))?.0.try_clone_to_owned()?)
    };
    let openings = uplink(Scope::Openings)?;
    let all = uplink(Scope::All)?;
    let generic = openings.try_clone()?;
    let to_pod = program(receives, Direction::Ingress)?;
    let from_pod = program(sends, Direction::Egress)?;
    let shot = Code::default().end(SHOT).load(SCHED_CLS).context("cannot load a program")?;
    let pod = |program, direction, counts| Guard::Pod { program, direction, counts };
    let xdp = |program, flags, counts| Guard::Xdp { program, flags, counts };
    Ok(vec![
        FloodedFilter::new("XDP, drops everything", xdp(floor, NATIVE, false)),
        FloodedFilter::new("netpold, XDP, openings", xdp(openings, NATIVE, true)),
        FloodedFilter::new("netpold, XDP, all", xdp(all, NATIVE, true)),
        FloodedFilter::new("netpold, generic XDP, openings", xdp(generic, GENERIC, true)),
        FloodedFilter::new("netpold, TC, to a pod", pod(to_pod, Direction::Ingress, true)),
        FloodedFilter::new("netpold, TC, from a pod", pod(from_pod, Direction::Egress, true)),
        FloodedFilter::new("TC, drops everything, from a pod", pod(shot, Direction::Egress, false)),
    ])
}

impl FloodedFilter {
    fn new(name: &str, guard: Guard) -> Self {
        Self { name: name.to_owned(), guard, samples: Vec::new() }
    }
}

/// Keeps the node from sending packets of its own there, such as IPv6 neighbour discovery, which would be counted.
fn silence(interface: &str) {
    // Without IPv6 there is nothing to turn off.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"), "1");
}

fn number_after(text: &str, word: &str) -> Result<u64> {
    let digits = text.split_once(word).map(|(_, rest)| rest).unwrap_or_default();
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().with_context(|| format!("no counter in {text:?}"))
}

/// Prints the table.
pub(crate) fn print(floods: &[Flood]) {
    if floods.is_empty() {
        return;
    }
    say(
        "\nDenied flood: ns per 60-byte SYN, sent, received and dropped on one core (minimum / median)",
    );
    let rows = floods.iter().map(|flood| {
        let millions = format!("{:.2}", flood.per_second / 1e6);
        vec![flood.dropped_by.clone(), spread(flood.total), spread(flood.over_floor), millions]
    });
    table(&["dropped by", "in all", "over the floor", "million a second"], rows);
}
