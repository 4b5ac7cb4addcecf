use netpold_api::status::Revision;
use netpold_testkit::random::Random;

use super::*;
use crate::engine::enforcement::EnforcementState;
use crate::publish::AgentState;

fn on_node(number: usize, message: usize) -> PolicyOnNode {
    PolicyOnNode {
        namespace: "n".repeat(63),
        name: format!("{number:0253}"),
        uid: "u".repeat(36),
        message: "m".repeat(message),
        ..PolicyOnNode::default()
    }
}

#[test]
fn a_report_fits_into_an_object() {
    let (few, left) = bounded((0..100).map(|number| on_node(number, MESSAGE_MAX)));
    assert_eq!((few.len(), left), (100, 0));
    assert!(few.iter().all(|policy| policy.message.len() == MESSAGE_MAX));
    let (many, left) = bounded((0..2000).map(|number| on_node(number, MESSAGE_MAX)));
    assert_eq!(many.len() + left, 2000);
    let size = serde_json::to_string(&many).unwrap().len();
    assert!(size < 1 << 20 && many.len() > 1000, "{} policies: {size} bytes", many.len());
}

/// One namespace has many policies with long names and messages, and sorts before the other namespace.
#[test]
fn many_policies_of_one_namespace_leave_room_for_others() {
    let crowd = (0..2000).map(|number| on_node(number, MESSAGE_MAX));
    let other = PolicyOnNode {
        namespace: "z".into(),
        name: "web".into(),
        message: "m".repeat(MESSAGE_MAX),
        ..PolicyOnNode::default()
    };
    let (taken, left) = bounded(crowd.chain([other.clone()]));
    assert!(left > 0);
    assert_eq!(taken.last(), Some(&other), "with its whole message");
    assert!(taken.is_sorted_by_key(|it| (it.namespace.clone(), it.name.clone())));
}

/// Applies JSON Patch operations to a list, as an API server does.
fn applied(mut list: Vec<Value>, operations: &[Value]) -> Vec<Value> {
    for operation in operations {
        let place = operation["path"].as_str().unwrap().rsplit_once('/').unwrap().1;
        let place: usize = place.parse().unwrap();
        match operation["op"].as_str().unwrap() {
            "add" => list.insert(place, operation["value"].clone()),
            "remove" => drop(list.remove(place)),
            _ => list[place] = operation["value"].clone(),
        }
    }
    list
}

#[test]
fn operations_turn_one_list_into_another() {
    let mut random = Random(5);
    let list = |random: &mut Random| {
        let mut all = BTreeMap::new();
        for _ in 0..random.below(30) {
            let key = [random.below(4), random.below(9)].map(|number| number.to_string());
            let [namespace, name] = key.clone();
            let value = json!({ "namespace": namespace, "name": name, "pods": random.below(3) });
            all.insert(key, value);
        }
        all.into_values().collect::<Vec<Value>>()
    };
    for _ in 0..5000 {
        let (before, after) = (list(&mut random), list(&mut random));
        let (operations, namespaces) = operations(&before, &after);
        let of = |all: &[Value], namespace: &str| -> Vec<Value> {
            all.iter().filter(|it| it["namespace"] == namespace).cloned().collect()
        };
        for namespace in ["0", "1", "2", "3"] {
            let differs = of(&before, namespace) != of(&after, namespace);
            assert_eq!(namespaces.contains(namespace), differs);
        }
        assert_eq!(applied(before, &operations), after);
    }
}

fn with_policies(generations: &BTreeMap<Key, i64>) -> ObservedState {
    let policies = generations.iter().map(|(key, generation)| {
        let version = netpold_core::model::PolicyVersion {
            uid: "0ca9fe4d-0000-4000-8000-000000000000".into(),
            generation: *generation,
        };
        let enforcement = PolicyEnforcement {
            version,
            pods: 3,
            not_judged: 0,
            on_trial: false,
            is_late: false,
            closed: None,
            problems: Vec::new(),
        };
        (key.clone(), enforcement)
    });
    let enforcement =
        EnforcementState { policies: policies.collect(), ..EnforcementState::default() };
    let state = AgentState { enforcement, problems: Vec::new(), in_sync: true };
    ObservedState { state, begun: true, behind_since: None }
}

/// An agent reports that it is not in sync before it knows its policies. The object may have its predecessor's list.
#[test]
fn the_first_list_of_policies_is_written_in_full() {
    let now = std::time::Instant::now();
    let budget = ReportBudget::new(now);
    let mut written = LastReport { version: Some("1".into()), ..LastReport::default() };
    let mut draft = |generations: &BTreeMap<Key, i64>, in_sync: bool| {
        let mut seen = with_policies(generations);
        seen.state.in_sync = in_sync;
        let draft = ReportDraft::new(Some(&written), &seen, (&budget, true), now).unwrap();
        let patch = draft.patch(Some(&written));
        written.fields.extend(draft.fields);
        (patch, written.fields.contains_key("policies"))
    };
    let mut generations = BTreeMap::from([(Key::new("shop", "web"), 1)]);
    assert_eq!(draft(&generations, false), (None, false));
    assert_eq!(draft(&generations, true), (None, true), "a merge patch with the whole list");
    generations.insert(Key::new("shop", "api"), 1);
    let operations = draft(&generations, true).0.unwrap();
    let version = json!({ "op": "add", "path": "/metadata/resourceVersion", "value": "1" });
    assert_eq!(operations[0], version, "another version is a conflict");
    assert_eq!(operations[1]["path"], "/status/policies/0");
}

/// One tenant has 500 policies and edits three of them every five seconds; another tenant edits its policy every two
/// minutes. With the whole list of policies in each report, 1.0 MB a minute would be sent.
#[test]
fn constant_edits_cost_little_and_delay_no_other_tenant() {
    let crowd = (0..500).map(|number| Key::new("crowd", format!("policy-{number:03}")));
    let shop = Key::new("shop", "web");
    let mut generations: BTreeMap<Key, i64> =
        crowd.chain([shop.clone()]).map(|key| (key, 1)).collect();
    let mut now = std::time::Instant::now();
    let (mut budget, mut written) = (ReportBudget::new(now), None::<LastReport>);
    let (mut sent, mut stored, mut reports) = (0, 0, 0);
    let (mut renewal, mut late) = (now, Duration::ZERO);
    let mut edited_at = None;
    for step in 0..600 / PACE.as_secs() {
        if step % 24 == 7 {
            *generations.get_mut(&shop).unwrap() += 1;
            edited_at = Some(now);
        }
        for edit in 0..3 {
            let key = Key::new("crowd", format!("policy-{:03}", (step * 3 + edit) % 500));
            *generations.get_mut(&key).unwrap() += 1;
        }
        let seen = with_policies(&generations);
        let when = (&budget, renewal <= now);
        if let Some(draft) = ReportDraft::new(written.as_ref(), &seen, when, now) {
            let patch = draft.patch(written.as_ref());
            let body = patch.map_or_else(|| json!({ "status": draft.fields }), Value::Array);
            let last = written.get_or_insert_default();
            let is_first = last.fields.is_empty();
            last.fields.extend(draft.fields);
            (last.pods, last.version) = (draft.pods, Some("1".into()));
            let bytes = serde_json::to_vec(&last.fields).unwrap().len();
            budget.charge(&draft.because_of, bytes, now);
            renewal = now + RENEWAL.0;
            if let Some(at) = edited_at.take() {
                late = late.max(now - at);
            }
            if !is_first {
                (sent, stored, reports) =
                    (sent + body.to_string().len(), stored + bytes, reports + 1);
            }
        }
        now += PACE;
    }
    let minute = |bytes: usize| bytes / 10;
    println!("{reports} reports; a minute {} bytes sent, {} stored", minute(sent), minute(stored));
    assert!(minute(sent) < 20_000, "{} bytes sent a minute", minute(sent));
    assert!(minute(stored) < 600_000, "{} bytes stored a minute", minute(stored));
    assert!(late <= PACE, "the other tenant's edit is reported after {late:?}");
}

#[test]
fn only_changed_fields_are_written() {
    let revision = Revision { desired: 2, enforced: 2 };
    let enforcement = EnforcementState { revision, ..EnforcementState::default() };
    let state = AgentState { enforcement, problems: Vec::new(), in_sync: true };
    let mut seen = ObservedState { state, begun: true, behind_since: None };
    let all = changed(None, &seen);
    assert!(all.contains_key("policies") && !all.contains_key("renewTime"));
    assert_eq!(changed(Some(&all), &seen), Map::new());
    seen.state.enforcement.revision.desired = 3;
    seen.state.enforcement.behind = Some("an update is being written".into());
    let update = changed(Some(&all), &seen);
    assert_eq!(
        update.keys().collect::<Vec<_>>(),
        ["desiredRevision"],
        "a short delay is not written"
    );
}

#[test]
fn a_message_gives_the_reason_why_a_policy_is_not_enforced() {
    let key = Key { namespace: "shop".into(), name: "web".into() };
    let mut it = PolicyEnforcement {
        version: netpold_core::model::PolicyVersion { uid: "u".into(), generation: 4 },
        pods: 3,
        not_judged: 0,
        on_trial: false,
        is_late: false,
        closed: None,
        problems: vec!["spec.ingress[0]: grants nothing".into()],
    };
    let written = policy(&key, &it);
    assert!(written.enforced && written.message.starts_with("spec.ingress[0]"), "{written:?}");
    it.not_judged = 1;
    let written = policy(&key, &it);
    assert_eq!(
        (written.enforced, written.message.as_str(), written.observed_generation),
        (false, "the packets of 1 of 3 pods are not judged", 4)
    );
    (it.not_judged, it.on_trial) = (0, true);
    let written = policy(&key, &it);
    assert!(!written.enforced && written.message == ON_TRIAL, "{written:?}");
}
