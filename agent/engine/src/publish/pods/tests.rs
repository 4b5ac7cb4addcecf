use netpold_core::model::Key;

use super::*;
use crate::engine::enforcement::{EnforcementState, PodEnforcement};
use crate::publish::AgentState;

const GATE: &str = "netpold.io/network-ready";
const NO_PROGRAM: &str = "no program is attached to its interface";

fn web() -> Key {
    Key { namespace: "shop".into(), name: "web".into() }
}

fn gated(json: Value) -> Option<GatedPod> {
    let object: PodObject = serde_json::from_value(json).unwrap();
    GatedPod::parse_gated(object, GATE).map(|(_, pod)| pod)
}

fn pod(status: Option<&str>) -> GatedPod {
    let condition = status.map(|status| Condition {
        kind: GATE.into(),
        status: status.into(),
        ..Condition::default()
    });
    GatedPod { uid: "u1".into(), host_network: false, condition }
}

fn seen(uid: &str, lacks: Option<&'static str>) -> ObservedState {
    // Every other cause leaves a program at the interface.
    let is_judged = lacks != Some(NO_PROGRAM);
    let pods = BTreeMap::from([(web(), PodEnforcement { uid: uid.into(), lacks, is_judged })]);
    let enforcement = EnforcementState { pods, ..EnforcementState::default() };
    ObservedState {
        state: AgentState { enforcement, problems: Vec::new(), in_sync: true },
        begun: true,
        ..ObservedState::default()
    }
}

#[test]
fn pods_without_the_gate_are_left_alone() {
    let object = |gate: &str| {
        json!({
            "metadata": { "namespace": "shop", "name": "web", "uid": "u1" },
            "spec": { "readinessGates": [{ "conditionType": gate }] },
        })
    };
    assert_eq!(gated(object("example.com/other")), None);
    assert_eq!(gated(object(GATE)), Some(pod(None)));
    let mut going = object(GATE);
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(gated(going), None);
}

#[test]
fn a_met_condition_is_written_at_once_and_an_unmet_one_if_it_lasts() {
    let now = Instant::now();
    let mut followed = FollowedPod::new(pod(None));
    let due = followed.due_condition(&web(), &seen("u1", None), now);
    assert!(due.unwrap().met);
    let mut followed = FollowedPod::new(pod(Some("True")));
    assert_eq!(
        followed.due_condition(&web(), &seen("u1", None), now),
        None,
        "the condition is true already"
    );
    let lacks = seen("u1", Some(NO_PROGRAM));
    assert_eq!(followed.due_condition(&web(), &lacks, now), None, "the cause may pass");
    assert_eq!(
        followed.due_condition(&web(), &seen("u1", None), now + PASSING),
        None,
        "the cause has passed"
    );
    assert_eq!(
        followed.due_condition(&web(), &lacks, now + PASSING),
        None,
        "the time starts again"
    );
    let due = followed.due_condition(&web(), &lacks, now + 2 * PASSING).unwrap();
    assert_eq!((due.met, due.reason), (false, "NotJudged"));
}

#[test]
fn no_condition_is_written_before_the_agent_knows_the_pod() {
    let before = ObservedState { begun: false, ..seen("u1", None) };
    assert_eq!(DesiredCondition::decide(&web(), &pod(Some("True")), &before), None);
    let wanted = DesiredCondition::decide(&web(), &pod(None), &seen("another", None)).unwrap();
    assert_eq!((wanted.met, wanted.reason), (false, "NotKnown"), "a pod of the same name");
    let host = GatedPod { host_network: true, ..pod(None) };
    assert!(
        DesiredCondition::decide(&web(), &host, &before).unwrap().met,
        "policy does not apply to hostNetwork pods"
    );
}

#[test]
fn a_patch_is_bound_to_the_uid_of_the_pod() {
    let wanted = DesiredCondition { met: false, reason: "NotJudged", message: "why" };
    let patch = wanted.patch(GATE, &pod(Some("True")));
    assert_eq!(patch["metadata"], json!({ "uid": "u1" }));
    let condition = &patch["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!(GATE), &json!("False")));
    assert!(condition["lastTransitionTime"].is_string(), "the status changes");
    let again = wanted.patch(GATE, &pod(Some("False")));
    assert!(
        again["status"]["conditions"][0].get("lastTransitionTime").is_none(),
        "the status stays"
    );
}

#[test]
fn an_update_that_fails_takes_no_pod_out_of_its_services() {
    let Some(long_ago) = Instant::now().checked_sub(2 * PASSING) else { return };
    let late = Some("a large policy of its namespace is being compiled");
    let mut behind = seen("u1", None);
    behind.state.enforcement.behind = Some("the tables are full".into());
    behind.behind_since = Some(long_ago);
    for seen in [&behind, &seen("u1", late)] {
        assert_eq!(
            DesiredCondition::decide(&web(), &pod(Some("True")), seen),
            None,
            "the former policy judges the pod"
        );
        assert!(!DesiredCondition::decide(&web(), &pod(None), seen).unwrap().met);
    }
    let mut open = behind.clone();
    open.state.enforcement.pods = seen("u1", Some(NO_PROGRAM)).state.enforcement.pods;
    assert!(!DesiredCondition::decide(&web(), &pod(Some("True")), &open).unwrap().met);
}

/// A tenant can write both times, which are in the years 10000 and 10026.
#[test]
fn nothing_that_a_tenant_writes_keeps_a_pod_from_being_read() {
    let pod = json!({
        "metadata": {
            "namespace": "shop",
            "name": "web",
            "uid": "u1",
            "deletionTimestamp": "+10026-01-01T00:00:00Z",
            "managedFields": [{ "time": "10000-01-01T13:59:59Z", "fieldsV1": 7 }],
            "labels": null,
        },
    });
    let read: PodObject = serde_json::from_value(pod).unwrap();
    assert!(read.metadata.deletion_timestamp.is_some());
    assert_eq!(key(&read.metadata), web());
}
