//! Outcomes for people, as TAP, and as `JUnit`'s XML.
//!
//! TAP is version 14, with a YAML block for what failed. The XML is what CI servers read of `JUnit`: a suite,
//! its cases, and a failure with text.

use std::fmt::Write as _;

use owo_colors::OwoColorize;

use super::{Assertion, Outcome};
use crate::cli::TestOutput;
use crate::printable::printable;

/// The text to print, coloured where it is for people.
pub(super) fn render(outcomes: &[Outcome], output: TestOutput, file: &str) -> String {
    match output {
        TestOutput::Text => text(outcomes),
        TestOutput::Tap => tap(outcomes),
        TestOutput::Junit => junit(outcomes, file),
    }
}

fn failed(outcomes: &[Outcome]) -> usize {
    outcomes.iter().filter(|outcome| outcome.failed > 0).count()
}

/// How much of an assertion does not hold.
fn extent(outcome: &Outcome) -> String {
    let expected = if outcome.assertion.allow { "denied" } else { "allowed" };
    match outcome.asked {
        1 => format!("it is {expected}"),
        asked => format!("it is {expected} for {} of {asked} pairs", outcome.failed),
    }
}

/// The failures that are told, a line each, and how many are not.
fn reasons(outcome: &Outcome) -> Vec<String> {
    let told = outcome.failures.iter().flat_map(|failure| failure.lines());
    let mut lines: Vec<String> = told.map(|line| printable(line).into_owned()).collect();
    let more = outcome.failed - outcome.failures.len();
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

fn title(assertion: &Assertion) -> String {
    printable(&assertion.title()).into_owned()
}

fn text(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let title = title(&outcome.assertion);
        if outcome.failed == 0 {
            let _ = writeln!(text, "{} {title}", "pass".green());
            continue;
        }
        let (place, extent) = (&outcome.assertion.place, extent(outcome));
        let _ = writeln!(text, "{} {title}: {extent} ({})", "FAIL".red().bold(), printable(place));
        for line in reasons(outcome) {
            let _ = writeln!(text, "     {line}");
        }
    }
    let failed = failed(outcomes);
    let _ = writeln!(text, "{} passed, {failed} failed", outcomes.len() - failed);
    text
}

fn tap(outcomes: &[Outcome]) -> String {
    let mut text = format!("TAP version 14\n1..{}\n", outcomes.len());
    for (index, outcome) in outcomes.iter().enumerate() {
        // A `#` begins a directive.
        let title = title(&outcome.assertion).replace('\\', "\\\\").replace('#', "\\#");
        let word = if outcome.failed == 0 { "ok" } else { "not ok" };
        let _ = writeln!(text, "{word} {} - {title}", index + 1);
        if outcome.failed > 0 {
            let at = serde_json::Value::from(outcome.assertion.place.as_str());
            let _ =
                writeln!(text, "  ---\n  at: {at}\n  message: \"{}\"\n  data: |", extent(outcome));
            for line in reasons(outcome) {
                let _ = writeln!(text, "    {line}");
            }
            text.push_str("  ...\n");
        }
    }
    text
}

/// Text in XML, in an attribute or between tags. What XML cannot hold is [`printable`]'s to write out.
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
        if outcome.failed == 0 {
            let _ = writeln!(text, "{case}/>");
            continue;
        }
        let (extent, reasons) = (xml(&extent(outcome)), xml(&reasons(outcome).join("\n")));
        let _ = writeln!(
            text,
            "{case}>\n      <failure message=\"{extent}\">{reasons}</failure>\n    </testcase>"
        );
    }
    text.push_str("  </testsuite>\n</testsuites>\n");
    text
}
