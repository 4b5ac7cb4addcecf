//! Requests of the control socket.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use netpold_api::flows::{FLOWS_REQUEST, Page};
use netpold_api::learn::LEARN_REQUEST;
use netpold_api::observe::OBSERVE_REQUEST;
use netpold_api::probe::{EXPLAIN_REQUEST, NodeAnswer};
use netpold_api::rules::RULES_REQUEST;
use netpold_api::source::SourceStatus;
use netpold_api::status::{READY_REQUEST, STATUS_REQUEST, Status};
use netpold_api::trace::TRACE_REQUEST;
use netpold_core::lock::lock;
use tokio::sync::watch;

use super::Requests;
use crate::engine::{Engine, flow_reader, name_remotes, observed};
use crate::events::DropLog;
use crate::metrics::Metrics;
use crate::observe::{Attributions, Observer};
use crate::trace::Tracer;

/// Returns the handlers of the agent on the node with this name.
#[must_use]
pub fn requests(
    node: &str,
    engine: &Arc<Mutex<Engine>>,
    drops: &Arc<Mutex<DropLog>>,
    source: watch::Receiver<SourceStatus>,
    readiness: Arc<Metrics>,
) -> Requests {
    let status = {
        let (engine, drops) = (Arc::clone(engine), Arc::clone(drops));
        move || {
            let recent = lock(&drops).recent();
            let source = source.borrow().clone();
            let report = lock(&engine).report(&recent);
            Status { in_sync: source.in_sync && report.in_sync, source, ..report }
        }
    };
    let rules = {
        let engine = Arc::clone(engine);
        let node = node.to_owned();
        move || lock(&engine).rule_use().answer(&node)
    };
    let requests = Requests::default().on(STATUS_REQUEST, move |_| status());
    let requests = requests.on(RULES_REQUEST, move |_| rules());
    let requests = requests.on(FLOWS_REQUEST, flows_of(engine));
    let requests = requests.on(EXPLAIN_REQUEST, explained_by(engine, drops));
    let observer = {
        let engine = Arc::clone(engine);
        let mut attributions = Attributions::default();
        Observer::new(node.to_owned(), lock(drops).journal(), move |seen, filter| {
            observed(&lock(&engine), seen, filter, &mut attributions)
        })
    };
    let observer = Arc::new(observer);
    let requests = requests.on_stream(OBSERVE_REQUEST, move |stream, request| {
        Arc::clone(&observer).serve(stream, request)
    });
    let tracer = Arc::new(Tracer::new(Arc::clone(engine)));
    let requests = requests.on_stream(TRACE_REQUEST, move |stream, request| {
        Arc::clone(&tracer).serve(stream, request)
    });
    let recorded = {
        let engine = Arc::clone(engine);
        let node = node.to_owned();
        move || lock(&engine).rule_use().flows(&node)
    };
    let requests = requests.on(READY_REQUEST, move |_| readiness.not_ready());
    requests.on(LEARN_REQUEST, move |_| recorded())
}

/// Answers probes of traffic.
fn explained_by(
    engine: &Arc<Mutex<Engine>>,
    drops: &Arc<Mutex<DropLog>>,
) -> impl Fn(&str) -> NodeAnswer + use<> {
    let (engine, drops) = (Arc::clone(engine), Arc::clone(drops));
    move |request| match serde_json::from_str(request) {
        Ok(probe) => {
            let mut expect = |event| lock(&drops).expect(event, Instant::now());
            lock(&engine).probe(&probe, &mut expect)
        }
        Err(error) => NodeAnswer { reason: Some(error.to_string()), ..NodeAnswer::default() },
    }
}

/// Answers requests for flows. The engine is not locked while the table is read.
fn flows_of(engine: &Arc<Mutex<Engine>>) -> impl Fn(&str) -> Page + use<> {
    let engine = Arc::clone(engine);
    move |request| {
        let problem = |problem: String| Page { problem: Some(problem), ..Page::default() };
        let request = match serde_json::from_str(request) {
            Ok(request) => request,
            Err(error) => return problem(format!("invalid request: {error}")),
        };
        let reader = flow_reader(&lock(&engine));
        match reader {
            Ok(Some(reader)) => {
                let mut page = reader.page(&request);
                name_remotes(&lock(&engine), &mut page.flows);
                page
            }
            Ok(None) => problem("nothing has been written to the kernel yet".to_owned()),
            Err(error) => problem(format!("cannot read the flow tables: {error}")),
        }
    }
}
