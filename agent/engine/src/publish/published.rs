//! The state to publish, its names in the API, and its times.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::engine::enforcement::EnforcementState;

/// Default readiness gate and condition of a pod.
pub const READINESS_GATE: &str = "netpold.io/network-ready";

/// Key of the taint that keeps pods off a node before its agent enforces.
pub const STARTUP_TAINT: &str = "netpold.io/agent-not-ready";

/// Longest message of a condition or report, in bytes. The CRD limits characters, which are never more.
pub(super) const MESSAGE_MAX: usize = 1024;

/// Time for which an update may be out of force, as while it is being written, before a condition becomes False.
pub(super) const PASSING: Duration = Duration::from_secs(5);

/// Longest interval between comparisons of conditions with the enforced state.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// State of the agent at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentState {
    /// Enforced state.
    pub enforcement: EnforcementState,
    /// Problems on the node, in sentences.
    pub problems: Vec<String>,
    /// Whether every object is known.
    pub in_sync: bool,
}

/// Returns the wall clock in whole seconds, the resolution of times in the API.
pub(super) fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}
