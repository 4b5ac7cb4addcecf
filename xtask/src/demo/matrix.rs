//! Connections between all pods, probed and compared with the oracle.

use std::io::IsTerminal;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use netpold_testbed::{Manifests, ProbeResult, ReachProbe, TestPod, probe_all};
use owo_colors::OwoColorize;

use super::cluster::{DemoCluster, DemoService, SERVICES};
use super::netpold::{OracleQuestion, judge};
use crate::step;

/// Long enough for a busy machine, short enough to wait for all dropped probes.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Width of the names on the left.
const LABEL: usize = 20;
/// Width of the cells of one receiver: two for each service, and a gap.
const COLUMN: usize = 13;
/// Maximum number of wrong cells that are listed.
const SPELLED_OUT: usize = 10;

/// One probe and its expected answer.
struct ProbeCell<'a> {
    from: &'a TestPod,
    to: &'a TestPod,
    service: &'static DemoService,
    address: IpAddr,
    expected: bool,
    result: ProbeResult,
}

impl ProbeCell<'_> {
    /// Whether the result is right: an answer from the right pod where allowed, no answer where not.
    fn right(&self) -> bool {
        match &self.result {
            ProbeResult::Connected(name) => {
                self.expected && (name.is_empty() || name == self.to.name())
            }
            ProbeResult::Timeout => !self.expected,
            ProbeResult::Refused | ProbeResult::Unreachable | ProbeResult::Failed(_) => false,
        }
    }
}

/// Probes all pairs, prints the matrix and returns the number of wrong answers.
pub(crate) fn show(binary: &Path, manifests: &Manifests, cluster: &DemoCluster) -> Result<usize> {
    let start = Instant::now();
    let cells = measure(binary, manifests, cluster)?;
    print(cluster, &cells);
    let wrong: Vec<&ProbeCell<'_>> = cells.iter().filter(|cell| !cell.right()).collect();
    let open = cells.iter().filter(|cell| cell.result.connected()).count();
    let outcome = match wrong.len() {
        0 => "all as the oracle says".green().to_string(),
        count => format!("{count} WRONG").red().bold().to_string(),
    };
    step::note(&format!(
        "{} probes over IPv4 and IPv6 in {:.1?}: {open} answered, {} dropped; {outcome}",
        cells.len(),
        start.elapsed(),
        cells.len() - open
    ));
    for cell in wrong.iter().take(SPELLED_OUT) {
        let expected = if cell.expected { "allows" } else { "denies" };
        let ProbeCell { from, to, service: s, address, result, .. } = cell;
        let (from, to) = (from.name(), to.name());
        step::note(&format!(
            "{from} to {to} ({address}) {s}: {result}, but the oracle {expected} it"
        ));
    }
    Ok(wrong.len())
}

fn measure<'a>(
    binary: &Path,
    manifests: &Manifests,
    cluster: &'a DemoCluster,
) -> Result<Vec<ProbeCell<'a>>> {
    let mut cells = Vec::new();
    let mut questions = Vec::new();
    for from in cluster.pods.iter().chain(&cluster.outside) {
        for to in &cluster.pods {
            for service in &SERVICES {
                for (address, source) in to.addresses().iter().zip(from.addresses()) {
                    questions.push(OracleQuestion {
                        from: source.to_string(),
                        to: address.to_string(),
                        port: service.port,
                        protocol: service.protocol.to_string(),
                    });
                    let (address, result) = (*address, ProbeResult::Timeout);
                    cells.push(ProbeCell { from, to, service, address, expected: false, result });
                }
            }
        }
    }
    let probes: Vec<ReachProbe<'_>> = cells
        .iter()
        .map(|c| ReachProbe {
            from: c.from,
            protocol: c.service.protocol,
            to: c.address,
            port: c.service.port,
        })
        .collect();
    let results = probe_all(&probes, TIMEOUT);
    let expected = judge(binary, manifests, &questions)?;
    for ((cell, result), expected) in cells.iter_mut().zip(results).zip(expected) {
        (cell.result, cell.expected) = (result, expected);
    }
    Ok(cells)
}

fn print(cluster: &DemoCluster, cells: &[ProbeCell<'_>]) {
    let fancy = fancy();
    print_legend(fancy);
    let column = |text: &str| format!("{text:COLUMN$}");
    let namespaces: String = cluster.pods.iter().map(|to| column(to.namespace())).collect();
    let names: String = cluster.pods.iter().map(|to| column(to.pod_name())).collect();
    let letters: String = SERVICES.iter().map(|s| format!("{} ", s.letter)).collect();
    let letters = column(&letters).repeat(cluster.pods.len());
    anstream::println!("{:LABEL$}{}", "", namespaces.trim_end().bold());
    anstream::println!("{:LABEL$}{}", "from \\ to", names.trim_end().bold());
    anstream::println!("{:LABEL$}{}", "", letters.trim_end().dimmed());
    for from in cluster.pods.iter().chain(&cluster.outside) {
        let mut line = format!("{:LABEL$}", from.name());
        for to in &cluster.pods {
            for service in &SERVICES {
                let here = |c: &&ProbeCell<'_>| {
                    std::ptr::eq(c.from, from)
                        && std::ptr::eq(c.to, to)
                        && std::ptr::eq(c.service, service)
                };
                line += &symbol(&cells.iter().filter(here).collect::<Vec<_>>(), fancy);
            }
            line += &" ".repeat(COLUMN - 2 * SERVICES.len());
        }
        anstream::println!("{}", line.trim_end());
    }
    anstream::println!();
}

fn print_legend(fancy: bool) {
    let services: Vec<String> =
        SERVICES.iter().map(|s| format!("{} {s} ({})", s.letter, s.what)).collect();
    let (yes, no) = if fancy { ("✓", "✗") } else { ("+", "-") };
    let symbols =
        format!("{yes} answered, {no} dropped, 4 or 6: only over that IP version, ! wrong");
    anstream::println!("\n{}\n{}\n", services.join(", ").dimmed(), symbols.dimmed());
}

/// Two columns for the results of both families.
fn symbol(cells: &[&ProbeCell<'_>], fancy: bool) -> String {
    let open: Vec<&&ProbeCell<'_>> = cells.iter().filter(|c| c.result.connected()).collect();
    let text = match (open.len(), open.first()) {
        (0, _) => {
            if fancy {
                "✗"
            } else {
                "-"
            }
        }
        (n, _) if n == cells.len() => {
            if fancy {
                "✓"
            } else {
                "+"
            }
        }
        (_, Some(cell)) if cell.address.is_ipv4() => "4",
        _ => "6",
    };
    if cells.iter().any(|c| !c.right()) {
        return format!("{}", format!("{text}!").red().bold().reversed());
    }
    match text {
        "✓" | "+" => format!("{} ", text.green()),
        "✗" | "-" => format!("{} ", text.dimmed()),
        _ => format!("{} ", text.yellow()),
    }
}

/// Whether the terminal shows symbols beyond ASCII.
fn fancy() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}
