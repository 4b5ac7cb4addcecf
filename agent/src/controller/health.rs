//! `/livez`, `/readyz` and `/metrics` of the controller.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::watch;

use super::certificates::Served;
use super::lease::Leading;
use super::statuses::Counters;
use crate::listen::Heartbeat;

/// What requests are answered from.
#[derive(Clone)]
pub(super) struct Health {
    pub(super) heartbeat: Heartbeat,
    pub(super) counters: Arc<Counters>,
    pub(super) leading: Leading,
    pub(super) synced: watch::Receiver<bool>,
    pub(super) served: Arc<Served>,
}

/// The three paths.
pub(super) fn router(health: Health) -> Router {
    Router::new()
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(health)
}

async fn live(State(health): State<Health>) -> (StatusCode, String) {
    match health.heartbeat.stalled(Instant::now()) {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(since) => {
            let text = format!("the main loop has not turned for {} s\n", since.as_secs());
            (StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }
}

async fn ready(State(health): State<Health>) -> (StatusCode, &'static str) {
    if !health.served.is_there() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the webhook has no certificate yet\n");
    }
    match *health.synced.borrow() {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not all objects are known yet\n"),
    }
}

async fn metrics(State(health): State<Health>) -> Response {
    let Counters { writes, failures, waiting, policies } = &*health.counters;
    let rows = [
        (
            "leader",
            "gauge",
            "Whether this replica writes statuses.",
            u64::from(health.leading.is()),
        ),
        ("policies", "gauge", "NetworkPolicies known.", policies.load(Ordering::Relaxed) as u64),
        ("waiting", "gauge", "NetworkPolicies to look at.", waiting.load(Ordering::Relaxed) as u64),
        ("status_writes_total", "counter", "Statuses written.", writes.load(Ordering::Relaxed)),
        (
            "status_write_failures_total",
            "counter",
            "Writes that failed.",
            failures.load(Ordering::Relaxed),
        ),
    ];
    let text: String = rows
        .iter()
        .map(|(name, kind, help, value)| {
            let name = format!("netpold_controller_{name}");
            format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n")
        })
        .collect();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
