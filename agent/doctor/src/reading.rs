//! Findings of the reader of manifests: objects that count as absent, objects defined twice, and fields without effect.

use std::collections::BTreeSet;
use std::path::Path;

use netpold_api::source::SourceProblem;
use netpold_client::offline::{self, Reviewed};
use netpold_kube::manifests::is_repetition;

use crate::finding::{Check, DoctorReport, Findings, Severity};

const ABSENT: Check = Check {
    name: "object-not-read",
    severity: Severity::Error,
    problem: "an object cannot be decoded: it counts as absent, a pod template as without labels and ports; API servers \
              refuse it",
    fix: "correct the field that the message names",
};
const UNREAD: Check = Check {
    name: "document-not-read",
    severity: Severity::Error,
    problem: "a document or a file cannot be read: its objects were not checked, and count as absent for the other checks",
    fix: "correct it; until then, explain and test cannot tell what it may decide, and diff is incomplete",
};
const TWICE: Check = Check {
    name: "defined-twice",
    severity: Severity::Warning,
    problem: "an object is defined twice: the later definition replaces the earlier one",
    fix: "delete one, or give it another name or namespace",
};
const PART: Check = Check {
    name: "field-not-understood",
    severity: Severity::Warning,
    problem: "a field of an object is unknown or has an invalid value: it has no effect",
    fix: "correct the field; `kubectl explain KIND` lists the fields of a kind",
};

/// Adds the reader's problems to a report, except those of policies that the report contains, and the subdirectories that
/// were not read.
pub(crate) fn add(report: DoctorReport, directory: &Path, reviewed: Reviewed) -> DoctorReport {
    let Reviewed { problems, undecoded, unread, subdirectories, .. } = reviewed;
    let unread: BTreeSet<&SourceProblem> = unread.iter().collect();
    let undecoded: BTreeSet<&SourceProblem> = undecoded.iter().map(|it| &it.problem).collect();
    let mut found = Findings::default();
    for problem in &problems {
        let is_reported = |place: &String| place.starts_with(&problem.text);
        if report.findings.iter().any(|finding| finding.places.iter().any(is_reported)) {
            continue;
        }
        let check = match problem {
            _ if undecoded.contains(problem) => &ABSENT,
            _ if unread.contains(problem) => &UNREAD,
            _ if is_repetition(problem) => &TWICE,
            _ => &PART,
        };
        found.add(check, place(directory, problem));
    }
    if let Some(text) = subdirectories {
        found.unknown(text);
    }
    report.and(found.report())
}

/// Formats `TEXT (FILE:LINE)`, as the places of other checks.
fn place(directory: &Path, problem: &SourceProblem) -> String {
    let SourceProblem { file, line, text } = problem;
    let file = offline::name_within(directory, Path::new(file));
    match (&*file, line) {
        ("", _) => text.clone(),
        (file, 0) => format!("{text} ({file})"),
        (file, line) => format!("{text} ({file}:{line})"),
    }
}
