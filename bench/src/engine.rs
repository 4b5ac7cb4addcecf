//! The agent's engine with real interfaces: latency of a new pod, and CPU time of pod events on other nodes.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netpold_core::compile::Compiler;
use netpold_core::model::{Change, Direction, Interface};
use netpold_core::ops::Capacity;
use netpold_core::options::Options;
use netpold_dataplane::attach::{AttachMode, Attacher, Hook};
use netpold_dataplane::bpffs::PinRoot;
use netpold_dataplane::conntrack::Buckets;
use netpold_dataplane::quiescence::grace_period;
use netpold_dataplane::{Dataplane, DataplaneOptions};
use netpold_engine::Engine;
use netpold_testbed::Netns;
use serde::Serialize;

use crate::cluster::{FlowCluster, Local, NODE, Size};
use crate::control::{Scale, percentile};
use crate::figures::say;
use crate::filter::feed;
use crate::packet::{load_empty, program};
use crate::world::LoadedCluster;
use crate::{effect, host};

/// Results.
#[derive(Debug, Serialize)]
pub(crate) struct NodeResults {
    /// Attaching both programs to a new interface, by TCX links and by clsact filters.
    pub(crate) attach: Vec<Attach>,
    /// Milliseconds from the attach call until the TCX program judges a packet.
    pub(crate) effect_p50_ms: f64,
    /// Milliseconds.
    pub(crate) effect_p99_ms: f64,
    /// Milliseconds from a new pod with an interface to its enforcement: compiled, written and attached.
    pub(crate) pod_p50_ms: f64,
    /// Milliseconds.
    pub(crate) pod_p75_ms: f64,
    /// Milliseconds.
    pub(crate) pod_p99_ms: f64,
    /// Number of new pods in each measurement.
    pub(crate) new_pods: u32,
    /// Remote pods added, relabelled and deleted per second.
    pub(crate) events_per_second: u32,
    /// Percent of one core for these events, including sweeps of tables and flows.
    pub(crate) cpu_percent: f64,
    /// Percent of one core without events.
    pub(crate) idle_percent: f64,
    /// Milliseconds from each of these events to its enforcement.
    pub(crate) event_p50_ms: f64,
    /// Milliseconds.
    pub(crate) event_p99_ms: f64,
    /// Milliseconds.
    pub(crate) event_max_ms: f64,
}

/// Cost of attaching both programs to a new interface.
#[derive(Debug, Serialize)]
pub(crate) struct Attach {
    /// Attach mode.
    pub(crate) mode: String,
    /// Milliseconds.
    pub(crate) p50_ms: f64,
    /// Milliseconds.
    pub(crate) p75_ms: f64,
    /// Milliseconds.
    pub(crate) p99_ms: f64,
    /// Milliseconds of CPU time; the rest is waiting.
    pub(crate) cpu_p50_ms: f64,
    /// Milliseconds to replace both programs, as when a veth with the programs for unknown devices becomes a pod's.
    pub(crate) exchange_p50_ms: f64,
    /// Milliseconds.
    pub(crate) exchange_p99_ms: f64,
}

/// The agent's default: all tables are compared within ten seconds, in this many parts.
const READBACK: (Duration, u32) = (Duration::from_secs(10), 40);
const EVENTS_PER_SECOND: u32 = 100;

/// Runs all measurements.
pub(crate) fn measure(
    scale: Scale,
    new_pods: u32,
    time: Duration,
    buckets: u32,
    pins: &Path,
    progress: &dyn Fn(&str),
) -> Result<NodeResults> {
    netpold_testbed::sweep();
    progress("control: interfaces");
    let veths = Veths::new(scale.local + new_pods + 1)?;
    let attach = attach(&veths, scale.local, buckets, &pins.join("attach"))?;
    let effect = effect::measure(new_pods, &pins.join("effect"))?;
    progress("control: the agent's engine at real interfaces");
    let mut engine = MeasuredEngine::new(scale, &veths, buckets, &pins.join("engine"))?;
    let pods = (0..new_pods).map(|n| engine.add_pod(n, &veths)).collect::<Result<Vec<_>>>()?;
    engine.check(scale.local + new_pods)?;
    progress("control: processor time at pod events");
    let (idle_percent, _) = engine.load(time, 0)?;
    let (cpu_percent, events) = engine.load(time, EVENTS_PER_SECOND)?;
    Ok(NodeResults {
        attach,
        effect_p50_ms: percentile(&effect, 0.5),
        effect_p99_ms: percentile(&effect, 0.99),
        pod_p50_ms: percentile(&pods, 0.5),
        pod_p75_ms: percentile(&pods, 0.75),
        pod_p99_ms: percentile(&pods, 0.99),
        new_pods,
        events_per_second: EVENTS_PER_SECOND,
        cpu_percent,
        idle_percent,
        event_p50_ms: percentile(&events, 0.5),
        event_p99_ms: percentile(&events, 0.99),
        event_max_ms: percentile(&events, 1.0),
    })
}

/// Host sides of veths with peers in another namespace.
pub(crate) struct Veths {
    pub(crate) indices: Vec<u32>,
    _netns: Netns,
}

impl Veths {
    pub(crate) fn new(count: u32) -> Result<Self> {
        let netns = Netns::create("control")?;
        let path = netns.path();
        let lines = (0..count).map(|n| {
            let path = path.display();
            format!(
                "link add ctl{n} type veth peer name peer{n} netns {path}\nlink set ctl{n} up\n"
            )
        });
        feed("ip", &["-batch", "-"], &lines.collect::<String>())?;
        let indices =
            (0..count).map(|n| host::ifindex(&format!("ctl{n}"))).collect::<Result<_>>()?;
        Ok(Self { indices, _netns: netns })
    }
}

/// Attaches both programs to all interfaces; measures those after the first `local` ones.
fn attach(veths: &Veths, local: u32, buckets: u32, pins: &Path) -> Result<Vec<Attach>> {
    let cluster = FlowCluster::new(Size::BASE, [Local::isolated(1), Local::open(2)]);
    let mut world = LoadedCluster::new(&pins.join("world"), cluster.changes(), buckets)?;
    let programs = Direction::BOTH
        .map(|direction| program(&mut world, direction).map(|program| (direction, program)));
    let programs = programs.into_iter().collect::<Result<Vec<_>>>()?;
    let other = load_empty()?;
    let modes = [AttachMode::Tcx, AttachMode::Clsact].map(|mode| -> Result<Attach> {
        let mut attacher = Attacher::new(&pins.join("links"), mode)?;
        let (mut times, mut cpu) = (Vec::new(), Vec::new());
        for &ifindex in &veths.indices {
            let (start, used) = (Instant::now(), processor_time(libc::RUSAGE_THREAD)?);
            for (direction, program) in &programs {
                attacher.attach(program.as_fd(), Hook { ifindex, direction: *direction })?;
            }
            times.push(start.elapsed().as_secs_f64() * 1e3);
            let used = processor_time(libc::RUSAGE_THREAD)?.saturating_sub(used);
            cpu.push(used.as_secs_f64() * 1e3);
        }
        let exchange = |&ifindex: &u32| -> Result<f64> {
            let start = Instant::now();
            for direction in Direction::BOTH {
                attacher.attach(other.as_fd(), Hook { ifindex, direction })?;
            }
            Ok(start.elapsed().as_secs_f64() * 1e3)
        };
        let exchanges = veths.indices.iter().map(exchange).collect::<Result<Vec<_>>>()?;
        attacher.retain(|_| false)?;
        let (times, cpu) = (times.split_off(local as usize), cpu.split_off(local as usize));
        Ok(Attach {
            mode: mode.to_string(),
            p50_ms: percentile(&times, 0.5),
            p75_ms: percentile(&times, 0.75),
            p99_ms: percentile(&times, 0.99),
            cpu_p50_ms: percentile(&cpu, 0.5),
            exchange_p50_ms: percentile(&exchanges, 0.5),
            exchange_p99_ms: percentile(&exchanges, 0.99),
        })
    });
    modes.into_iter().collect()
}

/// The engine with a large cluster.
pub(crate) struct MeasuredEngine {
    pub(crate) engine: Engine,
    pub(crate) scale: Scale,
    /// Folder of the pinned links.
    links: PathBuf,
    /// Number of events so far.
    events: u32,
}

impl MeasuredEngine {
    pub(crate) fn new(scale: Scale, veths: &Veths, buckets: u32, pins: &Path) -> Result<Self> {
        let root = PinRoot::open(pins)?;
        let links = root.links();
        let options = DataplaneOptions::new(Buckets::fixed(buckets), 1);
        let dataplane = Dataplane::new(root, Attacher::new(&links, AttachMode::Tcx)?, options);
        let options = Options { node: NODE.into(), first_endpoint_id: 1, ..Options::default() };
        let mut engine = Engine::new(Compiler::new(options), dataplane, Capacity::SMALL);
        let objects = scale.changes().into_iter();
        objects.filter(|change| !matches!(change, Change::Interface(_))).for_each(|change| {
            engine.ingest(change);
        });
        let mut subject = Self { engine, scale, links, events: 0 };
        (0..scale.local).for_each(|n| subject.interface(n, veths));
        subject.step()?;
        subject.check(scale.local)?;
        Ok(subject)
    }

    /// Adds the interface of local pod `number`.
    fn interface(&mut self, number: u32, veths: &Veths) {
        let index = veths.indices[number as usize];
        let addresses = self.scale.pod(number).addresses;
        self.engine.ingest(Change::Interface(Interface {
            index,
            incarnation: 1,
            addresses,
            ..Interface::default()
        }));
    }

    fn step(&mut self) -> Result<()> {
        let _later = self.engine.step(None);
        ensure!(self.engine.is_settled(), "the engine could not enforce: {:?}", self.problems());
        Ok(())
    }

    pub(crate) fn problems(&mut self) -> Vec<String> {
        self.engine.report(&[]).problems
    }

    /// Milliseconds until another local pod is enforced.
    fn add_pod(&mut self, number: u32, veths: &Veths) -> Result<f64> {
        let number = self.scale.local + number;
        let mut pod = self.scale.pod(number);
        pod.node = NODE.into();
        self.engine.ingest(Change::Pod(pod));
        self.interface(number, veths);
        let start = Instant::now();
        self.step()?;
        let took = start.elapsed();
        self.settle();
        Ok(took.as_secs_f64() * 1e3)
    }

    /// Background work of the agent after an update.
    pub(crate) fn settle(&mut self) {
        grace_period();
        self.engine.grace_passed();
    }

    /// Checks that each interface has both programs.
    fn check(&self, interfaces: u32) -> Result<()> {
        let attached = Attacher::new(&self.links, AttachMode::Tcx)?.attached()?.len();
        ensure!(
            attached as u32 == 2 * interfaces,
            "{attached} programs at {interfaces} interfaces"
        );
        Ok(())
    }

    /// Percent of a core used while this many events happen per second, and milliseconds from each event to its
    /// enforcement.
    fn load(&mut self, time: Duration, events: u32) -> Result<(f64, Vec<f64>)> {
        let parts = READBACK.0 / READBACK.1;
        let mut readback = Instant::now() + parts;
        let begin = Instant::now();
        let before = processor_time(libc::RUSAGE_SELF)?;
        self.engine.sweep();
        let (mut done, all) = (0, events * time.as_secs() as u32);
        let mut times = Vec::new();
        while begin.elapsed() < time || done < all {
            let next = (done < all).then(|| begin + Duration::from_secs(1) * done / events);
            if Instant::now() >= readback {
                self.engine.readback(READBACK.1);
                readback += parts;
            } else if next.is_some_and(|next| Instant::now() >= next) {
                times.push(self.event()?);
                done += 1;
            } else {
                let until = next.unwrap_or(readback).min(readback);
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
            }
        }
        let (used, took) =
            (processor_time(libc::RUSAGE_SELF)?.saturating_sub(before), begin.elapsed());
        ensure!(took < time * 2, "{all} events took {took:?} and not {time:?}");
        Ok((100.0 * used.as_secs_f64() / took.as_secs_f64(), times))
    }

    /// Adds, relabels or deletes a remote pod in turn; returns the milliseconds to its enforcement.
    fn event(&mut self) -> Result<f64> {
        let mut pod = self.scale.pod(self.scale.pods + self.events / 3);
        let change = match self.events % 3 {
            0 => Change::Pod(pod),
            1 => {
                pod.labels.insert("app".into(), "app1".into());
                Change::Pod(pod)
            }
            _ => Change::PodGone(pod.key),
        };
        self.events += 1;
        let start = Instant::now();
        self.engine.ingest(change);
        self.step()?;
        let took = start.elapsed();
        self.settle();
        Ok(took.as_secs_f64() * 1e3)
    }
}

/// User and system time of this process or thread.
fn processor_time(who: libc::c_int) -> Result<Duration> {
    // SAFETY: an all-zero rusage is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the result buffer outlives the call.
    let result = unsafe { libc::getrusage(who, &raw mut usage) };
    nix::errno::Errno::result(result).context("getrusage")?;
    let microseconds =
        |time: libc::timeval| (time.tv_sec * 1_000_000 + time.tv_usec).unsigned_abs();
    Ok(Duration::from_micros(microseconds(usage.ru_utime) + microseconds(usage.ru_stime)))
}

/// Prints the lines.
pub(crate) fn print(node: &NodeResults) {
    let NodeResults { pod_p50_ms, pod_p99_ms, new_pods, .. } = node;
    say(&format!(
        "\nThe agent's engine at real interfaces, {new_pods} new pods one after the other"
    ));
    for attach in &node.attach {
        let Attach { mode, p50_ms, p99_ms, cpu_p50_ms, exchange_p50_ms, exchange_p99_ms, .. } =
            attach;
        say(&format!(
            "both programs attached ({mode}) in {p50_ms:.3} ms (p50), {p99_ms:.3} ms (p99); \
             processor time {cpu_p50_ms:.3} ms; exchanged in {exchange_p50_ms:.3} ms (p50), \
             {exchange_p99_ms:.3} ms (p99)"
        ));
    }
    let NodeResults { effect_p50_ms, effect_p99_ms, .. } = node;
    say(&format!(
        "a TCX program judges packets {effect_p50_ms:.3} ms (p50), {effect_p99_ms:.3} ms (p99) after \
         the call begins\n\
         compiled, written and attached in {pod_p50_ms:.3} ms (p50), {pod_p99_ms:.3} ms (p99)\n\
         at {} pod events per second {:.2} % of one core, {:.2} % without events; each enforced within {:.3} \
         ms (p50), {:.3} ms (p99), {:.3} ms (longest)",
        node.events_per_second,
        node.cpu_percent,
        node.idle_percent,
        node.event_p50_ms,
        node.event_p99_ms,
        node.event_max_ms,
    ));
}
