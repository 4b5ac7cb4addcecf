//! Pod events in the agent's engine while clients query the control socket.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netpold_api::learn::LEARN_REQUEST;
use netpold_api::probe::EXPLAIN_REQUEST;
use netpold_api::rules::RULES_REQUEST;
use netpold_api::source::SourceStatus;
use netpold_api::status::{READY_REQUEST, STATUS_REQUEST};
use netpold_client::socket;
use netpold_core::lock::{lock, try_lock};
use netpold_core::model::Change;
use netpold_dataplane::quiescence::grace_period;
use netpold_engine::Engine;
use netpold_engine::admin::{Admin, requests};
use netpold_engine::events::DropLog;
use netpold_engine::metrics::Metrics;
use netpold_engine::observe::ObserveServer;
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::cluster::NODE;
use crate::control::{Scale, milliseconds, percentile};
use crate::engine::{MeasuredEngine, Veths};
use crate::figures::{say, table};

/// Questions of one kind, or of all kinds in turn, alongside pod events.
#[derive(Debug, Serialize)]
pub(crate) struct Questioned {
    /// Kind of the questions.
    pub(crate) kind: &'static str,
    /// Answers per second.
    pub(crate) answers_per_second: f64,
    /// Milliseconds to an answer.
    pub(crate) answer_p50_ms: f64,
    /// Milliseconds.
    pub(crate) answer_p99_ms: f64,
    /// Pod events per second.
    pub(crate) events_per_second: f64,
    /// Milliseconds from a pod event to its enforcement.
    pub(crate) event_p50_ms: f64,
    /// Milliseconds.
    pub(crate) event_p99_ms: f64,
    /// Milliseconds.
    pub(crate) event_max_ms: f64,
}

const EVENTS_PER_SECOND: u32 = 100;
const QUESTIONS_PER_SECOND: u32 = 1000;
const CLIENTS: u32 = 20;
/// Questions by their kind.
const KINDS: [(&str, &[&str]); 6] = [
    ("none", &[]),
    ("status", &[STATUS_REQUEST]),
    ("rules", &[RULES_REQUEST]),
    ("learn", &[LEARN_REQUEST]),
    ("explain", &[EXPLAIN_REQUEST]),
    ("all", &[STATUS_REQUEST, RULES_REQUEST, LEARN_REQUEST, EXPLAIN_REQUEST, READY_REQUEST]),
];

/// Measures each kind for this time.
pub(crate) fn measure(
    scale: Scale,
    time: Duration,
    buckets: u32,
    pins: &Path,
    progress: &dyn Fn(&str),
) -> Result<Vec<Questioned>> {
    netpold_testbed::sweep();
    progress("questions: the agent's engine at real interfaces");
    let veths = Veths::new(scale.local)?;
    let mut engine = MeasuredEngine::new(scale, &veths, buckets, &pins.join("engine"))?.engine;
    engine.sweep();
    let (instruments, first) = (engine.instruments().clone(), engine.snapshot());
    let engine = Arc::new(Mutex::new(engine));
    let drops = Arc::<Mutex<DropLog>>::default();
    let source = watch::channel(SourceStatus::default()).1;
    let at_work = Arc::clone(&engine);
    let snapshot = move || try_lock(&at_work).map(|mut engine| engine.snapshot());
    let metrics = Metrics::new(
        &instruments,
        first,
        snapshot,
        Arc::clone(&drops),
        None,
        Default::default,
        source.clone(),
    );
    let resolve = |_: &[_], _: &_| (Vec::new(), 0);
    let observer = Arc::new(ObserveServer::new(NODE.to_owned(), lock(&drops).journal(), resolve));
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(2).enable_all().build()?;
    let _inside = runtime.enter();
    let path = std::env::temp_dir().join(format!("netpold-bench-{}.sock", std::process::id()));
    let requests = requests(NODE, &engine, &drops, observer, source, Arc::new(metrics));
    let _admin = Admin::serve(&path, requests)?;
    let mut events = 0;
    let kinds = KINDS.into_iter().map(|(kind, questions)| {
        progress(&format!("questions: {kind}"));
        let stop = AtomicBool::new(false);
        let (times, answers) = scope(|threads| {
            let clients = (0..CLIENTS).map(|_| threads.spawn(|| ask(&path, questions, &stop)));
            let clients: Vec<_> = clients.collect();
            let times = write(&engine, scale, time, &mut events);
            stop.store(true, Ordering::Relaxed);
            let answers = clients.into_iter().map(|client| client.join().ok());
            (times, answers.collect::<Vec<_>>())
        });
        let answers = answers.into_iter().map(|answers| answers.context("a client")?);
        let answers = answers.collect::<Result<Vec<_>>>()?.concat();
        let times = times?;
        Ok(Questioned {
            kind,
            answers_per_second: answers.len() as f64 / time.as_secs_f64(),
            answer_p50_ms: percentile(&answers, 0.5),
            answer_p99_ms: percentile(&answers, 0.99),
            events_per_second: times.len() as f64 / time.as_secs_f64(),
            event_p50_ms: percentile(&times, 0.5),
            event_p99_ms: percentile(&times, 0.99),
            event_max_ms: percentile(&times, 1.0),
        })
    });
    kinds.collect()
}

/// Sends queries at one client's share of the rate; returns the milliseconds of each answer.
fn ask(path: &Path, questions: &[&str], stop: &AtomicBool) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    let pause = Duration::from_secs(1) * CLIENTS / QUESTIONS_PER_SECOND;
    let mut due = Instant::now();
    let probe = json!({ "from": "ns0/pod0", "to": "10.0.3.233", "port": 80, "protocol": "TCP" });
    for request in questions.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        sleep(due.saturating_duration_since(Instant::now()));
        let start = Instant::now();
        let question = if *request == EXPLAIN_REQUEST { &probe } else { &Value::Null };
        let _answer: IgnoredAny = socket::request(path, request, question)?;
        times.push(milliseconds(start.elapsed()));
        due = (due + pause).max(Instant::now());
    }
    Ok(times)
}

/// Adds and deletes remote pods as the agent's loop does; returns the milliseconds from each event to its enforcement.
fn write(
    engine: &Mutex<Engine>,
    scale: Scale,
    time: Duration,
    events: &mut u32,
) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    let begin = Instant::now();
    let mut due = begin;
    while begin.elapsed() < time {
        sleep(due.saturating_duration_since(Instant::now()));
        due = (due + Duration::from_secs(1) / EVENTS_PER_SECOND).max(Instant::now());
        let pod = scale.pod(scale.pods + *events / 2);
        let change =
            if events.is_multiple_of(2) { Change::Pod(pod) } else { Change::PodGone(pod.key) };
        *events += 1;
        let start = Instant::now();
        lock(engine).ingest(change);
        let _later = lock(engine).step(None);
        times.push(milliseconds(start.elapsed()));
        grace_period();
        lock(engine).grace_passed();
    }
    ensure!(lock(engine).is_settled(), "the engine could not enforce");
    Ok(times)
}

/// Prints the results.
pub(crate) fn print(kinds: &[Questioned]) {
    if kinds.is_empty() {
        return;
    }
    say(&format!("\n{EVENTS_PER_SECOND} pod events and {QUESTIONS_PER_SECOND} questions a second"));
    let rows = kinds.iter().map(|it| {
        let ms = |ms: f64| format!("{ms:.3}");
        let events = [it.event_p50_ms, it.event_p99_ms, it.event_max_ms].map(ms);
        let answers = [it.answer_p50_ms, it.answer_p99_ms].map(ms);
        let names = [it.kind.to_owned(), format!("{:.0}", it.answers_per_second)].into_iter();
        let rate = [format!("{:.0}", it.events_per_second)];
        names.chain(answers).chain(rate).chain(events).collect()
    });
    let header = [
        "questions",
        "answers/s",
        "answer p50 ms",
        "answer p99 ms",
        "events/s",
        "event p50 ms",
        "event p99 ms",
        "event max ms",
    ];
    table(&header, rows);
}
