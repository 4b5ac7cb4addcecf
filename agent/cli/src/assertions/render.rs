//! Outcomes as text, as TAP, and as `JUnit` XML.
//!
//! TAP is version 14, with a YAML block for each failure. The XML is the part of `JUnit` that CI servers read: a suite,
//! its cases, and a failure with text.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use netpold_core::printable::printable;
use owo_colors::OwoColorize;

use super::{Assertion, Outcome, Probed, TestOutput};

/// Renders the outcomes; text for people is coloured.
pub(super) fn render(outcomes: &[Outcome], output: TestOutput, file: &str) -> String {
    match output {
        TestOutput::Text => text(outcomes),
        TestOutput::Tap => tap(outcomes),
        TestOutput::Junit => junit(outcomes, file),
    }
}

fn failed(outcomes: &[Outcome]) -> usize {
    outcomes.iter().filter(|outcome| !outcome.holds()).count()
}

/// Describes the part of an assertion that fails.
fn extent(outcome: &Outcome) -> String {
    let expected = if outcome.assertion.allow { "denied" } else { "allowed" };
    let judged = match (outcome.failed, outcome.asked) {
        (0, _) => None,
        (_, 1) => Some(format!("it is {expected}")),
        (failed, asked) => Some(format!("it is {expected} for {failed} of {asked} pairs")),
    };
    let reached = if outcome.assertion.allow { "do not pass" } else { "pass" };
    let probed = outcome.probed.as_ref().filter(|probed| probed.wrong > 0).map(|probed| {
        format!("{} of {} probed connections {reached}", probed.wrong, probed.count())
    });
    judged.into_iter().chain(probed).collect::<Vec<_>>().join(", ")
}

/// Describes the results of opened connections.
fn probed(outcome: &Outcome) -> Option<String> {
    outcome.probed.as_ref().map(|probed| printable(&probed.to_string()).into_owned())
}

/// Returns the shown failures, one line each, and the number of the others.
fn reasons(outcome: &Outcome) -> Vec<String> {
    let told = outcome.failures.iter().flat_map(|failure| failure.lines());
    let mut lines: Vec<String> = told.map(|line| printable(line).into_owned()).collect();
    let more = outcome.failed - outcome.failures.len();
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    if let Some(probed) = &outcome.probed {
        lines.extend(probed.failures.iter().map(|failure| printable(failure).into_owned()));
        match probed.wrong - probed.failures.len() {
            0 => {}
            more => lines.push(format!("and {more} more connections")),
        }
    }
    lines
}

/// Describes the judged pod templates.
fn templates(outcomes: &[Outcome]) -> Option<String> {
    let all: BTreeSet<&String> = outcomes.iter().flat_map(|outcome| &outcome.templates).collect();
    let names: Vec<&str> = all.into_iter().map(String::as_str).collect();
    let text = format!("by pod template, no pods exist: {}", names.join(", "));
    (!names.is_empty()).then(|| printable(&text).into_owned())
}

fn title(assertion: &Assertion) -> String {
    printable(&assertion.title()).into_owned()
}

fn text(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let title = title(&outcome.assertion);
        if outcome.holds() {
            let _ = writeln!(text, "{} {title}", "pass".green());
        } else {
            let (place, extent) = (&outcome.assertion.place, extent(outcome));
            let _ =
                writeln!(text, "{} {title}: {extent} ({})", "FAIL".red().bold(), printable(place));
            for line in reasons(outcome) {
                let _ = writeln!(text, "     {line}");
            }
        }
        if let Some(probed) = probed(outcome) {
            let _ = writeln!(text, "     {probed}");
        }
    }
    let failed = failed(outcomes);
    let _ = write!(text, "{} passed, {failed} failed", outcomes.len() - failed);
    let all: Vec<&Probed> = outcomes.iter().filter_map(|it| it.probed.as_ref()).collect();
    if !all.is_empty() {
        let tried: usize = all.iter().map(|probed| probed.count()).sum();
        let left_out: usize = all.iter().map(|probed| probed.left_out()).sum();
        let _ = write!(text, "; connections: {tried} probed, {left_out} not");
    }
    text.push('\n');
    if let Some(templates) = templates(outcomes) {
        let _ = writeln!(text, "{templates}");
    }
    text
}

fn tap(outcomes: &[Outcome]) -> String {
    let mut text = format!("TAP version 14\n1..{}\n", outcomes.len());
    for (index, outcome) in outcomes.iter().enumerate() {
        // TAP reads a `#` as the start of a directive.
        let title = title(&outcome.assertion).replace('\\', "\\\\").replace('#', "\\#");
        let word = if outcome.holds() { "ok" } else { "not ok" };
        let _ = writeln!(text, "{word} {} - {title}", index + 1);
        if !outcome.holds() {
            let at = serde_json::Value::from(outcome.assertion.place.as_str());
            let _ =
                writeln!(text, "  ---\n  at: {at}\n  message: \"{}\"\n  data: |", extent(outcome));
            for line in reasons(outcome) {
                let _ = writeln!(text, "    {line}");
            }
            text.push_str("  ...\n");
        }
        if let Some(probed) = probed(outcome) {
            let _ = writeln!(text, "# {probed}");
        }
    }
    if let Some(templates) = templates(outcomes) {
        let _ = writeln!(text, "# {templates}");
    }
    text
}

/// Escapes text for an XML attribute or element. [`printable`] must have replaced characters that XML does not allow.
fn xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

fn junit(outcomes: &[Outcome], file: &str) -> String {
    let (tests, failures) = (outcomes.len(), failed(outcomes));
    let file = xml(&printable(file));
    let counts = format!("tests=\"{tests}\" failures=\"{failures}\" errors=\"0\"");
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {counts}>\n  <testsuite name=\"{file}\" {counts}>\n"
    );
    for outcome in outcomes {
        let (name, place) = (xml(&title(&outcome.assertion)), &outcome.assertion.place);
        let case =
            format!("    <testcase classname=\"{}\" name=\"{name}\"", xml(&printable(place)));
        let probed = probed(outcome);
        if outcome.holds() && probed.is_none() {
            let _ = writeln!(text, "{case}/>");
            continue;
        }
        let _ = writeln!(text, "{case}>");
        if !outcome.holds() {
            let (extent, reasons) = (xml(&extent(outcome)), xml(&reasons(outcome).join("\n")));
            let _ = writeln!(text, "      <failure message=\"{extent}\">{reasons}</failure>");
        }
        if let Some(probed) = probed {
            let _ = writeln!(text, "      <system-out>{}</system-out>", xml(&probed));
        }
        text.push_str("    </testcase>\n");
    }
    if let Some(templates) = templates(outcomes) {
        let _ = writeln!(text, "    <system-out>{}</system-out>", xml(&templates));
    }
    text.push_str("  </testsuite>\n</testsuites>\n");
    text
}
