//! Objects that cannot be decoded, among decodable ones.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

fn policy(name: &str, spec: Value) -> Value {
    let mut policy = object(Some("x"), name, "1");
    policy["spec"] = spec;
    policy
}

fn texts(status: &SourceStatus) -> Vec<String> {
    status.problems.iter().map(ToString::to_string).collect()
}

fn undecoded(status: &SourceStatus, kind: &str) -> usize {
    status.kinds.iter().find(|k| k.kind == kind).unwrap().undecoded
}

const POLICIES: &str = "networkpolicies.networking.k8s.io";

/// Objects of every depth, type and size among others, in pages and in a watch; list and watch continue after them from
/// their versions.
#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "one story")]
async fn an_object_that_cannot_be_decoded_is_a_matter_of_its_own() {
    static MENDED: AtomicBool = AtomicBool::new(false);
    let server = Server::start(|resource, query, before| {
        let labelled = |name: &str, version: &str, labels: Value| {
            let mut pod = object(Some("x"), name, version);
            pod["metadata"]["labels"] = labels;
            pod
        };
        let spec = json!({ "podSelector": { "matchLabels": { "a": "b" } }, "ingress": "@deep" });
        let unused = json!({ "managedFields": "@deep", "name": "unused", "namespace": "x" });
        match (resource, query.contains("watch=true"), before) {
            ("networkpolicies", false, _) => {
                let twice = json!({ "metadata": { "name": "twice", "@twice": 1 } });
                let good = |name: &str| policy(name, json!({ "podSelector": {} }));
                let items = vec![
                    good("first"),
                    policy("deep", spec),
                    json!({ "metadata": unused }),
                    twice,
                    json!("@deep"),
                    json!(7),
                    good("last"),
                ];
                list(items, "1")
            }
            ("pods", false, _) => list(vec![labelled("a", "1", json!({ "l": "1" }))], "1"),
            ("pods", true, 0) => {
                let broken = labelled("a", "5", json!({ "l": 2 }));
                let never = labelled("never", "6", json!("@deep"));
                let lines = [event("MODIFIED", broken), event("ADDED", never)];
                Answer(
                    200,
                    [&lines[..], &[event("ADDED", object(Some("x"), "b", "7"))]].concat(),
                    false,
                )
            }
            // The watch continues after the broken objects, which are then repaired.
            ("pods", true, _) if query.contains("resourceVersion=7") => {
                while !MENDED.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(10));
                }
                let mended = labelled("a", "8", json!({ "l": "3" }));
                let gone = labelled("never", "9", json!("@deep"));
                Answer(200, vec![event("MODIFIED", mended), event("DELETED", gone)], true)
            }
            ("pods", true, _) => panic!("{query}"),
            (_, true, _) => Answer(200, vec![], true),
            (_, false, _) => list(vec![], "1"),
        }
    });
    let (mut source, _directory) = server.watched().await;
    let status = wait(&mut source, |status| {
        status.in_sync && undecoded(status, "pods") == 2 && undecoded(status, POLICIES) == 3
    })
    .await;
    assert!(status.kinds.iter().all(|kind| kind.error.is_none()), "{status:?}");
    let found = texts(&status);
    for text in [
        "NetworkPolicy x/deep: spec.ingress[0][0]",
        "NetworkPolicy z/twice: metadata.namespace: is given twice",
        "NetworkPolicy (its name cannot be read): ",
        "Pod x/a: metadata.labels.l: is integer `2`, expected a string; put it in quotes; \
         the object cannot be decoded, its last known state stays",
        "Pod x/never: metadata.labels[0]",
    ] {
        assert!(found.iter().any(|found| found.starts_with(text)), "{text} in {found:#?}");
    }
    assert_eq!((undecoded(&status, POLICIES), found.len()), (3, 5), "{found:#?}");
    MENDED.store(true, Ordering::Relaxed);
    until(&mut source, |_, said| {
        let policies = said.iter().filter_map(|change| {
            if let Change::Policy(policy) = change {
                Some((policy.key.name.as_str(), policy))
            } else {
                None
            }
        });
        let policies: BTreeMap<&str, &Policy> = policies.collect();
        let closed = |name: &str| {
            policies[name].ingress == Some(vec![]) && policies[name].egress == Some(vec![])
        };
        let selects = |name: &str| policies[name].pod_selector.requirements.len();
        let names: Vec<&str> = policies.keys().copied().collect();
        let label = said.iter().find_map(|change| {
            if let Change::Pod(pod) = change
                && pod.key.name == "a"
            {
                pod.labels.get("l").map(String::from)
            } else {
                None
            }
        });
        names == ["deep", "first", "last", "twice", "unused"]
            && closed("deep")
            && closed("twice")
            && [selects("deep"), selects("twice")] == [1, 0]
            && policies["unused"].problems.is_empty()
            && said.iter().any(|change| matches!(change, Change::Pod(pod) if pod.key.name == "b"))
            && label.as_deref() == Some("3")
    })
    .await;
    let status = wait(&mut source, |status| undecoded(status, "pods") == 0).await;
    assert!(texts(&status).iter().all(|text| text.starts_with("NetworkPolicy ")), "{status:?}");
    for kind in &status.kinds {
        assert_eq!((kind.lists, kind.restarts), (1, 0), "{kind:?}");
    }
}

/// Only the beginning of the object is kept, which holds its identity.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_too_large_leaves_the_others() {
    let server =
        Server::start(|resource, query, _| match (resource, query.contains("watch=true")) {
            ("networkpolicies", false) => {
                let huge = policy("huge", json!({ "podSelector": {}, "ingress": "@huge" }));
                list(vec![huge, policy("last", json!({ "podSelector": {} }))], "1")
            }
            (_, true) => Answer(200, vec![], true),
            (_, false) => list(vec![], "1"),
        });
    let (mut source, _directory) = server.watched().await;
    until(&mut source, |batch, said| {
        batch.in_sync
            && matches!(said, [Change::Policy(huge), Change::Policy(last)]
                if huge.egress == Some(vec![]) && huge.key.name == "huge"
                    && last.problems.is_empty())
    })
    .await;
    let status = wait(&mut source, |status| status.problems.len() == 1).await;
    let expected =
        "NetworkPolicy x/huge: the object is larger than 16777216 bytes; the policy cannot";
    assert!(texts(&status)[0].starts_with(expected), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_goes_on_behind_what_cannot_be_decoded() {
    let server = Server::start(|resource, query, _| {
        if !query.contains("watch=true") {
            return list(vec![], "1");
        }
        let mut lines = Vec::new();
        if resource == "networkpolicies" {
            let spec = json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": "@deep" });
            lines.push(event("ADDED", policy("deep", spec)));
            lines.push(event("ADDED", policy("good", json!({ "podSelector": {} }))));
            lines.push(event("DELETED", policy("deep", json!("@deep"))));
        }
        Answer(200, lines, true)
    });
    let (mut source, _directory) = server.watched().await;
    until(&mut source, |batch, said| {
        let good = |policy: &Policy| policy.key.name == "good";
        batch.in_sync
            && matches!(said, [Change::PolicyGone(gone), Change::Policy(policy)]
                if good(policy) && gone.name == "deep")
    })
    .await;
    let status = wait(&mut source, |status| status.problems.is_empty()).await;
    assert!(status.in_sync && undecoded(&status, POLICIES) == 0);
    assert_eq!(server.requests(" watch "), 7, "each went on without asking again");
}

/// Neither an answer without a list nor a truncated one is an empty list: any object may exist. The objects before the
/// break are known already, so the next list reports no changes of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_list_that_breaks_off_loses_no_object() {
    let server = Server::start(|resource, query, before| match (resource, before) {
        _ if query.contains("watch=true") => Answer(200, vec![], true),
        ("networkpolicies", 0) => list(vec![object(Some("x"), "a", "1"), json!("@cut")], "1"),
        ("networkpolicies", _) => {
            list(vec![object(Some("x"), "a", "1"), object(Some("x"), "b", "1")], "2")
        }
        _ => list(vec![], "1"),
    });
    let (mut source, _directory) = server.watched().await;
    until(&mut source, |batch, known| {
        let names = known.iter().filter_map(|change| {
            if let Change::Policy(policy) = change { Some(policy.key.name.as_str()) } else { None }
        });
        let names = names.collect::<Vec<_>>();
        assert!(!batch.in_sync || names == ["a", "b"], "{names:?}");
        batch.in_sync
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_list_does_not_say_that_there_is_nothing() {
    let server = Server::start(|resource, query, before| match (resource, before) {
        _ if query.contains("watch=true") => Answer(200, vec![], true),
        ("pods", 0) => Answer(200, vec![json!({})], false),
        ("pods", 1) => Answer(200, vec![json!({ "items": [] })], false),
        ("pods", 2) => Answer(200, vec![json!("<html>")], false),
        ("nodes", _) => Answer(200, vec![json!("no object")], false),
        _ => list(vec![], "1"),
    });
    let (mut source, _directory) = server.watched().await;
    let status = wait(&mut source, |status| {
        status.kinds.iter().filter(|kind| kind.in_sync).count() == 6
            && status.kinds.iter().any(|kind| kind.kind == "nodes" && kind.restarts > 1)
    })
    .await;
    assert!(!status.in_sync);
    let pods = status.kinds.iter().find(|kind| kind.kind == "pods").unwrap();
    assert_eq!((pods.lists, pods.restarts), (4, 3), "{pods:?}");
    assert!(texts(&status)[0].starts_with("cannot list nodes: invalid answer: not JSON"));
}
