//! `netpold explain --socket`: verdicts of the node's objects, tables and programs.

use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use netpold_api::probe::{EXPLAIN_REQUEST, NodeAnswer, SourceVerdict};
use netpold_api::socket::DEFAULT_SOCKET;
use netpold_client::output::{Output, is_reader_open};
use netpold_client::printable_document::printable_json;
use netpold_client::socket;
use netpold_core::printable::printable;
use owo_colors::{OwoColorize as _, Style};
use serde_json::json;

use super::args::{ExplainArgs, probe};
use super::print::{ALLOWED, CANNOT_TELL, DENIED, print_lines};

/// Returns the socket of the agent to ask, if neither manifests nor a cluster are selected.
pub(super) fn socket(args: &ExplainArgs) -> Option<&Path> {
    if args.manifests.is_some() || args.cluster.is_requested() {
        return None;
    }
    let local = args.cluster.local.then(|| Path::new(DEFAULT_SOCKET));
    args.socket.as_deref().or(local)
}

/// Asks the agent and prints its answer. Returns the exit status.
pub(super) fn run(args: &ExplainArgs, path: &Path) -> Result<u8> {
    if args.probes.is_some() {
        bail!("--probes are answered from --manifests");
    }
    let answer = socket::request(path, EXPLAIN_REQUEST, &probe(args)?);
    let answer: NodeAnswer = answer.context("cannot tell")?;
    match args.output {
        Output::Text => print_answer(&answer),
        Output::Json => {
            let mut document = serde_json::to_value(&answer)?;
            document["differs"] = json!(answer.differences().next().is_some());
            printable_json(&mut document);
            is_reader_open(writeln!(io::stdout(), "{document:#}"))?;
        }
    }
    if let Some(reason) = &answer.reason {
        anstream::eprintln!("netpold: cannot tell: {}", printable(reason));
    }
    if args.cluster.local {
        // The caller on the other side of `exec` reads the verdict from the document.
        return Ok(ALLOWED);
    }
    Ok(match answer.verdict {
        _ if answer.differences().next().is_some() => CANNOT_TELL,
        SourceVerdict::Allow => ALLOWED,
        SourceVerdict::Deny => DENIED,
        SourceVerdict::Unknown => CANNOT_TELL,
    })
}

fn print_answer(answer: &NodeAnswer) {
    print_differences(answer);
    let style = match answer.verdict {
        SourceVerdict::Allow => Style::new().green().bold(),
        SourceVerdict::Deny => Style::new().red().bold(),
        SourceVerdict::Unknown => Style::new().yellow().bold(),
    };
    print_lines(&answer.lines, style);
    if answer.ends.is_empty() {
        let node = printable(&answer.node);
        anstream::println!("neither end is a pod of node {node}: query the pods' nodes");
    }
    print_others(answer);
}

/// Prints the ends at which two sources disagree.
pub(super) fn print_differences(answer: &NodeAnswer) {
    for end in answer.differences() {
        print_difference(&end.line());
        if !answer.in_force {
            anstream::println!("  an update is being written: try again");
        }
    }
}

pub(super) fn print_difference(line: &str) {
    anstream::println!("{} {}", "DIFFERENT:".red().bold(), printable(line));
}

/// Prints the ends at which all sources agree.
pub(super) fn print_others(answer: &NodeAnswer) {
    let node = printable(&answer.node);
    for end in answer.ends.iter().filter(|end| !end.differs()) {
        let line = end.line();
        anstream::println!("node {node}: {}", printable(&line));
    }
    if answer.left_out > 0 {
        anstream::println!("node {node}: {} further backends not evaluated", answer.left_out);
    }
}
