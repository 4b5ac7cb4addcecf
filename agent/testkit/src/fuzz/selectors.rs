//! Label selectors of the API, from JSON to the match, compared with a literal reading.

use std::collections::BTreeMap;

use netpold_core::model::{Change, Labels};
use netpold_kube::manifests::read_text;
use serde_json::{Value, json};

use crate::generate::Choices;

const KEYS: [&str; 3] = ["app", "tier", "example.org/a"];
const VALUES: [&str; 4] = ["web", "db", "", "a.b_c-d"];
const OPERATORS: [&str; 6] = ["In", "NotIn", "Exists", "DoesNotExist", "in", ""];

/// Runs one input.
///
/// # Panics
/// The input shows a mistake.
pub fn run(bytes: &[u8]) {
    let mut choices = Choices::from_bytes(bytes);
    let labels: Vec<Labels> = (0..4).map(|_| labels(&mut choices)).collect();
    let selector = selector(&mut choices);
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": { "namespace": "x", "name": "p" },
        "spec": { "podSelector": selector },
    });
    let (changes, problems) =
        read_text("p.json", policy.to_string().as_bytes()).expect("an object");
    let [Change::Policy(policy)] = &changes[..] else { panic!("no policy: {changes:?}") };
    let understood = is_valid(&selector);
    assert_eq!(understood, problems.is_empty(), "{selector}: {problems:?}");
    for labels in labels {
        // An invalid selector isolates every pod of the namespace.
        let expected = !understood || literally(&selector, &labels);
        assert_eq!(policy.pod_selector.matches(&labels), expected, "{selector} on {labels:?}");
    }
}

fn labels(choices: &mut Choices<'_>) -> Labels {
    let pair = |c: &mut Choices<'_>| ((*c.pick(&KEYS)).to_owned(), (*c.pick(&VALUES)).to_owned());
    choices.list(3, pair).into_iter().collect()
}

fn selector(choices: &mut Choices<'_>) -> Value {
    let mut selector = json!({});
    if choices.chance(50) {
        let labels = labels(choices);
        selector["matchLabels"] = json!(labels.iter().collect::<BTreeMap<_, _>>());
    }
    if choices.chance(60) {
        selector["matchExpressions"] = choices.list(3, expression).into();
    }
    selector
}

fn expression(choices: &mut Choices<'_>) -> Value {
    let known = if choices.chance(95) { 4 } else { OPERATORS.len() };
    let operator = *choices.pick(&OPERATORS[..known]);
    let mut expression = json!({ "key": choices.pick(&KEYS), "operator": operator });
    let wants_values = operator.ends_with("In");
    if wants_values != choices.chance(5) {
        expression["values"] = choices.list(3, |c| *c.pick(&VALUES)).into();
    }
    expression
}

fn expressions(selector: &Value) -> &[Value] {
    selector["matchExpressions"].as_array().map_or(&[], Vec::as_slice)
}

fn values(expression: &Value) -> Vec<&str> {
    expression["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// LabelSelectorRequirement: In and `NotIn` require values, the other operators forbid them.
fn is_valid(selector: &Value) -> bool {
    expressions(selector).iter().all(|expression| {
        let some = !values(expression).is_empty();
        match expression["operator"].as_str() {
            Some("In" | "NotIn") => some,
            Some("Exists" | "DoesNotExist") => !some,
            _ => false,
        }
    })
}

fn literally(selector: &Value, labels: &Labels) -> bool {
    let equal =
        |(key, value): (&String, &Value)| labels.get(key).map(String::as_str) == value.as_str();
    let fulfilled = |expression: &Value| {
        let label = labels.get(expression["key"].as_str().unwrap_or_default());
        let listed = label.is_some_and(|label| values(expression).contains(&label.as_str()));
        match expression["operator"].as_str() {
            Some("In") => listed,
            Some("NotIn") => !listed,
            Some("Exists") => label.is_some(),
            _ => label.is_none(),
        }
    };
    selector["matchLabels"].as_object().is_none_or(|all| all.iter().all(equal))
        && expressions(selector).iter().all(fulfilled)
}
