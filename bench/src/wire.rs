//! On the wire: traffic between the sockets of two pods, which the node routes.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use netpold_core::model::Direction;
use netpold_dataplane::attach::{AttachMode, Attacher, Hook};
use netpold_testbed::Netns;
use serde::Serialize;

use crate::cluster::{FlowCluster, Local, PORT, Size};
use crate::figures::{MeasuredFigures, Rate, Spread, say, spread, table};
use crate::filter::{BenchFilter, installed, iptables_forward, nft_forward, other};
use crate::forward::mac_text;
use crate::host;
use crate::load::{LoadResults, TrafficLoad};
use crate::packet::load_empty;
use crate::world::LoadedCluster;

/// Throughput and latency with one filter.
#[derive(Debug, Serialize)]
pub(crate) struct WireFigure {
    /// The filter.
    pub(crate) filter: String,
    /// Gbit/s of one TCP stream.
    pub(crate) stream: Rate,
    /// Microseconds from request to answer.
    pub(crate) request_p50: Spread,
    /// Microseconds, 99th percentile of a run.
    pub(crate) request_p99: Spread,
    /// Sequential connections per second.
    pub(crate) connections: Rate,
    /// Small UDP packets per second.
    pub(crate) datagrams: Rate,
}

/// A port that no filter allows.
const CLOSED: u16 = PORT - 10;
/// Numbers of rules of the other filters.
const RULES: [u32; 4] = [1, 100, 1000, 10_000];

struct WireFilter {
    name: String,
    filter: BenchFilter,
    samples: Vec<LoadResults>,
}

/// The pods and their interfaces on the node.
struct WirePods {
    netns: [Netns; 2],
    locals: [Local; 2],
}

/// Measures all filters, interleaved. `time` is the duration of one load.
pub(crate) fn measure(
    sizes: &[Size],
    rounds: u32,
    time: Duration,
    buckets: u32,
    pins: &Path,
    progress: &dyn Fn(&str),
) -> Result<MeasuredFigures<WireFigure>> {
    netpold_testbed::sweep();
    let pods = WirePods::build()?;
    let mut attacher = Attacher::new(&pins.join("links"), AttachMode::Tcx)?;
    let (mut subjects, refused) = subjects(sizes, &pods, buckets, pins, progress)?;
    let [client, server] = &pods.netns;
    let load = TrafficLoad::new(client, server, pods.locals[1].address(false))?;
    for round in 0..rounds {
        progress(&format!("wire: round {} of {rounds}", round + 1));
        for subject in &mut subjects {
            subject.filter.set(&pods.hooks(), &mut attacher).context(subject.name.clone())?;
            let sample = if round == 0 { subject.check(&load) } else { Ok(()) }
                .and_then(|()| load.run(time));
            subject.filter.unset(&pods.hooks(), &mut attacher)?;
            subject.samples.push(sample.with_context(|| subject.name.clone())?);
        }
    }
    Ok(MeasuredFigures { figures: subjects.iter().map(WireFilter::figure).collect(), refused })
}

fn subjects(
    sizes: &[Size],
    pods: &WirePods,
    buckets: u32,
    pins: &Path,
    progress: &dyn Fn(&str),
) -> Result<(Vec<WireFilter>, Vec<String>)> {
    let mut refused = Vec::new();
    let mut subjects = vec![
        WireFilter::new("none", BenchFilter::None),
        WireFilter::new("empty TCX", BenchFilter::Empty(load_empty()?)),
    ];
    for (number, size) in sizes.iter().enumerate() {
        progress(&format!("wire: compiling and writing {size}"));
        let changes = FlowCluster::new(*size, pods.locals).changes();
        let world = LoadedCluster::new(&pins.join(number.to_string()), changes, buckets)?;
        let name = format!("netpold, {} pods, {} rules", size.pods, size.rules);
        subjects.push(WireFilter::new(&name, BenchFilter::Netpold(Box::new(world))));
    }
    if installed("nft") {
        subjects.extend(RULES.map(|rules| {
            WireFilter::new(&format!("nftables, chain, {rules} rules"), pods.nft_chain(rules))
        }));
        let rules = RULES[3];
        let name = format!("nftables, verdict map, {rules} rules");
        subjects.push(WireFilter::new(&name, pods.nft_map(rules)));
    } else {
        refused.push("wire with nft: it is not installed".into());
    }
    if installed("iptables") {
        subjects.extend(RULES.map(|rules| {
            WireFilter::new(&format!("iptables, chain, {rules} rules"), pods.iptables(rules))
        }));
    } else {
        refused.push("wire with iptables: it is not installed".into());
    }
    Ok((subjects, refused))
}

impl WireFilter {
    fn new(name: &str, filter: BenchFilter) -> Self {
        Self { name: name.to_owned(), filter, samples: Vec::new() }
    }

    /// Checks that the filter drops a closed port, or that no filter does.
    fn check(&self, load: &TrafficLoad<'_>) -> Result<()> {
        let filters = !matches!(self.filter, BenchFilter::None | BenchFilter::Empty(_));
        let is_cut = load.is_cut(CLOSED)?;
        ensure!(is_cut == filters, "port {CLOSED} is cut: {is_cut}, which is wrong");
        Ok(())
    }

    fn figure(&self) -> WireFigure {
        let of =
            |field: fn(&LoadResults) -> f64| self.samples.iter().map(field).collect::<Vec<_>>();
        WireFigure {
            filter: self.name.clone(),
            stream: Rate::of(&of(|s| s.stream)),
            request_p50: Spread::of(&of(|s| s.request_p50)),
            request_p99: Spread::of(&of(|s| s.request_p99)),
            connections: Rate::of(&of(|s| s.connections)),
            datagrams: Rate::of(&of(|s| s.datagrams)),
        }
    }
}

impl WirePods {
    fn build() -> Result<Self> {
        let netns = [Netns::create("wire-a")?, Netns::create("wire-b")?];
        let mut indices = [0; 2];
        for (number, (pod, index)) in netns.iter().zip(&mut indices).enumerate() {
            let path = pod.path();
            let (outside, inside) = (format!("wire{number}0"), format!("wire{number}1"));
            host::ip(&[&format!(
                "link add {outside} type veth peer name {inside} netns {}",
                path.display()
            )])?;
            *index = host::ifindex(&outside)?;
        }
        let locals = [Local::isolated(indices[0]), Local::also_isolated(indices[1])];
        for (number, (pod, local)) in netns.iter().zip(locals).enumerate() {
            connect(pod, number as u8, local)?;
        }
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")
            .context("cannot turn on forwarding")?;
        Ok(Self { netns, locals })
    }

    /// The hooks of both directions at both pods.
    fn hooks(&self) -> Vec<Hook> {
        let hooks = self.locals.iter().flat_map(|local| {
            Direction::BOTH.map(|direction| Hook { ifindex: local.ifindex, direction })
        });
        hooks.collect()
    }

    /// Addresses of the client and the server.
    fn ends(&self) -> [String; 2] {
        self.locals.map(|local| local.address(false).to_string())
    }

    fn nft_chain(&self, rules: u32) -> BenchFilter {
        let [from, to] = self.ends();
        let others: String = (0..rules)
            .map(|n| format!("ip saddr {} tcp dport {PORT} accept\n", other(n)))
            .collect();
        nft_forward(&format!(
            "ct state established,related accept\n{others}ip saddr {from} ip daddr {to} meta \
             l4proto {{ tcp, udp }} th dport {PORT} accept"
        ))
    }

    /// Filter of the same addresses in one verdict map, like the rules of kube-proxy.
    fn nft_map(&self, rules: u32) -> BenchFilter {
        let [from, _] = self.ends();
        let others: String =
            (0..rules).map(|n| format!("{} . {PORT} : accept, ", other(n))).collect();
        BenchFilter::Nft(
            "ip",
            format!(
                "table ip bench {{\nmap clients {{\ntype ipv4_addr . inet_service : verdict\n\
                 elements = {{ {others}{from} . {PORT} : accept }}\n}}\nchain forward {{\ntype \
                 filter hook forward priority 0; policy drop;\nct state established,related \
                 accept\nip saddr . th dport vmap @clients\n}}\n}}\n"
            ),
        )
    }

    fn iptables(&self, rules: u32) -> BenchFilter {
        let [from, to] = self.ends();
        let tracked = "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT".to_owned();
        let others = (0..rules).map(|n| format!("-s {} -p tcp --dport {PORT} -j ACCEPT", other(n)));
        let allow = ["tcp", "udp"]
            .map(|protocol| format!("-s {from} -d {to} -p {protocol} --dport {PORT} -j ACCEPT"));
        iptables_forward(std::iter::once(tracked).chain(others).chain(allow))
    }
}

/// Configures a pod's interface, with the node as default gateway.
fn connect(pod: &Netns, number: u8, local: Local) -> Result<()> {
    const NODE: &str = "169.254.1.1";
    let (outside, inside) = (format!("wire{number}0"), format!("wire{number}1"));
    let (node_mac, pod_mac) =
        (mac_text([2, 0, 0, 0, 1, number]), mac_text([2, 0, 0, 0, 2, number]));
    let address = local.address(false);
    pod.ip(&format!(
        "link set lo up\nlink set {inside} address {pod_mac}\nlink set {inside} up\n\
         address add {address}/32 dev {inside}\nroute add {NODE}/32 dev {inside}\n\
         route add default via {NODE} dev {inside}\n\
         neigh add {NODE} lladdr {node_mac} dev {inside} nud permanent\n"
    ))?;
    host::ip(&[
        &format!("link set {outside} address {node_mac}"),
        &format!("link set {outside} up"),
        &format!("route replace {address}/32 dev {outside}"),
        &format!("neigh add {address} lladdr {pod_mac} dev {outside} nud permanent"),
    ])
}

/// Prints the table.
pub(crate) fn print(wires: &[WireFigure]) {
    if wires.is_empty() {
        return;
    }
    say("\nOn the wire: two pods of one node (rates: best / median; times: minimum / median)");
    let rows = wires.iter().map(|wire| {
        let rate =
            |rate: Rate, unit: f64| format!("{:.1} / {:.1}", rate.best / unit, rate.median / unit);
        vec![
            wire.filter.clone(),
            rate(wire.stream, 1.0),
            spread(wire.request_p50),
            spread(wire.request_p99),
            rate(wire.connections, 1e3),
            rate(wire.datagrams, 1e3),
        ]
    });
    let header = [
        "filter",
        "TCP stream Gbit/s",
        "request p50 us",
        "request p99 us",
        "1,000 connections/s",
        "1,000 UDP packets/s",
    ];
    table(&header, rows);
}
