//! Connections that begin the moment an answer arrives.

use std::net::TcpStream;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use netpold_testbed::backlog_drops;
use serde::Serialize;

use super::lookup::{DnsLookup, answer_lookup};
use super::scene::{PORT, Scene};
use crate::agent;
use crate::control::percentile;

/// Lookups, each followed by a connection.
#[derive(Debug, Serialize)]
pub(crate) struct Pairs {
    /// Number.
    pub(crate) pairs: u32,
    /// Lookups without an answer.
    pub(crate) unanswered: u32,
    /// Connections whose SYN was sent again, or that failed.
    pub(crate) late: u32,
    /// Packets that the programs dropped.
    pub(crate) dropped: u64,
    /// Packets that the processors dropped before any program, for full backlogs.
    pub(crate) backlog_drops: u64,
    /// Microseconds from an answer to the connection, 99th percentile.
    pub(crate) connected_p99_us: f64,
}

/// Pairs from one port.
const OF_A_PORT: u32 = 8;
/// Time after which TCP sends a SYN again.
const AGAIN: Duration = Duration::from_millis(900);
const PATIENCE: Duration = Duration::from_secs(10);

/// Pairs on one node, whose table of addresses is far from full then.
const OF_A_NODE: u32 = 20_000;

/// Measures this number of pairs. The addresses have not been looked up before.
pub(crate) fn measure(pairs: u32) -> Result<Pairs> {
    let before = backlog_drops()?;
    let mut found = Pairs {
        pairs,
        unanswered: 0,
        late: 0,
        dropped: 0,
        backlog_drops: 0,
        connected_p99_us: 0.0,
    };
    let mut times = Vec::new();
    for first in (0..pairs).step_by(OF_A_NODE as usize) {
        let numbers = first..pairs.min(first + OF_A_NODE);
        times.extend(on_one_node(numbers, &mut found)?);
    }
    found.late = times.iter().filter(|time| **time > AGAIN).count() as u32;
    let times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
    found.backlog_drops = backlog_drops()? - before;
    found.connected_p99_us = percentile(&times, 0.99);
    Ok(found)
}

/// Measures pairs on a new node; returns the times of all connections.
fn on_one_node(numbers: Range<u32>, found: &mut Pairs) -> Result<Vec<Duration>> {
    let mut scene = Scene::new(answer_lookup)?;
    scene.enforce(&["*.race.example".to_owned()])?;
    let before = agent::drops(scene.agent())?;
    // Without its answer an address is closed: the first SYN drops.
    let other = (DnsLookup::new(numbers.end).target(), PORT).into();
    let opened = scene.client().run(|| TcpStream::connect_timeout(&other, AGAIN).is_ok())?;
    let denied = agent::drops(scene.agent())? - before;
    ensure!(!opened && denied > 0, "an address is open before its name was looked up");
    let (unanswered, times) = scene.client().run(|| run(&scene, numbers))??;
    found.unanswered += unanswered;
    found.dropped += agent::drops(scene.agent())? - before - denied;
    Ok(times)
}

/// Looks up and connects, in the client's namespace; returns the number of lookups without an answer, and the times of all
/// connections.
fn run(scene: &Scene, numbers: Range<u32>) -> Result<(u32, Vec<Duration>)> {
    let (mut unanswered, mut times) = (0, Vec::new());
    let mut asker = scene.asker_here()?;
    for number in numbers {
        if number.is_multiple_of(OF_A_PORT) {
            asker = scene.asker_here()?;
        }
        let lookup = DnsLookup::new(number);
        let (question, to) = (lookup.question(), (lookup.target(), PORT).into());
        if asker.ask(&question, lookup.over_ipv6)?.is_none() {
            unanswered += 1;
            continue;
        }
        let begun = Instant::now();
        let opened = TcpStream::connect_timeout(&to, PATIENCE).is_ok();
        times.push(if opened { begun.elapsed() } else { PATIENCE });
    }
    Ok((unanswered, times))
}
