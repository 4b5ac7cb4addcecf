//! `/livez`, `/readyz` and `/metrics` of the controller.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::certificates::Served;
use crate::counters::ControllerCounters;
use crate::lease::ElectionView;
use crate::listen::{Heartbeat, metrics_response};

/// State behind the HTTP endpoints.
#[derive(Clone)]
pub(super) struct ControllerHealth {
    pub(super) heartbeat: Heartbeat,
    pub(super) counters: Arc<ControllerCounters>,
    pub(super) leading: ElectionView,
    pub(super) synced: watch::Receiver<bool>,
    pub(super) served: Arc<Served>,
}

/// Routes of the three paths.
pub(super) fn router(health: ControllerHealth) -> Router {
    Router::new()
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(health)
}

async fn live(State(health): State<ControllerHealth>) -> (StatusCode, String) {
    health.heartbeat.live()
}

async fn ready(State(health): State<ControllerHealth>) -> (StatusCode, &'static str) {
    if !health.served.is_there() {
        return (StatusCode::SERVICE_UNAVAILABLE, "no webhook certificate yet\n");
    }
    match *health.synced.borrow() {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "objects not in sync yet\n"),
    }
}

async fn metrics(State(health): State<ControllerHealth>) -> Response {
    let ControllerCounters { writes, failures, waiting, policies } = &*health.counters;
    let leader = Gauge::<i64>::default();
    leader.set(health.leading.leads().into());
    let mut registry = Registry::with_prefix("netpold_controller");
    registry.register("leader", "Whether this replica writes statuses", leader);
    registry.register(
        "policies",
        "NetworkPolicies and ClusterNetworkPolicies known",
        policies.clone(),
    );
    let trusted = Gauge::<i64>::default();
    trusted.set(health.served.is_trusted().into());
    registry.register(
        "webhook_trusted",
        "Whether the API server has a webhook configuration with the CA bundle, so that pods get the readiness gate",
        trusted,
    );
    registry.register("waiting", "NetworkPolicies waiting for evaluation", waiting.clone());
    registry.register("status_writes", "Statuses written", writes.clone());
    registry.register("status_write_failures", "Failed status writes", failures.clone());
    let mut text = String::new();
    metrics_response(encode(&mut text, &registry).map(|()| text))
}
