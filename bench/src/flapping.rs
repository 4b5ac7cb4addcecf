//! Edits of small policies while another tenant flaps a large one, in the agent's engine with real interfaces.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netpold_core::model::{Change, Interface, PortMatch, PortRule, Protocol};
use serde::Serialize;

use crate::control::{memory, percentile};
use crate::engine::{MeasuredEngine, Veths};
use crate::figures::say;
use crate::hostile;

/// Milliseconds from an edit of a small policy to its enforcement, while a tenant of another namespace edits a large
/// policy and relabels its pod in and out of it [`FLAPS_PER_SECOND`] times a second.
#[derive(Debug, Serialize)]
pub(crate) struct Flapping {
    /// Pods of the cluster.
    pub(crate) pods: u32,
    /// Number of edits of the small policies.
    pub(crate) edits: u32,
    /// Milliseconds.
    pub(crate) p50_ms: f64,
    /// Milliseconds.
    pub(crate) p99_ms: f64,
    /// Milliseconds.
    pub(crate) longest_ms: f64,
    /// Edits that took more than 100 ms.
    pub(crate) late: u32,
    /// Peak resident anonymous memory of the process.
    pub(crate) own_bytes: u64,
}

/// Edits of the large policy, each with a relabelled pod.
const FLAPS_PER_SECOND: u32 = 10;
/// Edits of the small policies.
const EDITS_PER_SECOND: u32 = 20;
/// Rules of the large policy, each allowing one port to all but one address.
const FLAPPING_RULES: u32 = 10_000;
/// Target latency.
const LATE_MS: f64 = 100.0;

/// Measures for this time.
pub(crate) fn measure(
    time: Duration,
    buckets: u32,
    pins: &Path,
    progress: &dyn Fn(&str),
) -> Result<Flapping> {
    netpold_testbed::sweep();
    progress(&format!("control: edits beside a tenant who flaps, {time:?}"));
    let scale = hostile::BESIDE;
    let veths = Veths::new(scale.local + 1)?;
    let mut subject = MeasuredEngine::new(scale, &veths, buckets, pins)?;
    let index = veths.indices.last().copied().context("an interface")?;
    let addresses = hostile::local_pod(true).addresses;
    subject.engine.ingest(Change::Interface(Interface {
        index,
        incarnation: 1,
        addresses,
        ..Interface::default()
    }));
    let edits = time.as_secs() as u32 * EDITS_PER_SECOND;
    let per_flap = EDITS_PER_SECOND / FLAPS_PER_SECOND;
    let (mut latencies, mut own_bytes, mut turn) = (Vec::new(), 0, false);
    let begin = Instant::now();
    let mut again = None;
    for edit in 0..edits {
        let due = begin + Duration::from_secs(1) * edit / EDITS_PER_SECOND;
        // Runs the deferred work of the engine at the requested time.
        while let Some(at) = again.filter(|at| *at < due) {
            wait(at);
            again = subject.engine.step(None);
        }
        wait(due);
        if edit % per_flap == 0 {
            turn = !turn;
            let large = hostile::blocks_but_one(FLAPPING_RULES, turn).into_iter();
            let changes = large.chain([Change::Pod(hostile::local_pod(edit % 3 > 0))]);
            changes.for_each(|change| subject.engine.ingest(change));
        }
        let port = PortMatch::Range(3000 + (edit % 1000) as u16, 4000);
        let ports = Some(vec![PortRule { protocol: Protocol::Tcp, port }]);
        let number = edit % scale.local;
        subject.engine.ingest(scale.edited(number, |rule| rule.ports = ports));
        again = subject.engine.step(None);
        ensure!(subject.engine.is_settled(), "not enforced: {:?}", subject.problems());
        let took = due.elapsed().as_secs_f64() * 1e3;
        latencies.push(took);
        subject.settle();
        if edit % EDITS_PER_SECOND == 0 {
            own_bytes = own_bytes.max(memory()?);
        }
    }
    let late = latencies.iter().filter(|took| **took > LATE_MS).count() as u32;
    Ok(Flapping {
        pods: scale.pods,
        edits,
        p50_ms: percentile(&latencies, 0.5),
        p99_ms: percentile(&latencies, 0.99),
        longest_ms: percentile(&latencies, 1.0),
        late,
        own_bytes,
    })
}

fn wait(until: Instant) {
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
}

/// Prints the result.
pub(crate) fn print(flapping: &Flapping) {
    let Flapping { pods, edits, p50_ms, p99_ms, longest_ms, late, own_bytes } = flapping;
    say(&format!(
        "\n{edits} edits beside a tenant who flaps a policy of {FLAPPING_RULES} rules and its pod's labels, \
         {pods} pods: enforced within {p50_ms:.1} ms (p50), {p99_ms:.1} ms (p99), {longest_ms:.0} ms \
         (longest), {late} of them later than {LATE_MS} ms; {} MB of own memory at most",
        own_bytes / 1_000_000
    ));
}
