//! Ten thousand names with a hundred thousand addresses: the memory of the maps, and the addresses that are open.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use netpold_testkit::names::Record;
use serde::Serialize;

use super::lookup::{A, AAAA, TTL, address, ask, name_of, respond};
use super::scene::Scene;
use crate::{host, maps};

/// A node with many names and addresses.
#[derive(Debug, Serialize)]
pub(crate) struct Room {
    /// Names of the pod's rules.
    pub(crate) names: u32,
    /// Addresses that it resolved names to.
    pub(crate) addresses: u32,
    /// Addresses of these at which nothing passes: others displaced them.
    pub(crate) displaced: u32,
    /// Bytes of the agent's maps, by name.
    pub(crate) bytes: BTreeMap<String, u64>,
}

const NAMES: u32 = 10_000;
/// Names with a hundred addresses; the others have nine.
const LARGE: u32 = 110;
/// Maps of names.
const TABLES: [&str; 9] = [
    "NAMES",
    "RESOLVERS",
    "LEARNED",
    "ASKED",
    "STREAMS",
    "DOUBTED_PODS",
    "DOUBTS",
    "STREAM_BYTES",
    "NAME_WORK",
];
/// Datagrams that are sent at once.
const BURST: usize = 64;
/// Times that each datagram is sent, since a socket's buffer may be full.
const TIMES: usize = 3;

impl Room {
    /// Bytes of the maps of names.
    pub(crate) fn of_names(&self) -> u64 {
        TABLES.iter().filter_map(|name| self.bytes.get(*name)).sum()
    }
}

/// Number of the first address of a name.
const fn first(name: u32) -> u32 {
    if name < LARGE { name * 100 } else { LARGE * 100 + (name - LARGE) * 9 }
}

/// Addresses of a name, by number: those of the first half have A records, the others AAAA.
fn numbers(name: u32, kind: u16) -> impl Iterator<Item = u32> {
    let (begin, end) = (first(name), first(name + 1));
    let middle = u32::midpoint(begin, end);
    if kind == A { begin..middle } else { middle..end }
}

/// The address of a number.
fn target(number: u32) -> IpAddr {
    let large = first(LARGE);
    let name = if number < large { number / 100 } else { LARGE + (number - large) / 9 };
    address(if numbers(name, A).any(|of_name| of_name == number) { A } else { AAAA }, number)
}

fn text(name: u32) -> String {
    format!("s{name}.room.example")
}

/// Answers questions about the names.
fn answer_room(question: &[u8]) -> Option<Vec<u8>> {
    let label = question.get(14..)?.split(|byte| !byte.is_ascii_digit()).next()?;
    let name: u32 = std::str::from_utf8(label).ok()?.parse().ok()?;
    let end = 12 + name_of(question).len();
    let kind = u16::from_be_bytes([question[end], question[end + 1]]);
    let record = |number| Record::address(vec![0xc0, 12], address(kind, number), TTL);
    let records: Vec<Record> = numbers(name, kind).map(record).collect();
    Some(respond(question, &records))
}

/// Measures with half of the names looked up, and with all.
pub(crate) fn measure() -> Result<Vec<Room>> {
    [NAMES / 2, NAMES].map(of_names).into_iter().collect()
}

/// Measures with the first of the names looked up.
fn of_names(known: u32) -> Result<Room> {
    let mut scene = Scene::new(answer_room)?;
    let names: Vec<String> = (0..NAMES).map(text).collect();
    scene.enforce(&names)?;
    look_up(&scene, known)?;
    // Before the datagrams, for whose flows the flow tables grow.
    let bytes = maps::by_name(&host::map_memory(&scene.agent().pid().to_string())?)?;
    let addresses = first(known);
    let displaced = closed(&scene, 0..addresses)?;
    let others = addresses..addresses + 1_000;
    let (others, found) = (others.len() as u32, closed(&scene, others)?);
    ensure!(found == others, "{} addresses are open that were not looked up", others - found);
    Ok(Room { names: NAMES, addresses, displaced, bytes })
}

/// Looks up both types of records of the first names.
fn look_up(scene: &Scene, known: u32) -> Result<()> {
    let asker = scene.asker()?;
    for name in 0..known {
        for (id, kind) in [A, AAAA].into_iter().enumerate() {
            let question = ask((2 * name) as u16 + id as u16, &text(name), kind, false);
            let answered = asker.ask(&question, name % 2 == 1)?;
            answered.with_context(|| format!("{} has no answer", text(name)))?;
        }
    }
    Ok(())
}

/// The number of addresses at which no datagram arrives.
fn closed(scene: &Scene, numbers: Range<u32>) -> Result<u32> {
    let asker = scene.asker()?;
    scene.forget();
    let mut missing: HashSet<u32> = numbers.collect();
    for _ in 0..TIMES {
        let mut sorted: Vec<u32> = missing.iter().copied().collect();
        sorted.sort_unstable();
        for burst in sorted.chunks(BURST) {
            burst.iter().try_for_each(|number| asker.send(*number, target(*number)))?;
            std::thread::sleep(Duration::from_millis(1));
        }
        missing = scene.missing(&missing, Duration::from_secs(1));
    }
    Ok(missing.len() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_is_in_one_answer() {
        let of_name = |name| [A, AAAA].map(|kind| numbers(name, kind).map(move |it| (kind, it)));
        let all: Vec<(u16, u32)> = (0..NAMES).flat_map(of_name).flatten().collect();
        assert!(all.iter().enumerate().all(|(place, (_, number))| place as u32 == *number));
        assert!(all.iter().all(|(kind, number)| address(*kind, *number) == target(*number)));
        assert_eq!(all.len(), 100_010);
        let longest = answer_room(&ask(1, &text(LARGE - 1), AAAA, false)).expect("an answer");
        assert!((1_400..=1_452).contains(&longest.len()), "{}", longest.len());
    }
}
