//! Findings, grouped by kind.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Most places named per finding; the rest is counted.
const NAMED: usize = 100;
/// Longest text of a place in bytes: tenants choose names and selectors.
const PLACE_MAX: usize = 400;
/// Longest text of a fix in bytes: some fixes contain labels and addresses of the cluster.
const FIX_MAX: usize = 1000;
/// Most kinds of findings per report, and most entries of unknown things.
const KINDS: usize = 200;
/// Most findings of one problem with fixes of their own; further places get the check's fix.
const FIXES: usize = 20;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Policy is not in force as written, or another program drops packets.
    Error,
    /// Most likely not the author's intent.
    Warning,
    /// Information.
    Info,
}

impl std::fmt::Display for Severity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        })
    }
}

/// Finding, at one or more places with the same fix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Severity.
    pub severity: Severity,
    /// Name of the check, for programs.
    pub check: String,
    /// Description of the problem.
    pub problem: String,
    /// Places: an object and its field, a device, a program. The first ones if there are many.
    pub places: Vec<String>,
    /// Number of places.
    pub count: usize,
    /// Fix: a command, or a line of a manifest.
    pub fix: String,
}

/// Findings, and checks that were not possible.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// Findings by severity, the worst first, then by name of the check.
    pub findings: Vec<Finding>,
    /// Things that could not be checked, each with the reason.
    pub unknown: Vec<String>,
}

impl DoctorReport {
    /// Merges two reports into one sorted report.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.findings.extend(other.findings);
        self.findings.sort_by(|a, b| (a.severity, &a.check).cmp(&(b.severity, &b.check)));
        self.unknown.extend(other.unknown);
        self
    }
}

/// Kind of finding.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Name, for programs.
    pub name: &'static str,
    /// Severity.
    pub severity: Severity,
    /// Description of the problem; `{}` stands for a name.
    pub problem: &'static str,
    /// Fix: a command, or a line of a manifest.
    pub fix: &'static str,
}

/// Severity, check, problem and fix.
type FindingKey = (Severity, String, String, String);

/// Collector of a report in bounded memory.
#[derive(Debug, Default)]
pub struct Findings {
    found: BTreeMap<FindingKey, Finding>,
    unknown: Vec<String>,
}

impl Findings {
    /// Adds a place of a check's finding.
    pub fn add(&mut self, check: &Check, place: impl Into<String>) {
        self.place(check, check.problem, check.fix, place.into());
    }

    /// Adds a place with a fix other than the check's.
    pub(crate) fn add_with_fix(&mut self, check: &Check, fix: &str, place: impl Into<String>) {
        self.place(check, check.problem, fix, place.into());
    }

    /// Adds a place, and inserts a name for `{}` in the check's problem.
    pub fn add_of(&mut self, check: &Check, whose: &str, place: impl Into<String>) {
        self.place(check, &check.problem.replace("{}", whose), check.fix, place.into());
    }

    /// Adds a place with a fix other than the check's, and inserts a name for `{}` in the check's problem.
    pub(crate) fn add_of_with_fix(
        &mut self,
        check: &Check,
        whose: &str,
        fix: &str,
        place: impl Into<String>,
    ) {
        self.place(check, &check.problem.replace("{}", whose), fix, place.into());
    }

    /// Adds `count` places, of which some are named, and inserts a name for `{}` in the check's problem.
    pub(crate) fn add_counted(
        &mut self,
        check: &Check,
        whose: &str,
        places: impl IntoIterator<Item = String>,
        count: usize,
    ) {
        let problem = check.problem.replace("{}", whose);
        let (kind, finding) = empty(check, &problem, check.fix);
        self.add_places(kind, finding, places, count);
    }

    fn place(&mut self, check: &Check, problem: &str, fix: &str, place: String) {
        let (mut kind, mut finding) = empty(check, problem, fix);
        if fix != check.fix && !self.found.contains_key(&kind) && self.fixes(&kind) >= FIXES {
            (kind, finding) = empty(check, problem, check.fix);
        }
        self.add_places(kind, finding, [place], 1);
    }

    /// Counts the fixes of a problem.
    fn fixes(&self, (severity, check, problem, _): &FindingKey) -> usize {
        let first = (*severity, check.clone(), problem.clone(), String::new());
        let all = self.found.range(first..);
        all.take_while(|((a, b, c, _), _)| (a, b, c) == (severity, check, problem)).count()
    }

    fn add_places(
        &mut self,
        kind: FindingKey,
        finding: Finding,
        places: impl IntoIterator<Item = String>,
        count: usize,
    ) {
        if self.found.len() >= KINDS && !self.found.contains_key(&kind) {
            return;
        }
        let finding = self.found.entry(kind).or_insert(finding);
        finding.count += count;
        for place in places {
            if finding.places.len() < NAMED {
                finding.places.push(netpold_core::printable::cut(place, PLACE_MAX));
            }
        }
    }

    /// Adds a thing that could not be checked.
    pub fn unknown(&mut self, what: impl Into<String>) {
        if self.unknown.len() < KINDS {
            self.unknown.push(netpold_core::printable::cut(what.into(), PLACE_MAX));
        }
    }

    /// Returns the report.
    #[must_use]
    pub fn report(self) -> DoctorReport {
        DoctorReport { findings: self.found.into_values().collect(), unknown: self.unknown }
    }
}

/// Creates a finding without places.
fn empty(check: &Check, problem: &str, fix: &str) -> (FindingKey, Finding) {
    let fix = netpold_core::printable::cut(fix.to_owned(), FIX_MAX);
    let kind = (check.severity, check.name.to_owned(), problem.to_owned(), fix.clone());
    let finding = Finding {
        severity: check.severity,
        check: check.name.to_owned(),
        problem: problem.to_owned(),
        places: Vec::new(),
        count: 0,
        fix,
    };
    (kind, finding)
}

/// Merges the reports of several nodes: each place, with the nodes where it occurs.
#[must_use]
pub fn merge(reports: Vec<(String, DoctorReport)>) -> DoctorReport {
    let mut all = Findings::default();
    let mut places: BTreeMap<FindingKey, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for (node, report) in reports {
        for what in report.unknown {
            all.unknown(format!("node {node}: {what}"));
        }
        for mut finding in report.findings {
            let Finding { severity, check, problem, fix, .. } = &finding;
            let kind = (*severity, check.clone(), problem.clone(), fix.clone());
            let by_place = places.entry(kind.clone()).or_default();
            for place in std::mem::take(&mut finding.places) {
                by_place.entry(place).or_default().push(node.clone());
            }
            let count = std::mem::take(&mut finding.count);
            all.add_places(kind, finding, [], count);
        }
    }
    for (kind, places) in places {
        let Some(finding) = all.found.get_mut(&kind) else { continue };
        let place = |(place, nodes): (String, Vec<String>)| {
            let more = nodes.len().saturating_sub(SHOWN);
            let nodes = nodes[..nodes.len() - more].join(", ");
            match more {
                0 => format!("{nodes}: {place}"),
                more => format!("{nodes} and {more} more nodes: {place}"),
            }
        };
        finding.places = places.into_iter().take(NAMED).map(place).collect();
    }
    all.report()
}

/// Most nodes named per place.
const SHOWN: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    const CHECK: Check = Check {
        name: "a-check",
        severity: Severity::Warning,
        problem: "{} is wrong",
        fix: "put it right",
    };

    fn report(places: &[&str]) -> DoctorReport {
        let mut findings = Findings::default();
        for place in places {
            findings.add_of(&CHECK, "something", *place);
        }
        findings.report()
    }

    #[test]
    fn places_are_bounded_and_counted() {
        let mut findings = Findings::default();
        for number in 0..100_000 {
            findings.add_of(&CHECK, "something", format!("{number}{}", "x".repeat(1000)));
            findings.unknown(number.to_string());
        }
        let report = findings.report();
        let [finding] = &report.findings[..] else { panic!("{report:?}") };
        assert_eq!((finding.count, finding.places.len()), (100_000, NAMED));
        assert!(finding.places.iter().all(|place| place.len() <= PLACE_MAX));
        assert_eq!(report.unknown.len(), KINDS);
        let mut findings = Findings::default();
        for number in 0..100_000 {
            findings.add_of(&CHECK, &number.to_string(), "");
        }
        assert_eq!(findings.report().findings.len(), KINDS);
    }

    /// Places with other fixes are other findings, up to a limit.
    #[test]
    fn each_place_has_its_own_fix() {
        let mut findings = Findings::default();
        for (place, fix) in [("a", "one"), ("b", "two"), ("c", "one")] {
            findings.add_of_with_fix(&CHECK, "it", fix, place);
        }
        let report = findings.report();
        let found = report.findings.iter().map(|it| (it.fix.as_str(), it.places.join(" ")));
        assert_eq!(found.collect::<Vec<_>>(), [("one", "a c".to_owned()), ("two", "b".to_owned())]);
        let mut findings = Findings::default();
        for number in 0..1000 {
            findings.add_of_with_fix(&CHECK, "it", &format!("fix {number}"), "a");
        }
        let report = findings.report();
        assert_eq!(report.findings.len(), FIXES + 1);
        let general = report.findings.iter().find(|it| it.fix == CHECK.fix).map(|it| it.count);
        assert_eq!(general, Some(1000 - FIXES));
    }

    #[test]
    fn nodes_with_the_same_finding_are_named_together() {
        let nodes = ["n1", "n2", "n3", "n4", "n5"];
        let mut reports: Vec<_> = nodes.map(|node| (node.to_owned(), report(&["a"]))).into();
        reports[1].1 = report(&["a", "b"]);
        reports[2].1.unknown.push("the kernel".to_owned());
        let merged = merge(reports);
        let [finding] = &merged.findings[..] else { panic!("{merged:?}") };
        assert_eq!(finding.problem, "something is wrong");
        assert_eq!(finding.places, ["n1, n2, n3 and 2 more nodes: a", "n2: b"]);
        assert_eq!(finding.count, 6);
        assert_eq!(merged.unknown, ["node n3: the kernel"]);
    }
}
