//! Routes of the control socket.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use netpold_api::flows::{self, FLOWS_REQUEST, FlowPage};
use netpold_api::learn::LEARN_REQUEST;
use netpold_api::observe::OBSERVE_REQUEST;
use netpold_api::probe::EXPLAIN_REQUEST;
use netpold_api::rules::RULES_REQUEST;
use netpold_api::source::SourceStatus;
use netpold_api::status::{AgentStatus, READY_REQUEST, STATUS_REQUEST};
use netpold_api::trace::TRACE_REQUEST;
use netpold_core::lock::lock;
use netpold_core::probe::Probe;
use tokio::sync::watch;

use super::routes::{answer, shared, stream};
use crate::engine::Engine;
use crate::engine::flows::{flow_reader, name_remotes};
use crate::events::DropLog;
use crate::metrics::Metrics;
use crate::observe::ObserveServer;
use crate::questions::Questions;
use crate::trace::Tracer;

/// Returns the routes of the agent on the node with this name.
pub fn requests(
    node: &str,
    engine: &Arc<Mutex<Engine>>,
    drops: &Arc<Mutex<DropLog>>,
    observer: Arc<ObserveServer>,
    source: watch::Receiver<SourceStatus>,
    readiness: Arc<Metrics>,
) -> Router {
    let observe = stream(move |request, lines| {
        std::future::ready(Ok(Arc::clone(&observer).serve(request, lines)))
    });
    let tracer = Arc::new(Tracer::new(Arc::clone(engine)));
    let trace = stream(move |request, lines| Arc::clone(&tracer).begin(request, lines));
    let questions = Arc::new(Questions::new(Arc::clone(engine)));
    let status = {
        let drops = Arc::clone(drops);
        shared(&questions, move |engine| {
            let recent = lock(&drops).recent();
            let source = source.borrow().clone();
            let report = engine.report(&recent);
            AgentStatus { in_sync: source.in_sync && report.in_sync, source, ..report }
        })
    };
    let of_node = node.to_owned();
    let rules = shared(&questions, move |engine| engine.rule_use().answer(&of_node));
    let of_node = node.to_owned();
    let recorded = shared(&questions, move |engine| engine.rule_use().flows(&of_node));
    let explained = {
        let (questions, drops) = (Arc::clone(&questions), Arc::clone(drops));
        answer(move |probe: Probe| {
            let mut expect = |event| lock(&drops).expect(event, Instant::now());
            questions.ask(|engine| engine.probe(&probe, &mut expect))
        })
    };
    Router::new()
        .route(STATUS_REQUEST, status)
        .route(READY_REQUEST, answer(move |()| readiness.not_ready()))
        .route(RULES_REQUEST, rules)
        .route(FLOWS_REQUEST, answer(move |request| page(&questions, &request)))
        .route(EXPLAIN_REQUEST, explained)
        .route(OBSERVE_REQUEST, observe)
        .route(TRACE_REQUEST, trace)
        .route(LEARN_REQUEST, recorded)
}

/// Answers a request for flows. Reads the flow table without the engine's lock.
fn page(questions: &Questions, request: &flows::FlowsRequest) -> FlowPage {
    let problem = |problem: String| FlowPage { problem: Some(problem), ..FlowPage::default() };
    match questions.ask(|engine| flow_reader(engine)) {
        Ok(Some(reader)) => {
            let mut page = reader.page(request);
            questions.ask(|engine| name_remotes(engine, &mut page.flows));
            page
        }
        Ok(None) => problem("nothing has been written to the kernel yet".to_owned()),
        Err(error) => problem(format!("cannot read the flow tables: {error}")),
    }
}
