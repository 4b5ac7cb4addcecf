//! Lookups at a steady rate while the agent runs, ends and starts, alongside equally many on a node without netpold.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{available_parallelism, scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netpold_testbed::cluster::TestCluster;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;

use super::lookup::{DnsLookup, answer_lookup};
use super::scene::{Asker, Scene};
use crate::control::percentile;
use crate::figures::Spread;
use crate::host;

/// Lookups during one state of the agent.
#[derive(Debug, Serialize)]
pub(crate) struct Phase {
    /// State of the agent.
    pub(crate) agent: &'static str,
    /// On the node without programs.
    pub(crate) without: Times,
    /// On the node with the agent's programs.
    pub(crate) with: Times,
    /// Additional microseconds of a lookup with programs, p50 and p99: of rounds of a thousand lookups each.
    pub(crate) added_p50_us: Spread,
    pub(crate) added_p99_us: Spread,
    /// Datagrams sent to the address of a lookup immediately after it.
    pub(crate) new: u32,
    /// Those that did not arrive.
    pub(crate) new_denied: u32,
    /// Datagrams to addresses that were looked up before.
    pub(crate) known: u32,
    /// Those that did not arrive.
    pub(crate) known_denied: u32,
}

/// Times of lookups.
#[derive(Debug, Serialize)]
pub(crate) struct Times {
    /// Number.
    pub(crate) lookups: u32,
    /// Lookups without an answer.
    pub(crate) lost: u32,
    /// Microseconds to an answer.
    pub(crate) p50_us: f64,
    /// Microseconds.
    pub(crate) p99_us: f64,
    /// Microseconds.
    pub(crate) max_us: f64,
    /// Lookups that took longer than 5 ms.
    pub(crate) above_5_ms: u32,
}

/// Lookups per second on each node.
const RATE: u32 = 500;
/// Lookups of a round.
const ROUND: usize = 1_000;
/// Addresses that are looked up first.
const KNOWN: u32 = 50;
/// Numbers of datagrams to these, above those of lookups.
const AGAIN: u32 = 1 << 30;
/// One of this number of lookups has a new name, and is followed by datagrams.
const OF_LOOKUPS: u32 = 5;
/// The other lookups repeat this number of names, from this number on.
const NAMES: u32 = 1_000;
const REPEATED: u32 = 130_000;
const LATE: f64 = 5e3;
/// Time without an agent, or with a stopped one.
const PAUSE: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_mins(1);
/// Kills in the loop.
const KILLS: u32 = 20;
/// Time from the first start in the loop to the kill; each agent lives this much longer than the one before.
const LIFE: Duration = Duration::from_millis(100);
/// Busy threads on each processor.
const BUSY: usize = 4;

/// Lines in the logs of both agents, once the second one enforces.
const TAKES_OVER: [&str; 2] = ["another agent takes over", "INFO enforced"];

/// Nodes without and with an agent.
struct NodePair {
    without: Asker,
    _without: Scene,
    with: Asker,
    scene: Scene,
    /// Number of the next lookup.
    next: u32,
}

/// Samples of a phase.
#[derive(Default)]
struct Samples {
    /// Times without and with programs, `None` for lost ones.
    took: [Vec<Option<Duration>>; 2],
    new: HashSet<u32>,
    known: HashSet<u32>,
}

/// Measures all phases. In the first one, the agent runs undisturbed for `time`.
pub(crate) fn measure(time: Duration, progress: &dyn Fn(&str)) -> Result<Vec<Phase>> {
    let mut nodes = NodePair::new()?;
    let mut phases = Vec::new();
    let mut phase = |agent, happens: &mut dyn FnMut(&mut Scene) -> Result<()>| -> Result<()> {
        progress(&format!("names: lookups, the agent {agent}"));
        let phase = nodes.phase(agent, happens)?;
        let Times { lookups, lost, p99_us, max_us, .. } = &phase.with;
        progress(&format!(
            "names: {lookups} lookups, {lost} lost, {p99_us:.0} us p99, {max_us:.0} us longest"
        ));
        phases.push(phase);
        Ok(())
    };
    phase("runs", &mut |_| {
        sleep(time);
        Ok(())
    })?;
    phase("is killed, and started", &mut |scene| {
        let cluster = scene.cluster_mut();
        cluster.agents[0].end(Signal::SIGKILL);
        sleep(PAUSE);
        cluster.restart(0);
        Ok(())
    })?;
    phase("is killed in a loop", &mut |scene| {
        let cluster = scene.cluster_mut();
        cluster.agents[0].end(Signal::SIGKILL);
        for number in 1..=KILLS {
            cluster.agents[0].restart(&cluster.nodes[0])?;
            // Each kill meets another moment of the start, or an agent that enforces.
            sleep(LIFE * number);
            cluster.agents[0].end(Signal::SIGKILL);
        }
        cluster.restart(0);
        Ok(())
    })?;
    phase("waits for the processors", &mut |scene| {
        let stop = AtomicBool::new(false);
        scope(|threads| -> Result<()> {
            let at_end = AtEnd(&stop);
            for _ in 0..BUSY * available_parallelism()?.get() {
                threads.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let began = Instant::now();
            while began.elapsed() < PAUSE {
                // An edit, and its enforcement.
                scene.cluster_mut().enforce();
            }
            drop(at_end);
            Ok(())
        })
    })?;
    phase("is stopped, and continued", &mut |scene| {
        let agent = Pid::from_raw(scene.agent().pid() as i32);
        kill(agent, Signal::SIGSTOP)?;
        sleep(PAUSE);
        kill(agent, Signal::SIGCONT)?;
        scene.cluster_mut().wait();
        Ok(())
    })?;
    phase("is restarted", &mut |scene| {
        scene.cluster_mut().restart(0);
        Ok(())
    })?;
    phase("is replaced by a second one", &mut |scene| {
        let cluster = scene.cluster_mut();
        let lines = |cluster: &TestCluster| {
            TAKES_OVER.map(|line| cluster.agents[0].log().matches(line).count())
        };
        let before = lines(cluster);
        let former = cluster.agents[0].succeed(&cluster.nodes[0])?;
        let deadline = Instant::now() + PATIENCE;
        while lines(cluster).iter().zip(before).any(|(now, before)| *now == before) {
            ensure!(Instant::now() < deadline, "the second agent does not take over");
            sleep(Duration::from_millis(20));
        }
        cluster.wait();
        drop(former);
        Ok(())
    })?;
    Ok(phases)
}

impl NodePair {
    fn new() -> Result<Self> {
        let without = Scene::new(answer_lookup)?;
        let mut scene = Scene::new(answer_lookup)?;
        scene.enforce(&["*.race.example".to_owned()])?;
        let nodes = Self {
            without: without.asker()?,
            _without: without,
            with: scene.asker()?,
            scene,
            next: KNOWN,
        };
        for number in 0..KNOWN {
            for asker in [&nodes.without, &nodes.with] {
                let lookup = DnsLookup::new(number);
                asker.ask(&lookup.question(), lookup.over_ipv6)?.context("no answer")?;
            }
        }
        Ok(nodes)
    }

    /// Performs lookups while `happens` changes the agent.
    fn phase(
        &mut self,
        agent: &'static str,
        happens: &mut dyn FnMut(&mut Scene) -> Result<()>,
    ) -> Result<Phase> {
        let stop = AtomicBool::new(false);
        let Self { without, with, scene, next, .. } = self;
        let askers = [&*without, &*with];
        let samples = scope(|threads| {
            let lookups = threads.spawn(|| look_up(askers, next, &stop));
            let at_end = AtEnd(&stop);
            let happened = happens(scene);
            drop(at_end);
            let samples = lookups.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            happened.and(samples)
        })?;
        let Samples { took: [without, with], new, known } = samples;
        let patience = Duration::from_secs(2);
        let rounds: Vec<[f64; 2]> = without
            .chunks_exact(ROUND)
            .zip(with.chunks_exact(ROUND))
            .map(|(without, with)| {
                let (without, with) = (microseconds(without), microseconds(with));
                [0.5, 0.99].map(|part| percentile(&with, part) - percentile(&without, part))
            })
            .collect();
        let added =
            [0, 1].map(|part| Spread::of(&rounds.iter().map(|it| it[part]).collect::<Vec<_>>()));
        Ok(Phase {
            agent,
            without: Times::of(&without),
            with: Times::of(&with),
            added_p50_us: added[0],
            added_p99_us: added[1],
            new: new.len() as u32,
            new_denied: self.scene.missing(&new, patience).len() as u32,
            known: known.len() as u32,
            known_denied: self.scene.missing(&known, patience).len() as u32,
        })
    }
}

/// Sets a flag when dropped, also on a panic.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Looks up on both nodes in turn; immediately after some of the lookups, sends datagrams to the server, at the new
/// address and at a known one.
fn look_up(askers: [&Asker; 2], next: &mut u32, stop: &AtomicBool) -> Result<Samples> {
    host::run_first()?;
    let mut samples = Samples::default();
    let pause = Duration::from_secs(1) / RATE / 2;
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let is_new = next.is_multiple_of(OF_LOOKUPS);
        let lookup = DnsLookup::new(if is_new { *next } else { REPEATED + *next % NAMES });
        let question = lookup.question();
        for (asker, took) in askers.iter().zip(&mut samples.took) {
            sleep(due.saturating_duration_since(Instant::now()));
            due += pause;
            took.push(asker.ask(&question, lookup.over_ipv6)?);
        }
        if is_new {
            askers[1].send(*next, lookup.target())?;
            samples.new.insert(*next);
            askers[1].send(AGAIN + *next, DnsLookup::new(*next / OF_LOOKUPS % KNOWN).target())?;
            samples.known.insert(AGAIN + *next);
        }
        *next += 1;
    }
    Ok(samples)
}

fn microseconds(took: &[Option<Duration>]) -> Vec<f64> {
    took.iter().flatten().map(|time| time.as_secs_f64() * 1e6).collect()
}

impl Times {
    fn of(took: &[Option<Duration>]) -> Self {
        let times = microseconds(took);
        Self {
            lookups: took.len() as u32,
            lost: (took.len() - times.len()) as u32,
            p50_us: percentile(&times, 0.5),
            p99_us: percentile(&times, 0.99),
            max_us: percentile(&times, 1.0),
            above_5_ms: times.iter().filter(|time| **time > LATE).count() as u32,
        }
    }
}
