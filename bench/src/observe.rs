//! A denied flood with an observer: its cost for the agent, and the visibility of other drops.
//!
//! One pod per processor sends denied SYNs through its own veth, as fast as the kernel generates them, to ever new
//! ports, so that no two events have the same explanation. Another pod sends a denied datagram now and then. A separate
//! agent enforces, and `netpold observe --follow` runs alongside it. At the end, every drop that the kernel counted
//! must have been shown or counted as lost.

mod watcher;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use netpold_testbed::cluster::{TestCluster, allow_to, isolate};
use netpold_testbed::{Agent, Cni, TestPod, processor_time};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::Serialize;

use crate::agent;
use crate::bytecode::{Code, NATIVE, XDP, attach_xdp, send_live};
use crate::control::percentile;
use crate::figures::{say, table};
use crate::frame::syn;
use crate::host;
use crate::live::{Then, Varies, sender};
use watcher::{SINGLE, Watcher};

/// Results.
#[derive(Debug, Serialize)]
pub(crate) struct ObserveResults {
    /// Phases: no flood, a flood, an observed flood.
    pub(crate) phases: Vec<FloodPhase>,
    /// Events shown per second.
    pub(crate) events_per_second: f64,
    /// Percent of a core used by the command.
    pub(crate) command_percent: f64,
    /// Packets of the other pod.
    pub(crate) single: usize,
    /// Packets of the other pod that were shown.
    pub(crate) shown: usize,
    /// Milliseconds from sending such a packet to its line.
    pub(crate) shown_p50_ms: f64,
    /// Milliseconds.
    pub(crate) shown_max_ms: f64,
    /// Drops shown.
    pub(crate) events: u64,
    /// Drops counted as lost.
    pub(crate) lost: u64,
    /// Events without policy and rule.
    pub(crate) unattributed: u64,
}

/// Load of the agent during one phase.
#[derive(Debug, Serialize)]
pub(crate) struct FloodPhase {
    pub(crate) name: String,
    /// Packets denied per second.
    pub(crate) denied_per_second: f64,
    /// Percent of a core used by the agent.
    pub(crate) agent_percent: f64,
}

/// Target, in percent of a core.
const AIM: f64 = 5.0;
/// Policies in the pods' namespace; an explanation evaluates all of them.
const POLICIES: u32 = 500;
/// An unused address.
const NOWHERE: Ipv4Addr = Ipv4Addr::new(10, 1, 1, 200);
/// Frames per call.
const BURST: u32 = 20_000;
/// Time between two packets of the other pod.
const PAUSE: Duration = Duration::from_millis(190);
/// The event limit per processor resets after one second.
const WINDOW: Duration = Duration::from_millis(1100);
/// Time within which a packet must be shown on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// Ports of the other pod's packets: of timed ones, and of markers.
const TIMED: u16 = 20_000;
const MARKERS: u16 = 40_000;
/// `XDP_PASS`
const PASS: i32 = 2;

struct FloodScene {
    cluster: TestCluster,
    flooders: Vec<String>,
    /// Processors available to this process.
    processors: Vec<usize>,
    marker: u16,
}

/// Measures each phase for this time.
pub(crate) fn measure(time: Duration, progress: &dyn Fn(&str)) -> Result<ObserveResults> {
    netpold_testbed::sweep();
    progress("observe: a node with an agent");
    let mut scene = FloodScene::new()?;
    progress("observe: no flood");
    let mut phases = vec![scene.phase("no flood", time, |_| {
        thread::sleep(time);
        Ok(())
    })?];
    progress("observe: a flood");
    phases.push(scene.phase("a flood", time, |scene| scene.flood(time, |_| Ok(())))?);
    progress("observe: a flood that is watched");
    scene.settle(None)?;
    let watcher = Watcher::new(&agent::binary()?, &scene.agent().socket())?;
    scene.wait_for(&watcher)?;
    let before = (agent::drops(scene.agent())?, watcher.seen());
    let (mut sent, used) = (Vec::new(), processor_time(watcher.pid())?);
    phases.push(scene.phase("a flood that is watched", time, |scene| {
        scene.flood(time, |pod| {
            sent = send_now_and_then(pod, time)?;
            Ok(())
        })
    })?);
    let command = processor_time(watcher.pid())?.saturating_sub(used);
    let of_phase = watcher.seen().events - before.1.events;
    scene.settle(Some(&watcher))?;
    let (drops, seen) = (agent::drops(scene.agent())? - before.0, watcher.seen());
    let (events, lost) = (seen.events - before.1.events, seen.lost - before.1.lost);
    ensure!(
        events + lost == drops,
        "of {drops} drops {events} were shown and {lost} were counted as lost"
    );
    let shown = watcher.shown();
    let delays = sent.iter().enumerate().filter_map(|(index, sent)| {
        let at = shown.get(&(TIMED + index as u16))?;
        Some(at.saturating_duration_since(*sent).as_secs_f64() * 1e3)
    });
    let delays: Vec<f64> = delays.collect();
    let observed = ObserveResults {
        events_per_second: of_phase as f64 / time.as_secs_f64(),
        command_percent: percent(command, time),
        single: sent.len(),
        shown: delays.len(),
        shown_p50_ms: percentile(&delays, 0.5),
        shown_max_ms: percentile(&delays, 1.0),
        events,
        lost,
        unattributed: seen.unattributed - before.1.unattributed,
        phases,
    };
    for FloodPhase { name, agent_percent, .. } in &observed.phases {
        ensure!(*agent_percent < AIM, "{name}: the agent used {agent_percent:.1} % of a core");
    }
    Ok(observed)
}

impl FloodScene {
    fn new() -> Result<Self> {
        let allowed = sched_getaffinity(Pid::from_raw(0)).context("cannot ask for processors")?;
        let is_ours = |processor: &usize| allowed.is_set(*processor).unwrap_or(false);
        let processors: Vec<usize> = (0..CpuSet::count()).filter(is_ours).collect();
        let mut cluster = TestCluster::one(Cni::Ptp).with_pods(&[SINGLE]);
        cluster.policy(SINGLE, isolate(SINGLE, &["Egress"]));
        let mut flooders = Vec::new();
        for number in 0..processors.len() {
            let name = format!("flooder{number}");
            cluster.add(0, &name);
            flooders.push(name);
        }
        // Pods are also isolated by policies that allow other pods.
        for number in 0..POLICIES {
            let app = &flooders[number as usize % flooders.len()];
            let peer = format!("friend{number}");
            cluster.policy(&format!("{app}-{number}"), allow_to(app, &peer));
        }
        agent::start(&mut cluster)?;
        for name in &flooders {
            let interface = cluster.pod(name).host_interface();
            // Without GRO, a veth accepts no frames sent by XDP.
            cluster.nodes[0].run(|| host::enable_gro(interface))??;
        }
        Ok(Self { cluster, flooders, processors, marker: MARKERS })
    }

    fn agent(&self) -> &Agent {
        &self.cluster.agents[0]
    }

    /// CPU time of the agent, and denied packets, during a phase.
    fn phase(
        &mut self,
        name: &str,
        time: Duration,
        happens: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<FloodPhase> {
        let drops = agent::drops(self.agent())?;
        let (start, used) = (Instant::now(), processor_time(self.agent().pid())?);
        happens(self)?;
        let took = start.elapsed();
        let used = processor_time(self.agent().pid())?.saturating_sub(used);
        let denied = agent::drops(self.agent())? - drops;
        ensure!(took < time * 2, "{name}: it took {took:?} and not {time:?}");
        Ok(FloodPhase {
            name: name.to_owned(),
            denied_per_second: denied as f64 / took.as_secs_f64(),
            agent_percent: percent(used, took),
        })
    }

    /// Floods from all flooders for this time, while another pod does something else.
    fn flood(&self, time: Duration, beside: impl FnOnce(&TestPod) -> Result<()>) -> Result<()> {
        let end = AtomicBool::new(false);
        thread::scope(|scope| {
            let flooders: Vec<_> = self
                .flooders
                .iter()
                .map(|name| scope.spawn(|| flood(self.cluster.pod(name), &end)))
                .collect();
            let start = Instant::now();
            let besides = beside(self.cluster.pod(SINGLE));
            thread::sleep(time.saturating_sub(start.elapsed()));
            end.store(true, Ordering::Relaxed);
            for flooder in flooders {
                let done = flooder.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                done.context("a flooder")?;
            }
            besides
        })
    }

    /// Makes every processor report its suppressed drops, by one more drop once the event limit has reset.
    fn settle(&mut self, watcher: Option<&Watcher>) -> Result<()> {
        thread::sleep(WINDOW);
        let sent: BTreeSet<u16> = self
            .processors
            .clone()
            .into_iter()
            .map(|it| self.mark(Some(it)))
            .collect::<Result<_>>()?;
        let deadline = Instant::now() + PATIENCE;
        while let Some(watcher) = watcher {
            let shown = watcher.shown();
            if sent.iter().all(|port| shown.contains_key(port)) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the watcher is not shown the last drops");
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(WINDOW);
        Ok(())
    }

    /// Waits until a watcher is shown events.
    fn wait_for(&mut self, watcher: &Watcher) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while watcher.seen().events == 0 {
            ensure!(Instant::now() < deadline, "the watcher is shown nothing");
            self.mark(None)?;
            thread::sleep(Duration::from_millis(50));
        }
        self.settle(Some(watcher))
    }

    /// Sends a denied packet from a processor; returns its port.
    fn mark(&mut self, processor: Option<usize>) -> Result<u16> {
        self.marker += 1;
        let port = self.marker;
        self.cluster.pod(SINGLE).run(|| -> Result<u16> {
            if let Some(processor) = processor {
                let mut one = CpuSet::new();
                one.set(processor)?;
                sched_setaffinity(Pid::from_raw(0), &one).context("cannot choose a processor")?;
            }
            UdpSocket::bind("0.0.0.0:0")?.send_to(&[0], (NOWHERE, port))?;
            Ok(port)
        })?
    }
}

/// Sends SYNs until the end.
fn flood(pod: &TestPod, end: &AtomicBool) -> Result<()> {
    let Some(IpAddr::V4(from)) = pod.ip4() else { bail!("a pod without IPv4") };
    let frame = syn(pod.gateway_mac(), (from, 4000), (NOWHERE, 0));
    let interface = pod.ifindex("eth0")?.context("a pod without interface")?;
    pod.run(|| -> Result<()> {
        let sender =
            sender(&frame, Then::Transmit, Varies::To).context("cannot load the sender")?;
        // `BPF_PROG_TEST_RUN` accepts only an interface with an XDP program as origin of the frames.
        let pass = Code::default().end(PASS).load(XDP).context("cannot load a program")?;
        let _link = attach_xdp(&pass, interface, NATIVE).context("cannot attach XDP to a veth")?;
        while !end.load(Ordering::Relaxed) {
            send_live(&sender, &frame, interface, BURST).context("cannot send live frames")?;
        }
        Ok(())
    })?
}

/// Sends datagrams to ever new ports; returns their times.
fn send_now_and_then(pod: &TestPod, time: Duration) -> Result<Vec<Instant>> {
    pod.run(|| -> Result<Vec<Instant>> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        let (start, mut sent) = (Instant::now(), Vec::new());
        // Leaves one second for the last one.
        while start.elapsed() + Duration::from_secs(1) < time {
            socket.send_to(&[0], (NOWHERE, TIMED + sent.len() as u16))?;
            sent.push(Instant::now());
            thread::sleep(PAUSE);
        }
        Ok(sent)
    })?
}

fn percent(used: Duration, took: Duration) -> f64 {
    100.0 * used.as_secs_f64() / took.as_secs_f64()
}

/// Prints the table.
pub(crate) fn print(observed: &ObserveResults) {
    say("\nA denied flood that is watched");
    let rows = observed.phases.iter().map(|phase| {
        let millions = format!("{:.2}", phase.denied_per_second / 1e6);
        vec![phase.name.clone(), millions, format!("{:.1}", phase.agent_percent)]
    });
    table(&["", "million denied a second", "agent, % of a core"], rows);
    let ObserveResults { single, shown, shown_p50_ms, shown_max_ms, events, lost, .. } = observed;
    say(&format!(
        "{:.0} events a second shown ({} without policy and rule), the command used {:.1} % of a core; of \
         {single} packets of another pod {shown} were shown, after {shown_p50_ms:.0} ms (p50), \
         {shown_max_ms:.0} ms (longest); of all drops {events} were shown and the other {lost} counted",
        observed.events_per_second, observed.unattributed, observed.command_percent,
    ));
}
