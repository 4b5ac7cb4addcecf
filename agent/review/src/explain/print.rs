//! Answers as text, and the exit status.

use netpold_core::explain::Verdict;
use netpold_core::printable::printable;
use owo_colors::{OwoColorize, Style};

/// Exit status: allowed, or all probes answered.
pub(super) const ALLOWED: u8 = 0;
/// Exit status: denied.
pub(super) const DENIED: u8 = 1;
/// Exit status: unknown.
pub(super) const CANNOT_TELL: u8 = 2;

/// Prints an answer in the colour of its verdict.
pub(super) fn print_verdict(verdict: Verdict, lines: &[String]) {
    let style = match verdict {
        Verdict::Allow => Style::new().green().bold(),
        Verdict::Deny => Style::new().red().bold(),
        Verdict::Unknown => Style::new().yellow().bold(),
    };
    print_lines(lines, style);
}

/// Prints an answer; the first line contains the verdict.
pub(super) fn print_lines(lines: &[String], style: Style) {
    for (index, line) in lines.iter().map(|line| printable(line)).enumerate() {
        match line.split_once(':') {
            Some((verdict, probe)) if index == 0 => {
                anstream::println!("{}:{probe}", verdict.style(style));
            }
            Some((direction, text)) if !line.starts_with(' ') => {
                anstream::println!("{}:{text}", direction.bold());
            }
            _ => anstream::println!("{line}"),
        }
    }
}
