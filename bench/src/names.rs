//! Domain names: lookups of a pod, and connections to the addresses of the answers, with an agent of its own process.

mod lookup;
mod pairs;
mod room;
mod scene;
mod steady;

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::figures::{say, spread, table};
use pairs::Pairs;
use room::Room;
use steady::{Phase, Times};

/// Results.
#[derive(Debug, Serialize)]
pub(crate) struct NamesResults {
    pub(crate) phases: Vec<Phase>,
    pub(crate) pairs: Pairs,
    pub(crate) rooms: Vec<Room>,
}

/// Measures this number of pairs, and lookups next to a running agent for a time.
pub(crate) fn measure(count: u32, time: Duration, progress: &dyn Fn(&str)) -> Result<NamesResults> {
    netpold_testbed::sweep();
    let phases = steady::measure(time, progress)?;
    progress("names: pairs of an answer and a connection");
    let pairs = pairs::measure(count)?;
    progress("names: a hundred thousand addresses");
    let rooms = room::measure()?;
    Ok(NamesResults { phases, pairs, rooms })
}

/// Prints the tables.
pub(crate) fn print(names: &NamesResults) {
    say(
        "\nLookups, 500 a second on a node with netpold and on one without (added: minimum / median of rounds)",
    );
    let rows = names.phases.iter().flat_map(|phase| {
        let row = |node: &str, times: &Times| {
            let us = |us: f64| format!("{us:.0}");
            let [p50, p99, max] = [times.p50_us, times.p99_us, times.max_us].map(us);
            let counts = [times.lookups, times.lost, times.above_5_ms].map(|it| it.to_string());
            let [lookups, lost, late] = counts;
            vec![phase.agent.to_owned(), node.to_owned(), lookups, lost, p50, p99, max, late]
        };
        let added = [phase.added_p50_us, phase.added_p99_us].map(spread);
        let with = row("with", &phase.with).into_iter().chain(added).collect();
        [row("without", &phase.without), with]
    });
    let header = [
        "the agent",
        "netpold",
        "lookups",
        "lost",
        "p50 us",
        "p99 us",
        "longest us",
        "above 5 ms",
        "added p50 us",
        "added p99 us",
    ];
    table(&header, rows);
    for Phase { agent, new, new_denied, known, known_denied, .. } in &names.phases {
        say(&format!(
            "the agent {agent}: of {new} datagrams at once to the address looked up, {new_denied} were denied; of {known} to \
             addresses looked up before, {known_denied}"
        ));
    }
    let Pairs { pairs, unanswered, late, dropped, backlog_drops, connected_p99_us } = &names.pairs;
    say(&format!(
        "\n{pairs} pairs of an answer and a connection: {unanswered} lookups without an answer, {dropped} packets dropped by the \
         programs and {backlog_drops} for full backlogs, {late} connections late; connected after {connected_p99_us:.0} us (p99)"
    ));
    for room in &names.rooms {
        let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
        say(&format!(
            "{} names, {} addresses looked up: {} of them closed; maps of names {}, all of the agent's maps {}",
            room.names,
            room.addresses,
            room.displaced,
            megabytes(room.of_names()),
            megabytes(room.bytes.values().sum()),
        ));
    }
}
