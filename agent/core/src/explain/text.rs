//! Text form of explanations.

use std::fmt::{self, Write as _};
use std::net::IpAddr;

use crate::explain::answer::{
    Cause, Explanation, Judgement, MatchedTierRule, RuleRef, ServiceBackend, TierPolicy, Verdict,
};
use crate::model::{
    Action, Direction, Key, Labels, Peer, PortMatch, PortRule, Requirement, Rule, Selector, Tier,
};

/// Line of a denial that the sender gets an answer to.
const REJECTED: &str = "rejected: the sender gets an error at once (netpold.io/deny: reject)";

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Unknown => "cannot tell",
        })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("\n"))
    }
}

impl Explanation {
    /// Returns the explanation as lines of text, the verdict first, details indented.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("{}: {}", self.verdict, self.probe)];
        if !self.templates.is_empty() {
            let titles = self.templates.iter().map(|template| template.title.clone());
            lines.push(format!("by pod template, no pods exist: {}", join(titles, "", ", ")));
        }
        lines.extend(self.reason.clone());
        lines.extend(self.note.clone());
        if self.services.is_empty() {
            for judgement in [&self.egress, &self.ingress].into_iter().flatten() {
                lines.extend(judgement.lines());
            }
        }
        // At another node's node port a rule for that address suffices, regardless of the sender's rules for the
        // backends.
        let is_by_address = |egress: &&Judgement| {
            self.verdict == Verdict::Allow
                && egress.verdict == Verdict::Allow
                && self.backends.iter().all(|backend| backend.verdict == Verdict::Deny)
        };
        if !self.services.is_empty()
            && let Some(egress) = self.egress.as_ref().filter(is_by_address)
        {
            lines.extend(egress.lines());
        }
        for backend in &self.backends {
            lines.extend(backend.lines());
        }
        lines
    }
}

impl ServiceBackend {
    fn lines(&self) -> Vec<String> {
        let (verdict, port) = (self.verdict, self.port);
        let place = match (&self.pod, self.address) {
            (Some(pod), address) if address.is_unspecified() => format!("pod {pod} port {port}"),
            (Some(pod), address) => format!("{address} port {port}, pod {pod}"),
            (None, address) => format!("{address} port {port}"),
        };
        let mut lines = vec![format!("backend {place}: {verdict}")];
        for judgement in [&self.egress, &self.ingress].into_iter().flatten() {
            lines.extend(judgement.lines().iter().map(|line| format!("  {line}")));
        }
        lines
    }
}

/// Summarises a Service's backends. `out_of_sight`: another node chooses the backend.
pub(super) fn translated(
    services: &[Key],
    backends: &[ServiceBackend],
    egress: Option<&Judgement>,
    out_of_sight: bool,
) -> Option<String> {
    let names = join(services.iter().map(ToString::to_string), "", " and ");
    if backends.is_empty() {
        return Some(format!("Service {names} has no ready backend: nothing answers"));
    }
    let all = backends.len();
    let allowed = backends.iter().filter(|b| b.verdict == Verdict::Allow).count();
    let mut note = match allowed {
        0 => format!("Service {names}: none of its backends is allowed"),
        n if n == all => format!("Service {names}: every backend is allowed"),
        n => format!("Service {names}: its backends differ, {n} of {all} are allowed"),
    };
    if out_of_sight {
        note.push_str(
            "; another node chooses one, so the sender must be allowed every backend, or that node's \
             address",
        );
    }
    let denied = egress.filter(|egress| egress.verdict == Verdict::Deny);
    if let Some(rule) = denied.and_then(|egress| egress.tiers.decided_by.as_ref())
        && allowed > 0
    {
        let _ = write!(note, "; but {rule}");
    }
    if out_of_sight {
        return Some(note);
    }
    let to_address = egress.is_some_and(|egress| {
        egress.verdict == Verdict::Allow && matches!(egress.cause, Cause::Rule | Cause::TierRule)
    });
    let to_backend = backends.iter().any(|backend| {
        backend.egress.as_ref().is_none_or(|egress| egress.verdict == Verdict::Allow)
    });
    if to_address && !to_backend {
        note.push_str("; a rule allows the address itself, but the backends behind it decide");
    }
    Some(note)
}

impl Judgement {
    /// Returns the judgement as lines of text, details indented.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let (pod, direction) = (&self.pod, self.direction);
        let mut lines = vec![format!("{direction} of pod {pod}: {}", self.summary())];
        for rule in &self.tiers.passed_by {
            let next = match rule.policy.tier {
                Tier::Admin => "NetworkPolicy",
                Tier::Baseline => "the default",
            };
            lines.push(format!("  passed to {next}: {rule}"));
        }
        let network_policies_asked = !self.is_decided_by(Tier::Admin);
        if network_policies_asked && !self.isolated_by.is_empty() {
            let names: Vec<String> = self.isolated_by.iter().map(ToString::to_string).collect();
            lines.push(format!("  isolated by {}", names.join(", ")));
        }
        let without_match: Vec<&TierPolicy> = self.without_match().collect();
        if !without_match.is_empty() {
            let policies = join_first(&without_match, ToString::to_string, "", ", ");
            lines.push(format!("  no rule matches in {policies}"));
        }
        lines.extend(self.tiers.names_beyond_limit.iter().map(|rule| format!("  {rule}")));
        if let Some(nearest) = &self.nearest {
            lines.push(format!("  nearest: {}", nearest.rule));
            lines.extend(nearest.lacks.iter().map(|lack| format!("    {lack}")));
        }
        if !self.denied_on_trial.is_empty() {
            let name = |policy: &Key| match policy.namespace.as_str() {
                "" => format!("ClusterNetworkPolicy {}", policy.name),
                _ => policy.to_string(),
            };
            let names = join(self.denied_on_trial.iter().map(name), "", ", ");
            lines.push(format!("  would be denied by policies in audit mode: {names}"));
        }
        lines.extend(self.tiers.names_on_trial.iter().map(|rule| format!("  {rule}")));
        for problem in self.problems.iter().filter(|_| network_policies_asked) {
            let what =
                if problem.over_budget { "closed, grants nothing:" } else { "not understood in" };
            lines.push(format!("  {what} {}: {}", problem.policy, problem.problem));
        }
        for problem in &self.tiers.problems {
            let (policy, what) = (&problem.policy, &problem.problem);
            lines.push(format!("  not understood in ClusterNetworkPolicy {policy}: {what}"));
        }
        if self.rejected {
            lines.push(format!("  {REJECTED}"));
        }
        lines.extend(self.remarks.iter().map(|remark| format!("  {remark}")));
        lines
    }

    fn is_decided_by(&self, tier: Tier) -> bool {
        self.tiers.decided_by.as_ref().is_some_and(|rule| rule.policy.tier == tier)
    }

    /// Returns the evaluated ClusterNetworkPolicies without a matching rule.
    fn without_match(&self) -> impl Iterator<Item = &TierPolicy> {
        let rules = || self.tiers.passed_by.iter().chain(&self.tiers.decided_by);
        self.tiers.asked.iter().filter(move |asked| rules().all(|rule| rule.policy != **asked))
    }

    /// Returns `denied` or `allowed`, and the deciding rule of a ClusterNetworkPolicy.
    fn by_tier(&self) -> String {
        let verdict = match self.verdict {
            Verdict::Allow => "allowed",
            Verdict::Deny | Verdict::Unknown => "denied",
        };
        let Some(rule) = &self.tiers.decided_by else {
            return format!("{verdict} by a rule of a ClusterNetworkPolicy");
        };
        let place = match self.cause == Cause::BackendDenied {
            true => "by the backends behind the address: ",
            false => "",
        };
        let rest = match rule.policy.tier {
            Tier::Admin => "; NetworkPolicy was not evaluated",
            Tier::Baseline => "",
        };
        format!("{verdict}, {place}{rule}{rest}")
    }

    fn summary(&self) -> String {
        match (self.cause, &self.allowed_by) {
            (Cause::TierRule | Cause::BackendDenied, _) => self.by_tier(),
            (Cause::NotIsolated, _) => {
                let direction = self.direction;
                let is_baseline = |policy: &TierPolicy| policy.tier == Tier::Baseline;
                let baseline = match self.tiers.asked.iter().any(is_baseline) {
                    true => " and no Baseline rule decides",
                    false => "",
                };
                format!("allowed, no policy isolates its {direction}{baseline}")
            }
            (Cause::Rule, Some(rule)) => format!("allowed, {rule}"),
            (Cause::Rule, None) => "allowed by a rule".to_owned(),
            (Cause::NoRule, _) if self.nearest.is_none() => {
                "denied, the policies that isolate it have no rules".to_owned()
            }
            (Cause::NoRule, _) => "denied, no rule allows it".to_owned(),
            (Cause::Backend, _) => "allowed, by the backends behind the address".to_owned(),
            (Cause::Itself, _) => "allowed, a pod always reaches itself".to_owned(),
            (Cause::OwnNode, _) => {
                "allowed, a pod and its own node always reach each other".to_owned()
            }
            (Cause::HostNetwork, _) => {
                "allowed, it uses the host's network and policies do not select it".to_owned()
            }
        }
    }
}

/// Numbers rules from 1.
impl fmt::Display for RuleRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (direction, number, policy) = (self.direction, self.index + 1, &self.policy);
        write!(f, "{direction} rule {number} of {policy} allows {}", self.allows)
    }
}

impl fmt::Display for TierPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} policy {}", self.tier, self.policy)
    }
}

/// Numbers rules from 1.
impl fmt::Display for MatchedTierRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (direction, number) = (self.direction, self.index + 1);
        write!(f, "{direction} rule {number}")?;
        if !self.name.is_empty() {
            write!(f, " ({})", self.name)?;
        }
        let verb = match self.action {
            Action::Accept => "accepts",
            Action::Deny => "denies",
            Action::Pass => "passes",
        };
        let (policy, priority, matches) = (&self.policy, self.policy.priority, &self.matches);
        write!(f, " of {policy}, priority {priority}, {verb} {matches}")?;
        self.resolution.iter().try_for_each(|resolution| write!(f, "; {resolution}"))
    }
}

pub(super) fn depends_on_address(
    one: (Verdict, (IpAddr, IpAddr)),
    other: (Verdict, (IpAddr, IpAddr)),
) -> String {
    let side = |(verdict, (from, to)): (Verdict, (IpAddr, IpAddr))| match verdict {
        Verdict::Allow => format!("{from} to {to} is allowed"),
        Verdict::Deny | Verdict::Unknown => format!("{from} to {to} is not"),
    };
    format!("it depends on the address: {}, {}; give addresses", side(one), side(other))
}

/// Describes the traffic that a rule allows; `namespace` is the policy's.
pub(super) fn rule(namespace: &str, direction: Direction, rule: &Rule) -> String {
    let ports = match &rule.ports {
        None => "everything".to_owned(),
        Some(ports) => join_first(ports, port, "no port", ", "),
    };
    let preposition = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    let peers = match &rule.peers {
        None => "anyone".to_owned(),
        Some(peers) => join_first(peers, |p| peer_text(namespace, p), "no peer", " or "),
    };
    format!("{ports} {preposition} {peers}")
}

fn join(items: impl Iterator<Item = String>, none: &str, separator: &str) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { none.to_owned() } else { items.join(separator) }
}

/// Maximum number of items of a list that a text names: a policy may have thousands of blocks, and each drop is
/// explained.
pub(super) const TOLD: usize = 8;

/// Joins the first [`TOLD`] items and adds the number of remaining ones.
fn join_first<T>(items: &[T], text: impl Fn(&T) -> String, none: &str, separator: &str) -> String {
    let first = join(items.iter().take(TOLD).map(text), none, separator);
    match items.len().saturating_sub(TOLD) {
        0 => first,
        more => format!("{first}{separator}{more} more"),
    }
}

fn port(rule: &PortRule) -> String {
    let protocol = rule.protocol;
    match &rule.port {
        PortMatch::Any => format!("{protocol}"),
        PortMatch::Range(first, last) if first == last => format!("{protocol} {first}"),
        PortMatch::Range(first, last) => format!("{protocol} {first}-{last}"),
        PortMatch::Named(name) => format!("{protocol} {name}"),
    }
}

/// Describes a peer of a rule, such as `pods app=web of namespace shop`; `namespace` is that of the policy.
#[must_use]
pub fn peer_text(namespace: &str, peer: &Peer) -> String {
    match peer {
        Peer::Block(block) if block.except.is_empty() => block.cidr.to_string(),
        Peer::Block(block) => {
            let excepts = join(block.except.iter().map(ToString::to_string), "", ", ");
            format!("{} except {excepts}", block.cidr)
        }
        Peer::Nodes(nodes) if nodes.requirements.is_empty() => "nodes".to_owned(),
        Peer::Nodes(nodes) => format!("nodes {}", selector(nodes)),
        Peer::Domain(name) => format!("addresses of {name}"),
        Peer::Pods { namespaces, pods } => {
            let pods = match pods.requirements.is_empty() {
                true => "pods".to_owned(),
                false => format!("pods {}", selector(pods)),
            };
            match namespaces {
                None => format!("{pods} of namespace {namespace}"),
                Some(all) if all.requirements.is_empty() => format!("{pods} of every namespace"),
                Some(some) => format!("{pods} of namespaces {}", selector(some)),
            }
        }
    }
}

/// Formats a selector as kubectl does.
fn selector(selector: &Selector) -> String {
    join(selector.requirements.iter().map(requirement), "", ",")
}

fn requirement(requirement: &Requirement) -> String {
    match requirement {
        Requirement::In(key, values) if values.len() == 1 => format!("{key}={}", values[0]),
        Requirement::In(key, values) => format!("{key} in ({})", values.join(",")),
        Requirement::NotIn(key, values) if values.len() == 1 => format!("{key}!={}", values[0]),
        Requirement::NotIn(key, values) => format!("{key} notin ({})", values.join(",")),
        Requirement::Exists(key) => key.clone(),
        Requirement::DoesNotExist(key) => format!("!{key}"),
    }
}

/// Notes a rule of a ClusterNetworkPolicy that denies the address of a Service, without effect on its backends.
pub(super) fn ineffective_denial(rule: &MatchedTierRule) -> String {
    format!(
        "{rule}; that is the Service's address, which is translated before policy is evaluated, so this rule denies \
         nothing here"
    )
}

/// Describes an unmet requirement: the required label, and the object's own value.
pub(super) fn unmet(subject: &str, unmet: &Requirement, labels: &Labels) -> String {
    let (Requirement::In(key, _)
    | Requirement::NotIn(key, _)
    | Requirement::Exists(key)
    | Requirement::DoesNotExist(key)) = unmet;
    let wanted = requirement(unmet);
    match labels.get(key) {
        Some(value) => format!("{subject} has {key}={value}, expected {wanted}"),
        None => format!("{subject} has no label {key}, expected {wanted}"),
    }
}
