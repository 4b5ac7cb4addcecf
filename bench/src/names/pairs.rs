//! Connections that begin the moment an answer arrives.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;

use super::lookup::{Lookup, answer_lookup};
use super::scene::{PORT, Scene};
use crate::agent;

/// Lookups, each with a connection behind it.
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
    /// Microseconds from an answer to the connection, 99th percentile.
    pub(crate) connected_p99_us: f64,
}

/// Pairs from one port.
const OF_A_PORT: u32 = 8;
/// Time after which TCP sends a SYN again.
const AGAIN: Duration = Duration::from_millis(900);
const PATIENCE: Duration = Duration::from_secs(10);

/// Measures this number of pairs. The addresses have not been looked up before.
pub(crate) fn measure(pairs: u32) -> Result<Pairs> {
    let mut scene = Scene::new(answer_lookup)?;
    scene.enforce(&["*.race.example".to_owned()])?;
    let before = agent::drops(scene.agent())?;
    // Without its answer an address is closed: the first SYN drops.
    let first = (Lookup::new(pairs).target(), PORT).into();
    let opened = scene.client().run(|| TcpStream::connect_timeout(&first, AGAIN).is_ok())?;
    let denied = agent::drops(scene.agent())? - before;
    ensure!(!opened && denied > 0, "an address is open before its name was looked up");
    let (unanswered, times) = scene.client().run(|| run(&scene, pairs))??;
    let late = times.iter().filter(|time| **time > AGAIN).count();
    let times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
    Ok(Pairs {
        pairs,
        unanswered,
        late: late as u32,
        dropped: agent::drops(scene.agent())? - before - denied,
        connected_p99_us: crate::control::percentile(&times, 0.99),
    })
}

/// Looks up and connects, in the client's namespace; returns the number of lookups without an answer, and the times of all
/// connections.
fn run(scene: &Scene, pairs: u32) -> Result<(u32, Vec<Duration>)> {
    let (mut unanswered, mut times) = (0, Vec::new());
    let mut asker = scene.asker_here()?;
    for number in 0..pairs {
        if number % OF_A_PORT == 0 {
            asker = scene.asker_here()?;
        }
        let lookup = Lookup::new(number);
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
