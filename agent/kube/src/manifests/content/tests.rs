use netpold_core::model::Change;

use super::*;

fn read_settled(file: &str, text: &str, namespace: &str) -> Content {
    let mut content = read(file, text.as_bytes(), namespace);
    content.replace_undecoded(file, None, false);
    content
}

fn ids(text: &str) -> Vec<String> {
    read_settled("f", text, "default").objects.keys().map(ToString::to_string).collect()
}

fn problems(content: &Content) -> Vec<String> {
    content.problems("f").map(|problem| problem.to_string()).collect()
}

fn object(content: &Content, shown: &str) -> Change {
    let object = content.objects.iter().find(|(key, _)| key.to_string() == shown);
    object.unwrap_or_else(|| panic!("no {shown}")).1.change.unpacked().unwrap()
}

#[test]
fn lists_of_both_kinds_are_opened() {
    let list = "
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: x}}
- apiVersion: v1
  kind: PodList
  items:
  - metadata: {name: a, namespace: x}
  - metadata: {name: b, namespace: x}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: d}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicyList
items:
- metadata: {name: p, namespace: x}
---
{apiVersion: v1, kind: NodeList, items: }
";
    assert_eq!(ids(list), ["Namespace x", "Pod x/a", "Pod x/b", "NetworkPolicy x/p"]);
}

#[test]
fn objects_without_a_namespace_are_where_they_are_put() {
    let text = "
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: 'n'}}
- {apiVersion: v1, kind: Pod, metadata: {name: a}}
- {apiVersion: v1, kind: Pod, metadata: {name: b, namespace: }}
- {apiVersion: v1, kind: Pod, metadata: {name: c, namespace: ''}}
- {apiVersion: v1, kind: Pod, metadata: {name: d, namespace: 'y'}}
";
    let content = read_settled("f", text, "x");
    let ids: Vec<String> = content.objects.keys().map(ToString::to_string).collect();
    assert_eq!(ids, ["Namespace n", "Pod x/a", "Pod x/b", "Pod x/c", "Pod y/d"]);
    assert!(problems(&content).is_empty());
}

#[test]
fn problems_have_the_line_of_their_field() {
    let text = "---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: p
spec:
  podSelector: {}
  ingres:
  - {}
  egress:
  - ports:
    - port: 0
";
    assert_eq!(
        problems(&read_settled("f", text, "default")),
        [
            "f:8: NetworkPolicy default/p: spec.ingres: unknown field; known fields: \
                 podSelector, policyTypes, ingress, egress",
            "f:12: NetworkPolicy default/p: spec.egress[0].ports[0].port: \
                 0 is not a port, 1 to 65535",
        ]
    );
}

#[test]
fn twice_in_one_file_the_last_wins_and_is_reported() {
    let pod = |label: &str| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: a, labels: {{l: {label}}}}}}}\n"
        )
    };
    let content = read_settled("f", &(pod("one") + &pod("two")), "default");
    let Change::Pod(found) = object(&content, "Pod default/a") else { panic!() };
    assert_eq!(found.labels.get("l").unwrap(), "two");
    assert_eq!(problems(&content), ["f:2: Pod default/a is defined twice; the one in line 4 wins"]);
}

/// Typed lists, with the kind before or after the items.
#[test]
fn items_are_what_they_are_wherever_the_kind_of_the_list_stands() {
    let item = |name: &str| format!("{{metadata: {{name: {name}, namespace: x}}}}");
    for text in [
        format!("kind: PodList\napiVersion: v1\nitems: [{}, {}]\n", item("a"), item("b")),
        format!("apiVersion: v1\nitems:\n- {}\n- {}\nkind: PodList\n", item("a"), item("b")),
        "{\"items\": [{\"metadata\": {\"name\": \"a\", \"namespace\": \"x\"}}, {\"kind\": \"Pod\", \
             \"apiVersion\": \"v1\", \"metadata\": {\"name\": \"b\", \"namespace\": \"x\"}}], \
             \"kind\": \"PodList\", \"apiVersion\": \"v1\"}"
            .to_owned(),
    ] {
        assert_eq!(ids(&text), ["Pod x/a", "Pod x/b"], "{text}");
    }
    // Another kind with a field `items` is not a list.
    let text =
        "apiVersion: v1\nitems: [{apiVersion: v1, kind: Pod, metadata: {name: a}}]\nkind: Other\n";
    assert!(ids(text).is_empty());
}

#[test]
fn keys_given_twice_are_named_where_policy_reads_them() {
    let text = |kind: &str| {
        format!(
            "apiVersion: v1\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{}}\nspec: {{nodeName: 'n'}}\n"
        )
    };
    let content = read_settled("f", &text("Pod"), "x");
    let Change::Pod(pod) = object(&content, "Pod x/a") else { panic!() };
    assert_eq!(pod.node.as_str(), "n");
    assert_eq!(
        problems(&content),
        ["f:5: key `spec` is given twice; as with kubectl, the last one counts"]
    );
    assert!(problems(&read_settled("f", &text("ConfigMap"), "x")).is_empty());
}

const POLICY: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: p, namespace: x}
spec:
  podSelector: {matchLabels: {app: a}}
  policyTypes: [Ingress]
  ingress: many
";

#[test]
fn one_bad_object_leaves_the_others() {
    let pod = |name: &str, labels: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  labels:\n    v: {labels}\n"
        )
    };
    let text = pod("a", "'1'") + &pod("b", "1") + &pod("c", "yes") + "---\n" + POLICY;
    let content = read_settled("f", &text, "x");
    assert!(content.unread.is_empty());
    assert_eq!(ids(&text), ["Pod default/a", "NetworkPolicy x/p"]);
    assert_eq!(
        problems(&content),
        [
            "f:14: Pod x/b: metadata.labels.v: is integer `1`, expected a string; put it in quotes (it counts \
                 as absent)",
            "f:21: Pod x/c: metadata.labels.v: is boolean `true`, expected a string; put it in quotes (it counts \
                 as absent)",
            "f:29: NetworkPolicy x/p: spec.ingress: is string \"many\", expected a sequence; the policy cannot be \
                 decoded and grants nothing",
        ]
    );
    let Change::Policy(policy) = object(&content, "NetworkPolicy x/p") else { panic!() };
    assert_eq!((policy.ingress, policy.egress), (Some(Vec::new()), None));
    assert!(policy.pod_selector.matches(&[("app".into(), "a".into())].into_iter().collect()));
    assert!(!policy.pod_selector.matches(&[("app".into(), "b".into())].into_iter().collect()));
}

/// An unreadable selector selects every pod; a misspelled version or kind hides no policy.
#[test]
fn a_policy_that_is_not_understood_isolates() {
    for (from, to, egress) in [
        ("{app: a}", "{app: 1}", false),
        ("[Ingress]", "7", true),
        ("networking.k8s.io/v1", "extensions/v1beta1", false),
        ("kind: NetworkPolicy", "kind: NetworkPolicies", false),
    ] {
        let content = read_settled("f", &POLICY.replace(from, to), "x");
        assert_eq!(problems(&content).len(), 1, "{to}");
        assert!(problems(&content)[0].ends_with("and grants nothing"), "{:?}", problems(&content));
        let Change::Policy(policy) = object(&content, "NetworkPolicy x/p") else { panic!() };
        assert_eq!(policy.ingress, Some(Vec::new()), "{to}");
        assert_eq!(policy.egress.is_some(), egress, "{to}");
        let other = [("app".into(), "b".into())].into_iter().collect();
        assert_eq!(policy.pod_selector.matches(&other), to == "{app: 1}", "{to}");
    }
}

/// Policies with `generateName` are all in force, and do not invalidate other objects of the file.
#[test]
fn objects_with_a_generated_name_are_in_force() {
    let named = |prefix: &str, app: &str| {
        let policy = POLICY.replace("name: p,", &format!("generateName: {prefix},"));
        policy.replace("many", "[]").replace("app: a", &format!("app: {app}"))
    };
    let pod = "{apiVersion: v1, kind: Pod, metadata: {generateName: x-}}\n".to_owned();
    let text = [named("web-", "a"), named("web-", "b"), named("web-", "a"), pod].join("---\n");
    let content = read_settled("f", &text, "x");
    let keys: Vec<String> = content.objects.keys().map(ToString::to_string).collect();
    let [pod, first, second] = &keys[..] else { panic!("{keys:?}") };
    assert!(pod.starts_with("Pod x/x-*"), "{pod}");
    for key in [first, second] {
        assert!(key.starts_with("NetworkPolicy x/web-*"), "{key}");
        let Change::Policy(policy) = object(&content, key) else { panic!() };
        assert_eq!(policy.ingress, Some(Vec::new()));
    }
    // A policy that cannot be decoded closes its pods, like any other.
    let content = read_settled("f", &named("web-", "a").replace("[]", "many"), "x");
    assert_eq!(content.unread, []);
    assert!(content.objects.values().all(|object| !object.understood));
}

/// A document that may isolate any pod prevents the file from counting as known.
#[test]
fn what_is_no_object_is_unread() {
    let text =
        "{apiVersion: v1, kind: Namespace, metadata: {name: x}}\n---\nkind: Pod\n---\na: [\n---\n\
            {apiVersion: v1, kind: Pod, metadata: {labels: {}}}\n---\n"
            .to_owned()
            + &POLICY.replace("name: p,", "");
    let content = read_settled("f", &text, "default");
    assert_eq!(content.objects.len(), 1);
    let problems = problems(&content);
    assert_eq!(
        [&problems[0], &problems[1], &problems[3]],
        [
            "f:7: metadata.name: the object has no name (it counts as absent)",
            "f:3: not a Kubernetes object: no `apiVersion` (nothing of it is in effect)",
            "f:15: spec.ingress: is string \"many\", expected a sequence (nothing of it is in effect)",
        ]
    );
    assert!(problems[2].starts_with("f:5: ") || problems[2].starts_with("f:6: "), "{problems:?}");
    assert!(problems[2].ends_with(" (nothing of it is in effect)"), "{problems:?}");
    // As in kubectl, bytes other than UTF-8 affect only the text that contains them.
    assert!(
        read("f", b"# \xff\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n", "default")
            .unread
            .is_empty()
    );
}

#[test]
fn what_was_known_stays() {
    let good =
        POLICY.replace("many", "[{}]") + "---\n{apiVersion: v1, kind: Pod, metadata: {name: a}}\n";
    let former = read_settled("f", &good, "x");
    let settled = |text: &str, former: &Content| {
        let mut content = read("f", text.as_bytes(), "x");
        let kept = content.replace_undecoded("f", Some(former), true);
        (content, kept)
    };
    // The policy keeps its former version, the pod is removed.
    let (content, kept) = settled(POLICY, &former);
    assert!(kept && content.objects.len() == 1);
    assert_eq!(object(&content, "NetworkPolicy x/p"), object(&former, "NetworkPolicy x/p"));
    assert!(problems(&content)[0].ends_with(" (its last good version stays in effect)"));
    // A document that cannot be read may be either of them.
    let (content, kept) =
        settled("a: [\n---\n{apiVersion: v1, kind: Pod, metadata: {name: b}}\n", &former);
    assert!(kept);
    let keys: Vec<String> = content.objects.keys().map(ToString::to_string).collect();
    assert_eq!(keys, ["Pod x/a", "Pod x/b", "NetworkPolicy x/p"]);
    // A policy that grants nothing because it could not be decoded is not a last good version.
    let closed = read_settled("f", POLICY, "x");
    let (content, kept) = settled(&POLICY.replace("app: a", "app: b"), &closed);
    assert!(!kept);
    assert_ne!(object(&content, "NetworkPolicy x/p"), object(&closed, "NetworkPolicy x/p"));
}

#[test]
fn endless_problems_are_counted() {
    let pods: String = (0..500)
        .map(|n| {
            format!("---\n{{apiVersion: v1, kind: Pod, metadata: {{name: p{n}, labels: 1}}}}\n")
        })
        .collect();
    let problems = problems(&read_settled("f", &pods, "x"));
    assert_eq!(problems.len(), NAMED + 1);
    assert_eq!(problems[NAMED], "f: 300 more problems");
}

const SAMPLE: &str = "apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: &m {name: p, namespace: x}
spec:
  podSelector: {matchLabels: {a: b}}
  policyTypes: [Ingress]
  ingress:
  - from:
    - ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}
    ports: [{port: 80, endPort: 90}]
---
{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"\\u0061\"}}
";

proptest::proptest! {
    /// A damaged manifest is read, or refused with one of its lines.
    #[test]
    fn damaged_manifests_are_read_or_refused(
        edits in proptest::collection::vec((0..SAMPLE.len(), proptest::num::u8::ANY, 0..3), 1..6)
    ) {
        let mut bytes = SAMPLE.as_bytes().to_vec();
        for (at, byte, edit) in edits {
            let at = at.min(bytes.len().saturating_sub(1));
            match edit {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, b"{}[]:-#&*'\"\n ,<\\u"[usize::from(byte) % 17]),
                _ => bytes.truncate(at.max(1)),
            }
        }
        // To YAML a lone carriage return ends a line too.
        let lines = bytes.split(|b| matches!(b, b'\n' | b'\r')).count();
        let mut content = read("f", &bytes, "default");
        content.replace_undecoded("f", None, false);
        for problem in content.problems("f") {
            proptest::prop_assert!((1..=lines + 1).contains(&(problem.line as usize)), "{}", problem);
        }
    }
}
