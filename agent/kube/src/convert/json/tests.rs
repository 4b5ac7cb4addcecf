//! Possible answers of an API server, and impossible ones.

use netpold_core::model::Policy;
use serde_json::{Value as Json, json};

use super::*;

fn read_policy(metadata: &str, spec: &str) -> (Policy, Vec<String>, bool) {
    let text = format!(
        "{{\"kind\":\"NetworkPolicy\",\"metadata\":{metadata},\"spec\":{spec},\"status\":{{}}}}"
    );
    let read = read(Kind::NetworkPolicy, text.as_bytes(), true);
    let Some(Change::Policy(policy)) = read.change else { panic!("{:?}", read.problems) };
    (policy, read.problems.iter().map(ToString::to_string).collect(), read.undecoded)
}

fn convert(spec: Json) -> (Policy, Vec<String>, bool) {
    read_policy("{\"name\":\"p\",\"namespace\":\"x\",\"labels\":{},\"novel\":1}", &spec.to_string())
}

#[test]
fn what_is_known_is_converted() {
    let (policy, problems, undecoded) = convert(json!({
        "podSelector": {}, "ingress": [{ "ports": [{ "port": 80 }] }]
    }));
    assert!(problems.is_empty() && !undecoded, "{problems:?}");
    assert_eq!(policy.ingress.map(|rules| rules.len()), Some(1));
    assert_eq!(policy.egress, None);
}

#[test]
fn a_newer_field_in_a_peer_grants_nothing() {
    let (policy, problems, _) = convert(json!({
        "podSelector": {}, "ingress": [{ "from": [{ "podSelector": {}, "within": "zone" }] }]
    }));
    assert!(problems[0].starts_with("spec.ingress[0].from[0].within: unknown field"));
    let rules = policy.ingress.unwrap();
    let peers = rules.iter().flat_map(|rule| rule.peers.as_ref().unwrap()).count();
    assert_eq!(peers, 0, "{rules:?}");
}

#[test]
fn a_policy_that_cannot_be_decoded_isolates_what_it_selects_as_far_as_that_is_read() {
    let both = (Some(vec![]), Some(vec![]));
    let egress = (None, Some(vec![]));
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    for (spec, selects_all, isolates, problem) in [
        (
            r#"{"podSelector":{"matchLabels":{"a":"b"}},"ingress":[{"ports":"many"}]}"#.to_owned(),
            false,
            &both,
            "spec.ingress[0].ports: is string \"many\", expected",
        ),
        (
            r#"{"podSelector":"all","policyTypes":["Egress"]}"#.to_owned(),
            true,
            &egress,
            "spec.podSelector: is string \"all\", expected",
        ),
        (
            r#"{"podSelector":{"matchLabels":{"a":"b"}},"policyTypes":["Egress"],"egress":7}"#
                .to_owned(),
            false,
            &egress,
            "spec.egress: is integer `7`, expected",
        ),
        (
            r#"{"podSelector":{"matchLabels":{"a":"b"},"new":1},"policyTypes":5}"#.to_owned(),
            true,
            &both,
            "spec.policyTypes: is integer `5`, expected",
        ),
        (
            format!(r#"{{"podSelector":{{"matchLabels":{{"a":"b"}}}},"ingress":{deep}}}"#),
            false,
            &both,
            "spec.ingress[0][0]",
        ),
        (
            r#"{"podSelector":{"matchLabels":{"a":"b"}},"ingress":[],"ingress":[{}]}"#.to_owned(),
            false,
            &both,
            "spec.ingress: is given twice",
        ),
        (r"[1]".to_owned(), true, &both, "spec: is sequence, expected"),
    ] {
        let (policy, problems, undecoded) =
            read_policy(r#"{"name":"p","namespace":"x","uid":"u","generation":3}"#, &spec);
        assert_eq!((policy.version.uid.as_str(), policy.version.generation), ("u", 3));
        let shown = &spec[..spec.len().min(100)];
        assert_eq!(policy.key.to_string(), "x/p");
        assert_eq!(policy.pod_selector.requirements.is_empty(), selects_all, "{shown}");
        assert_eq!((&policy.ingress, &policy.egress), (&isolates.0, &isolates.1), "{shown}");
        let last = problems.last().unwrap();
        assert!(undecoded && last.starts_with(problem), "{shown}: {problems:?}");
        assert!(last.ends_with("the policy cannot be decoded and grants nothing"), "{last}");
        assert!(policy.problems.contains(last) && last.len() < 900, "{last}");
    }
}

/// Reads an object with a `managedFields` entry that a tenant controls, as a server renders it.
fn with_managed_fields(kind: Kind, entry: &str) -> Read {
    let rest = if kind == Kind::EndpointSlice {
        r#""addressType":"IPv4","endpoints":[],"ports":[]"#
    } else {
        r#""spec":{"podSelector":{}}"#
    };
    let text = format!(
        r#"{{"metadata":{{"name":"n","namespace":"x","uid":"u","resourceVersion":"7",
            "managedFields":[{{"manager":"m","operation":"Update",{entry}}}]}},{rest}}}"#
    );
    read(kind, text.as_bytes(), true)
}

const KINDS: [Kind; 6] = [
    Kind::Namespace,
    Kind::Node,
    Kind::Pod,
    Kind::Service,
    Kind::EndpointSlice,
    Kind::NetworkPolicy,
];

#[test]
fn what_is_not_used_is_not_decoded() {
    let nested = |depth: usize| {
        format!(
            r#""fieldsV1":{}{}"#,
            r#"{"f:a":"#.repeat(depth),
            "1".to_owned() + &"}".repeat(depth)
        )
    };
    let huge = format!(r#""manager":"{}""#, "x".repeat(4 << 20));
    for entry in [
        r#""time":"10000-01-01T13:59:59Z""#,
        r#""time":"0000-01-01T00:00:00Z""#,
        r#""time":"-0001-12-31T00:00:00Z""#,
        r#""time":5,"operation":[],"manager":{}"#,
        r#""time":1e99999,"a":"\ud800","a":2,"a":-0.0"#,
        &nested(200),
        &nested(100_000),
        &huge,
    ] {
        for kind in KINDS {
            let read = with_managed_fields(kind, entry);
            let shown = &entry[..entry.len().min(60)];
            assert!(!read.undecoded && read.change.is_some(), "{kind:?} {shown}: {read:?}");
            assert_eq!(read.problems, [], "{kind:?} {shown}");
            assert_eq!(read.identity.version.as_deref(), Some("7"), "{kind:?} {shown}");
        }
    }
}

#[test]
fn bytes_that_are_no_text_matter_only_where_they_are_used() {
    let of = |annotation: &[u8], label: &[u8]| {
        let parts = [
            br#"{"metadata":{"name":"n","namespace":"x","annotations":{"a":""#,
            annotation,
            br#""},"labels":{"l":""#,
            label,
            br#""}}}"#,
        ];
        read(Kind::Pod, &parts.concat(), true)
    };
    assert!(!of(b"\xff\xfe", b"v").undecoded);
    let read = of(b"a", b"\xff\xfe");
    assert!(read.undecoded && read.change.is_none());
    assert_eq!(read.problems[0].path, "metadata.labels.l");
    assert_eq!(read.identity.name.as_deref(), Some("n"));
}

#[test]
fn what_has_the_wrong_type_is_named_by_its_path() {
    for (kind, text, path) in [
        (Kind::Pod, r#"{"metadata":{"name":"n","labels":{"a":1}}}"#, "metadata.labels.a"),
        (
            Kind::Pod,
            r#"{"metadata":{"name":"n"},"status":{"podIPs":[{"ip":{}}]}}"#,
            "status.podIPs[0].ip",
        ),
        (
            Kind::Pod,
            r#"{"metadata":{"name":"n","creationTimestamp":"10000-01-01T00:00:00Z"}}"#,
            "metadata.creationTimestamp",
        ),
        (
            Kind::Service,
            r#"{"metadata":{"name":"n"},"spec":{"ports":[{"port":"http"}]}}"#,
            "spec.ports[0].port",
        ),
        (
            Kind::Service,
            r#"{"metadata":{"name":"n"},"spec":{"ports":[{"port":1e400}]}}"#,
            "spec.ports[0].port",
        ),
        (Kind::EndpointSlice, r#"{"metadata":{"name":"n"},"endpoints":[[]]}"#, "endpoints[0]"),
        (Kind::Namespace, r#"{"metadata":{"name":"n","labels":[]}}"#, "metadata.labels"),
        (
            Kind::Namespace,
            r#"{"metadata":{"name":"n","labels":{"a":"1","a":"2"}}}"#,
            "metadata.labels.a",
        ),
        (Kind::Node, r#"{"metadata":{"name":"n"},"status":{"addresses":{}}}"#, "status.addresses"),
    ] {
        let read = read(kind, text.as_bytes(), true);
        assert!(read.undecoded && read.change.is_none(), "{text}");
        assert_eq!(read.problems[0].path, path, "{text}: {:?}", read.problems);
        assert_eq!(read.identity.name.as_deref(), Some("n"), "{text}");
    }
}

#[test]
fn what_is_no_object_is_nobody() {
    for kind in KINDS {
        for text in [
            "{}",
            "{\"metadata\":null}",
            "{\"metadata\":[]}",
            "[]",
            "7",
            "{]",
            "",
            "{\"metadata\":{}}",
        ] {
            let read = read(kind, text.as_bytes(), true);
            assert!(read.undecoded && read.change.is_none(), "{kind:?} {text}");
            assert_eq!(read.identity, ObjectIdentity::default(), "{kind:?} {text}");
            assert_eq!(read.problems.len(), 1);
        }
    }
}

#[test]
fn an_object_that_was_cut_off_is_known_by_its_beginning() {
    let text = r#"{"kind":"NetworkPolicy","metadata":{"name":"p","namespace":"x","resourceVersion":"7","annotations":{"a":"xxx"#;
    let read = read(Kind::NetworkPolicy, text.as_bytes(), false);
    let Some(Change::Policy(policy)) = &read.change else { panic!("{read:?}") };
    assert_eq!((&policy.ingress, &policy.egress), (&Some(vec![]), &Some(vec![])));
    assert_eq!(policy.pod_selector.requirements, []);
    assert!(read.undecoded && read.problems[0].text.starts_with("the object is larger than"));
    assert_eq!(read.identity.version.as_deref(), Some("7"));
}

#[test]
fn huge_values_are_named_in_few_words_and_counted() {
    let long = "y".repeat(2 << 20);
    let text = format!(r#"{{"metadata":{{"name":"n","labels":"{long}"}}}}"#);
    let read_one = read(Kind::Pod, text.as_bytes(), true);
    assert!(read_one.problems[0].to_string().len() < 900);
    let values = format!("[{}1]", "1,".repeat(MAX_VALUES));
    let text = format!(r#"{{"metadata":{{"name":"n","labels":{{"a":{values}}}}}}}"#);
    let reason = read(Kind::Pod, text.as_bytes(), true).problems[0].to_string();
    assert!(reason.ends_with("the object has more than 1000000 values"), "{reason}");
    let text = r#"{"metadata":{"name":"n"},"status":{"podIP":"1\n2026-11-22 INFO \u001b[2J"}}"#;
    let problem = read(Kind::Pod, text.as_bytes(), true).problems[0].to_string();
    assert_eq!(problem, r"status.podIP: `1\n2026-11-22 INFO \u{1b}[2J` is not an address");
    // Of a policy with very many problems, only some are named.
    let peer = json!({ "ipBlock": { "cidr": "::ffff:10.0.0.0/104" } });
    let (policy, problems, _) = convert(json!({ "ingress": [{ "from": vec![peer; 10_000] }] }));
    assert_eq!((policy.problems.len(), problems.len()), (51, 51));
    assert_eq!(problems[50], "spec: 9950 more problems");
    assert_eq!(policy.ingress.unwrap()[0].peers, Some(vec![]));
}
