//! Outcomes as text, as TAP, as `JUnit` XML and as JSON.
//!
//! TAP is version 14, with a YAML block for each failure. The XML is the part of `JUnit` that CI servers read: a suite,
//! its cases, and a failure with text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::Result;
use netpold_client::printable_document::printable_json;
use netpold_core::printable::printable;
use owo_colors::OwoColorize;
use serde_json::{Value, json};

use super::args::TestOutput;
use super::assertion::{Assertion, SideSelection};
use super::outcome::{AssertionOutcome, NAMED, Verified};
use super::probe_results::ProbeResults;
use netpold_core::first_names::first_names;

/// Notes on the whole answer.
pub(super) struct AnswerNotes {
    /// Policies of other APIs.
    pub(super) not_enforced: Option<String>,
    /// Documents of assertions that cannot be read, as `file:line: reason`.
    pub(super) unread: Vec<String>,
}

/// Renders the outcomes; text for people is coloured. `file` is the name of the suite.
pub(super) fn render(
    outcomes: &[AssertionOutcome],
    AnswerNotes { not_enforced, unread }: &AnswerNotes,
    output: TestOutput,
    file: &str,
) -> Result<String> {
    let notes: Vec<String> = templates(outcomes)
        .into_iter()
        .chain(left_out(outcomes))
        .chain(not_enforced.iter().map(|note| printable(note).into_owned()))
        .chain(unread.iter().map(|document| {
            printable(&format!("assertions that cannot be read: {document}")).into_owned()
        }))
        .collect();
    Ok(match output {
        TestOutput::Text => text(outcomes, &notes),
        TestOutput::Tap => tap(outcomes, &notes),
        TestOutput::Junit => junit(outcomes, &notes, file),
        TestOutput::Json => {
            let mut document = document(outcomes);
            document["not_enforced"] = json!(not_enforced);
            document["unread"] = json!(unread);
            printable_json(&mut document);
            format!("{}\n", serde_json::to_string_pretty(&document)?)
        }
    })
}

/// Counts the outcomes by result: passed, failed, depending on the address, unknown, skipped.
fn counts(outcomes: &[AssertionOutcome]) -> [usize; 5] {
    [Verified::Pass, Verified::Fail, Verified::Depends, Verified::Unknown, Verified::Skipped]
        .map(|result| outcomes.iter().filter(|outcome| outcome.result() == result).count())
}

/// Describes the part of an assertion that fails.
fn extent(outcome: &AssertionOutcome) -> String {
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
    let depends = if is_by_name(outcome) { "it depends on the address" } else { "cannot tell" };
    let depends = match (outcome.depending, outcome.asked) {
        (0, _) => None,
        (_, 1) => Some(depends.to_owned()),
        (some, asked) => Some(format!("{depends} for {some} of {asked} pairs")),
    };
    let unknown = match outcome.result() {
        Verified::Unknown => outcome.unknown.clone(),
        Verified::Skipped => outcome.skipped.clone(),
        Verified::Pass | Verified::Fail | Verified::Depends => None,
    };
    let all = judged.into_iter().chain(depends).chain(probed).chain(unknown);
    printable(&all.collect::<Vec<_>>().join(", ")).into_owned()
}

/// Returns whether the receivers are the addresses of a domain name.
fn is_by_name(outcome: &AssertionOutcome) -> bool {
    matches!(outcome.assertion.to, SideSelection::Name { .. })
}

/// Describes the results of opened connections.
fn probed(outcome: &AssertionOutcome) -> Option<String> {
    outcome.probed.as_ref().map(|probed| printable(&probed.to_string()).into_owned())
}

/// Returns the shown failures, one line each, and the number of the others.
fn reasons(outcome: &AssertionOutcome) -> Vec<String> {
    let told = outcome.failures.iter().flatten();
    let mut lines: Vec<String> = told.map(|line| printable(line).into_owned()).collect();
    let more = outcome.failed - outcome.failures.len();
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines.extend(outcome.depends.iter().map(|line| printable(line).into_owned()));
    match outcome.depending - outcome.depends.len() {
        0 => {}
        more if is_by_name(outcome) => lines.push(format!("and {more} more depend on the address")),
        more => lines.push(format!("and {more} more")),
    }
    if let Some(probed) = &outcome.probed {
        lines.extend(probed.failures.iter().map(|failure| printable(failure).into_owned()));
        match probed.wrong - probed.failures.len() {
            0 => {}
            more => lines.push(format!("and {more} more connections")),
        }
    }
    if let (Verified::Fail, Some(unknown)) = (outcome.result(), &outcome.unknown) {
        lines.push(format!("unknown: {}", printable(unknown)));
    }
    lines
}

/// Describes the pods that selections leave out, by reason.
fn left_out(outcomes: &[AssertionOutcome]) -> Vec<String> {
    let mut all: BTreeMap<&str, BTreeSet<&String>> = BTreeMap::new();
    for (reason, pods) in outcomes.iter().flat_map(|outcome| &outcome.left_out) {
        all.entry(reason).or_default().extend(pods);
    }
    let line = |(reason, pods): (&str, BTreeSet<&String>)| {
        let named = first_names(pods.iter(), NAMED);
        let text = format!("left out of selections, {reason}: {named}");
        printable(&text).into_owned()
    };
    all.into_iter().map(line).collect()
}

/// Describes the judged pod templates.
fn templates(outcomes: &[AssertionOutcome]) -> Option<String> {
    let all: BTreeSet<&String> = outcomes.iter().flat_map(|outcome| &outcome.templates).collect();
    let names: Vec<&str> = all.into_iter().map(String::as_str).collect();
    let text = format!("by pod template, no pods exist: {}", names.join(", "));
    (!names.is_empty()).then(|| printable(&text).into_owned())
}

fn title(assertion: &Assertion) -> String {
    printable(&assertion.title()).into_owned()
}

fn text(outcomes: &[AssertionOutcome], notes: &[String]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let title = title(&outcome.assertion);
        let word = match outcome.result() {
            Verified::Pass => None,
            Verified::Fail => Some("FAIL".red().bold().to_string()),
            Verified::Depends => Some("DEPENDS".yellow().bold().to_string()),
            Verified::Unknown => Some("UNKNOWN".yellow().bold().to_string()),
            Verified::Skipped => Some("skip".yellow().to_string()),
        };
        if let Some(word) = word {
            let (place, extent) = (&outcome.assertion.place, extent(outcome));
            let _ = writeln!(text, "{word} {title}: {extent} ({})", printable(place));
            for line in reasons(outcome) {
                let _ = writeln!(text, "     {line}");
            }
        } else {
            let _ = writeln!(text, "{} {title}", "pass".green());
        }
        if let Some(probed) = probed(outcome) {
            let _ = writeln!(text, "     {probed}");
        }
    }
    let [passed, failed, depending, unknown, skipped] = counts(outcomes);
    let _ = write!(text, "{passed} passed, {failed} failed");
    if depending > 0 {
        let verb = if depending == 1 { "depends" } else { "depend" };
        let mut all = outcomes.iter().filter(|it| it.result() == Verified::Depends);
        let rest = if all.all(is_by_name) { " on the address" } else { "" };
        let _ = write!(text, ", {depending} {verb}{rest}");
    }
    if unknown > 0 {
        let _ = write!(text, ", {unknown} unknown");
    }
    if skipped > 0 {
        let _ = write!(text, ", {skipped} skipped");
    }
    let all: Vec<&ProbeResults> = outcomes.iter().filter_map(|it| it.probed.as_ref()).collect();
    if !all.is_empty() {
        let tried: usize = all.iter().map(|probed| probed.count()).sum();
        let left_out: usize = all.iter().map(|probed| probed.left_out()).sum();
        let _ = write!(text, "; connections: {tried} probed, {left_out} not");
    }
    text.push('\n');
    for note in notes {
        let _ = writeln!(text, "{note}");
    }
    text
}

fn tap(outcomes: &[AssertionOutcome], notes: &[String]) -> String {
    let mut text = format!("TAP version 14\n1..{}\n", outcomes.len());
    for (index, outcome) in outcomes.iter().enumerate() {
        // TAP reads a `#` as the start of a directive.
        let title = title(&outcome.assertion).replace('\\', "\\\\").replace('#', "\\#");
        let skip = match outcome.result() {
            Verified::Skipped => format!(" # SKIP {}", extent(outcome)),
            Verified::Pass | Verified::Fail | Verified::Depends | Verified::Unknown => {
                String::new()
            }
        };
        let holds = matches!(outcome.result(), Verified::Pass | Verified::Skipped);
        let word = if holds { "ok" } else { "not ok" };
        let _ = writeln!(text, "{word} {} - {title}{skip}", index + 1);
        if !holds {
            let [at, message] = [&outcome.assertion.place, &extent(outcome)]
                .map(|text| Value::from(printable(text).as_ref()));
            let reasons = reasons(outcome);
            let _ = writeln!(text, "  ---\n  at: {at}\n  message: {message}");
            if !reasons.is_empty() {
                text.push_str("  data: |\n");
            }
            for line in reasons {
                let _ = writeln!(text, "    {line}");
            }
            text.push_str("  ...\n");
        }
        if let Some(probed) = probed(outcome) {
            let _ = writeln!(text, "# {probed}");
        }
    }
    for note in notes {
        let _ = writeln!(text, "# {note}");
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

fn junit(outcomes: &[AssertionOutcome], notes: &[String], file: &str) -> String {
    let [_, failures, depending, unknown, skipped] = counts(outcomes);
    let (tests, errors) = (outcomes.len(), depending + unknown);
    let file = xml(&printable(file));
    let mut counts = format!("tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\"");
    if skipped > 0 {
        let _ = write!(counts, " skipped=\"{skipped}\"");
    }
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {counts}>\n  <testsuite name=\"{file}\" {counts}>\n"
    );
    for outcome in outcomes {
        let (name, place) = (xml(&title(&outcome.assertion)), &outcome.assertion.place);
        let case =
            format!("    <testcase classname=\"{}\" name=\"{name}\"", xml(&printable(place)));
        let probed = probed(outcome);
        let element = match outcome.result() {
            Verified::Pass => None,
            Verified::Fail => Some("failure"),
            // No result: the policies do not determine one.
            Verified::Depends | Verified::Unknown => Some("error"),
            Verified::Skipped => Some("skipped"),
        };
        if element.is_none() && probed.is_none() {
            let _ = writeln!(text, "{case}/>");
            continue;
        }
        let _ = writeln!(text, "{case}>");
        if let Some(element) = element {
            let (extent, reasons) = (xml(&extent(outcome)), xml(&reasons(outcome).join("\n")));
            let _ = writeln!(text, "      <{element} message=\"{extent}\">{reasons}</{element}>");
        }
        if let Some(probed) = probed {
            let _ = writeln!(text, "      <system-out>{}</system-out>", xml(&probed));
        }
        text.push_str("    </testcase>\n");
    }
    if !notes.is_empty() {
        let _ = writeln!(text, "    <system-out>{}</system-out>", xml(&notes.join("\n")));
    }
    text.push_str("  </testsuite>\n</testsuites>\n");
    text
}

fn document(outcomes: &[AssertionOutcome]) -> Value {
    let result = |outcome: &AssertionOutcome| match outcome.result() {
        Verified::Pass => "pass",
        Verified::Fail => "fail",
        Verified::Depends => "depends",
        Verified::Unknown => "unknown",
        Verified::Skipped => "skipped",
    };
    let assertions: Vec<Value> = outcomes
        .iter()
        .map(|outcome| {
            let Assertion { place, from, to, protocol, port, allow, .. } = &outcome.assertion;
            let mut item = json!({
                "name": outcome.assertion.title(),
                "place": place,
                "from": from.to_string(),
                "to": to.to_string(),
                "protocol": protocol,
                "expect": if *allow { "allow" } else { "deny" },
                "result": result(outcome),
                "pairs": outcome.asked,
                "failed": outcome.failed,
                "failures": outcome.failures.iter().map(|lines| lines.join("\n")).collect::<Vec<_>>(),
                "depending": outcome.depending,
                "depends": outcome.depends,
                "templates": outcome.templates,
                "left_out": outcome.left_out,
            });
            if let Some(reason) = outcome.unknown.as_ref().or(outcome.skipped.as_ref()) {
                item["reason"] = json!(reason);
            }
            if protocol.has_ports() {
                item["port"] = json!(port);
            }
            if let Some(probed) = &outcome.probed {
                item["probed"] = json!({
                    "count": probed.count(),
                    "wrong": probed.wrong,
                    "failures": probed.failures,
                });
            }
            item
        })
        .collect();
    let [passed, failed, depending, unknown, skipped] = counts(outcomes);
    json!({
        "passed": passed,
        "failed": failed,
        "depending": depending,
        "unknown": unknown,
        "skipped": skipped,
        "assertions": assertions,
    })
}
