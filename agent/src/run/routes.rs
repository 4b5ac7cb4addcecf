//! HTTP routes of the agent.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use netpold_controller::listen::{Heartbeat, metrics_response};

use netpold_engine::metrics::Metrics;

/// State behind the responses.
#[derive(Clone)]
struct ProbeRoutes {
    metrics: Arc<Metrics>,
    heartbeat: Heartbeat,
}

/// Routes of `/metrics`, `/livez` and `/readyz`.
pub(super) fn routes(metrics: Arc<Metrics>, heartbeat: Heartbeat) -> Router {
    Router::new()
        .route("/metrics", get(metrics_text))
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .with_state(ProbeRoutes { metrics, heartbeat })
}

async fn metrics_text(State(answers): State<ProbeRoutes>) -> Response {
    metrics_response(answers.metrics.text())
}

async fn live(State(answers): State<ProbeRoutes>) -> (StatusCode, String) {
    answers.heartbeat.live()
}

async fn ready(State(answers): State<ProbeRoutes>) -> (StatusCode, String) {
    let reasons = answers.metrics.not_ready();
    if reasons.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    (StatusCode::SERVICE_UNAVAILABLE, reasons.iter().map(|reason| format!("{reason}\n")).collect())
}
