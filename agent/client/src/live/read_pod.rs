//! The used part of a pod. Decoding all of the API's type would take a fortieth of the plugin.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Pod: its node, and the states of its containers.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReadPod {
    pub(super) metadata: ObjectMeta,
    pub(super) spec: ReadPodSpec,
    pub(super) status: ReadPodStatus,
}

netpold_api::resource!(ReadPod, part of Pod);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ReadPodSpec {
    pub(super) node_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ReadPodStatus {
    pub(super) phase: Option<String>,
    pub(super) container_statuses: Option<Vec<ReadContainer>>,
    pub(super) ephemeral_container_statuses: Option<Vec<ReadContainer>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReadContainer {
    pub(super) name: String,
    pub(super) ready: bool,
    pub(super) state: ReadContainerState,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReadContainerState {
    pub(super) running: Option<IgnoredAny>,
    pub(super) waiting: Option<ReadReason>,
    pub(super) terminated: Option<ReadReason>,
}

/// Reason why a container waits or ended.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReadReason {
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_and_states_of_containers_are_read() {
        let status = json!({
            "phase": "Running",
            "containerStatuses": [
                {"name": "a", "ready": true, "state": {"running": {"startedAt": "2026-11-28T10:00:00Z"}}},
                {"name": "b", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}},
                {"name": "c", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}},
            ],
            "ephemeralContainerStatuses": [{"name": "d", "state": {"running": {}}}],
        });
        let pod: ReadPod = serde_json::from_value(json!({
            "metadata": {"name": "web", "creationTimestamp": "2026-11-28T10:00:00Z"},
            "spec": {"nodeName": "oak", "containers": [{"name": "a"}]},
            "status": status,
        }))
        .unwrap();
        assert_eq!(pod.metadata.name.as_deref(), Some("web"));
        assert_eq!(pod.spec.node_name.as_deref(), Some("oak"));
        let [a, b, c] = &pod.status.container_statuses.unwrap()[..] else { panic!("three") };
        assert!(a.ready && a.state.running.is_some() && !b.ready);
        let waiting = b.state.waiting.as_ref().unwrap();
        assert_eq!(waiting.reason.as_deref(), Some("CrashLoopBackOff"));
        assert_eq!(waiting.message.as_deref(), Some("back-off"));
        assert_eq!(c.state.terminated.as_ref().unwrap().reason.as_deref(), Some("Error"));
        let ephemeral = pod.status.ephemeral_container_statuses.unwrap();
        assert!(ephemeral[0].name == "d" && ephemeral[0].state.running.is_some());
    }

    #[test]
    fn a_pod_without_a_node_or_a_status_is_read() {
        let pod: ReadPod = serde_json::from_value(json!({"metadata": {"name": "web"}})).unwrap();
        assert!(pod.spec.node_name.is_none() && pod.status.container_statuses.is_none());
    }
}
