//! Text output of a [`DoctorReport`].

use std::fmt::Write as _;

use netpold_core::printable::printable;
use owo_colors::{OwoColorize, Style};

use crate::finding::{DoctorReport, Finding, Severity};

/// Most places shown per finding.
const SHOWN: usize = 10;

/// Renders the report as coloured text; the caller strips colours if necessary.
#[must_use]
pub fn text(report: &DoctorReport) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        show(&mut text, finding);
    }
    if !report.unknown.is_empty() {
        line(&mut text, format_args!("{}", "could not be checked".bold()));
        for what in &report.unknown {
            line(&mut text, format_args!("  {}", printable(what)));
        }
        text.push('\n');
    }
    line(&mut text, format_args!("{}", summary(report)));
    text
}

fn show(text: &mut String, finding: &Finding) {
    let Finding { severity, check, problem, places, count, fix } = finding;
    let style = match severity {
        Severity::Error => Style::new().red().bold(),
        Severity::Warning => Style::new().yellow().bold(),
        Severity::Info => Style::new().bold(),
    };
    let (problem, check) = (printable(problem), printable(check));
    line(text, format_args!("{}: {problem} [{check}]", severity.style(style)));
    let shown = places.len().min(SHOWN);
    for place in &places[..shown] {
        line(text, format_args!("  {}", printable(place)));
    }
    match count.saturating_sub(shown) {
        0 => {}
        more => line(text, format_args!("  and {more} more")),
    }
    line(text, format_args!("  fix: {}\n", printable(fix)));
}

fn summary(report: &DoctorReport) -> String {
    let of = |severity| report.findings.iter().filter(move |f| f.severity == severity).count();
    let counted = |count: usize, one: &str, many: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        many_of => Some(format!("{many_of} {many}")),
    };
    let counts = [
        counted(of(Severity::Error), "error", "errors"),
        counted(of(Severity::Warning), "warning", "warnings"),
        counted(of(Severity::Info), "piece of information", "pieces of information"),
        counted(report.unknown.len(), "item not checked", "items not checked"),
    ];
    let counts: Vec<String> = counts.into_iter().flatten().collect();
    if counts.is_empty() { "nothing found".to_owned() } else { counts.join(", ") }
}

fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    let _ = writeln!(text, "{what}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_forge_no_lines() {
        let forged = "x\nerror: all is lost\x1b[2J\u{202e}";
        let finding = Finding {
            severity: Severity::Info,
            check: forged.to_owned(),
            problem: forged.to_owned(),
            places: vec![forged.to_owned(); 30],
            count: 40,
            fix: forged.to_owned(),
        };
        let report = DoctorReport { findings: vec![finding], unknown: vec![forged.to_owned()] };
        let shown = anstream::adapter::strip_str(&text(&report)).to_string();
        assert!(!shown.lines().any(|line| line.starts_with("error")), "{shown}");
        assert!(shown.contains("  and 30 more\n"), "{shown}");
        assert!(shown.ends_with("\n1 piece of information, 1 item not checked\n"), "{shown}");
        assert_eq!(shown.lines().count(), 1 + SHOWN + 2 + 1 + 2 + 1 + 1, "{shown}");
        assert_eq!(text(&DoctorReport::default()), "nothing found\n");
    }
}
