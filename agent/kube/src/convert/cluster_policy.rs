//! Conversion of ClusterNetworkPolicy to [`ClusterPolicy`]: the meaning of absent fields, and the refused values.
//!
//! The kind is read field by field, since a problem with a rule concerns that rule alone. If a rule cannot be
//! interpreted, an Accept matches nothing, and a Deny or Pass denies everything, as the API requires. If the subject,
//! the tier or the priority cannot be interpreted, the Accept and Pass rules match nothing, so that they allow no
//! traffic that the author did not intend.

mod limits;
mod peers;
mod values;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use netpold_core::model::{
    Action, Change, ClusterPolicy, ClusterRule, Direction, NamespacedPods, Peer, PolicyVersion,
    PortRule, Rule, Selector, Tier,
};

use self::peers::EgressPeers;
use self::values::{given, inside, labels, namespaced_pods, value};
use super::converted::Converted;
use super::metadata::{denial, enforcement, name};
use super::problem::{FieldProblem, Unknown, clipped, limited};
use crate::decode::{Mismatch, typed};
use crate::document::{DocumentNode, Value};

/// The highest `spec.priority`.
const PRIORITY_MAX: i64 = 1000;

/// Converts a policy. `unknown` are its fields beyond the API's; the parts that contain them count as not
/// interpretable.
///
/// # Errors
/// The policy has no name, or its metadata cannot be decoded.
pub(super) fn cluster_network_policy(
    object: &DocumentNode,
    unknown: &[Unknown],
) -> Result<Converted, Mismatch> {
    let metadata: ObjectMeta = match object.get("metadata") {
        Some(node) => typed(node).map_err(|mismatch| inside("metadata", mismatch))?,
        None => ObjectMeta::default(),
    };
    let name = name(&metadata)?;
    let mut reader = ClusterPolicyReader { unknown, problems: Vec::new(), understood: true };
    for unknown in unknown.iter().filter(|u| !in_a_part(&u.problem.path)) {
        reader.problems.push(unknown.problem.clone());
    }
    let empty = DocumentNode { line: object.line, value: Value::Map(Vec::new()) };
    let spec = reader.spec(object).unwrap_or(&empty);
    let tier = reader.tier(spec);
    let priority = reader.priority(spec);
    let subject = reader.subject(spec);
    if reader.unknown_in("spec") || reader.unknown_in("") {
        reader.understood = false;
    }
    let [ingress, egress] = Direction::BOTH.map(|direction| reader.rules(direction, tier, spec));
    if !reader.understood {
        reader.problem("spec", "therefore only Deny rules take effect");
    }
    // An API server has checked its own objects, perhaps by other limits.
    if metadata.uid.is_none() {
        limits::check(spec, &mut reader.problems);
    }
    let enforcement = enforcement(&metadata, &mut reader.problems);
    let denial = denial(&metadata, &mut reader.problems);
    let problems = limited(reader.problems);
    let version = PolicyVersion {
        uid: metadata.uid.unwrap_or_default(),
        generation: metadata.generation.unwrap_or_default(),
    };
    let texts = problems.iter().map(ToString::to_string).collect();
    let policy = ClusterPolicy {
        name,
        tier,
        priority,
        subject,
        ingress,
        egress,
        problems: texts,
        version,
        enforcement,
        denial,
    };
    Ok(Converted { change: Change::ClusterPolicy(policy), problems })
}

/// Returns whether a path leads into the subject or a rule: reading that part reports the field.
fn in_a_part(path: &str) -> bool {
    ["spec.subject.", "spec.ingress[", "spec.egress["].iter().any(|part| path.starts_with(part))
}

struct ClusterPolicyReader<'p> {
    unknown: &'p [Unknown],
    problems: Vec<FieldProblem>,
    /// Whether the subject, the tier and the priority could be interpreted.
    understood: bool,
}

impl ClusterPolicyReader<'_> {
    fn problem(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.problems.push(FieldProblem::new(path, text));
    }

    /// Reports a problem that concerns all rules.
    fn not_understood(&mut self, path: &str, text: impl Into<String>) {
        self.understood = false;
        self.problem(path, text);
    }

    /// Returns whether an unknown field is directly in the mapping at the path.
    fn unknown_in(&self, path: &str) -> bool {
        self.unknown.iter().any(|u| u.inside == path)
    }

    /// Returns the unknown fields in the mapping at the path, at any depth.
    fn unknown_below(&self, path: &str) -> Vec<FieldProblem> {
        let below = |u: &&Unknown| {
            u.problem.path.strip_prefix(path).is_some_and(|rest| rest.starts_with(['.', '[']))
        };
        self.unknown.iter().filter(below).map(|u| u.problem.clone()).collect()
    }

    fn spec<'n>(&mut self, object: &'n DocumentNode) -> Option<&'n DocumentNode> {
        let spec = given(object, "spec").filter(|spec| matches!(spec.value, Value::Map(_)));
        if spec.is_none() {
            self.not_understood("spec", "is missing or not a mapping");
        }
        spec
    }

    fn tier(&mut self, spec: &DocumentNode) -> Tier {
        match spec.text("tier") {
            Some("Admin") => Tier::Admin,
            Some("Baseline") => Tier::Baseline,
            Some(other) => {
                self.not_understood("spec.tier", format!("`{other}` is not Admin or Baseline"));
                Tier::Admin
            }
            None => {
                self.not_understood("spec.tier", "is missing; it is Admin or Baseline");
                Tier::Admin
            }
        }
    }

    fn priority(&mut self, spec: &DocumentNode) -> u16 {
        let path = "spec.priority";
        let Some(node) = given(spec, "priority") else {
            self.not_understood(path, "is missing; it is 0 to 1000");
            return 0;
        };
        if let Some(number) = value::<i64>(node, path, &mut self.problems) {
            let known = u16::try_from(number).ok().filter(|_| number <= PRIORITY_MAX);
            if let Some(known) = known {
                return known;
            }
            self.problem(path, format!("{number} is not 0 to {PRIORITY_MAX}"));
        }
        self.understood = false;
        0
    }

    /// Reads the subject; a subject that cannot be interpreted is every pod.
    fn subject(&mut self, spec: &DocumentNode) -> NamespacedPods {
        let path = "spec.subject";
        let mut problems = self.unknown_below(path);
        let subject = given(spec, "subject").and_then(|node| {
            match (given(node, "namespaces"), given(node, "pods")) {
                (Some(namespaces), None) => {
                    let path = format!("{path}.namespaces");
                    let namespaces = labels(namespaces, &path, &mut problems)?;
                    Some(NamespacedPods { namespaces, pods: Selector::default() })
                }
                (None, Some(pods)) => namespaced_pods(pods, &format!("{path}.pods"), &mut problems),
                (Some(_), Some(_)) => {
                    problems.push(FieldProblem::new(path, "has both namespaces and pods"));
                    None
                }
                (None, None) => None,
            }
        });
        if subject.is_none() && problems.is_empty() {
            problems.push(FieldProblem::new(path, "needs namespaces or pods"));
        }
        if let (Some(subject), true) = (subject, problems.is_empty()) {
            return subject;
        }
        self.understood = false;
        let outcome =
            |p: FieldProblem| FieldProblem::new(p.path, format!("{}; it is every pod", p.text));
        self.problems.extend(problems.into_iter().map(outcome));
        NamespacedPods::default()
    }

    fn rules(&mut self, direction: Direction, tier: Tier, spec: &DocumentNode) -> Vec<ClusterRule> {
        let field = match direction {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        };
        let path = format!("spec.{field}");
        let Some(node) = given(spec, field) else { return Vec::new() };
        let Value::List(rules) = &node.value else {
            self.problem(path, "is not a list; everything is denied");
            return vec![denies_everything(String::new())];
        };
        let rules = rules.iter().enumerate();
        rules.map(|(n, rule)| self.rule((direction, tier), &format!("{path}[{n}]"), rule)).collect()
    }

    fn rule(
        &mut self,
        (direction, tier): (Direction, Tier),
        path: &str,
        node: &DocumentNode,
    ) -> ClusterRule {
        let mut problems = self.unknown_below(path);
        let name = given(node, "name")
            .and_then(|name| value(name, &format!("{path}.name"), &mut problems))
            .map(clipped)
            .unwrap_or_default();
        let action = action(node, path, &mut problems);
        let side = match direction {
            Direction::Ingress => "from",
            Direction::Egress => "to",
        };
        let egress = match direction {
            Direction::Ingress => EgressPeers::No,
            Direction::Egress => EgressPeers::Yes,
        };
        let side_path = format!("{path}.{side}");
        let found = match given(node, side) {
            Some(node) => peers::peers(node, &side_path, egress, &mut problems),
            None => {
                problems
                    .push(FieldProblem::new(&*side_path, "is missing; it needs at least one peer"));
                None
            }
        };
        peers::check_domain_names(found.as_deref(), &side_path, (tier, action), &mut problems);
        let ports = peers::protocols(node, path, found.as_deref(), &mut problems);
        let rule = self.judged(name, action, found.zip(ports), !problems.is_empty());
        if !problems.is_empty() {
            let outcome = match rule.action {
                Action::Deny => "the rule denies everything",
                Action::Accept | Action::Pass => "the rule matches nothing",
            };
            let problems = problems.into_iter();
            self.problems.extend(
                problems.map(|p| FieldProblem::new(p.path, format!("{}; {outcome}", p.text))),
            );
        }
        rule
    }

    /// Returns the rule as read, or its fail-closed replacement if it could not be interpreted.
    fn judged(
        &self,
        name: String,
        action: Option<Action>,
        understood: Option<(Vec<Peer>, Option<Vec<PortRule>>)>,
        wrong: bool,
    ) -> ClusterRule {
        let understood = understood.filter(|_| !wrong);
        match (action, understood) {
            (Some(action @ (Action::Accept | Action::Pass)), _) if !self.understood => {
                matches_nothing(name, action)
            }
            (Some(action), Some((peers, ports))) => {
                ClusterRule { name, action, matches: Rule { peers: Some(peers), ports } }
            }
            (Some(Action::Accept), None) => matches_nothing(name, Action::Accept),
            (Some(Action::Deny | Action::Pass) | None, _) => denies_everything(name),
        }
    }
}

fn action(node: &DocumentNode, path: &str, problems: &mut Vec<FieldProblem>) -> Option<Action> {
    let path = format!("{path}.action");
    match node.text("action") {
        Some("Accept") => return Some(Action::Accept),
        Some("Deny") => return Some(Action::Deny),
        Some("Pass") => return Some(Action::Pass),
        Some(other) => {
            problems
                .push(FieldProblem::new(path, format!("`{other}` is not Accept, Deny or Pass")));
        }
        None => problems.push(FieldProblem::new(path, "is missing; it is Accept, Deny or Pass")),
    }
    None
}

fn matches_nothing(name: String, action: Action) -> ClusterRule {
    ClusterRule { name, action, matches: Rule { peers: Some(Vec::new()), ports: None } }
}

fn denies_everything(name: String) -> ClusterRule {
    ClusterRule { name, action: Action::Deny, matches: Rule { peers: None, ports: None } }
}
