//! `kubectl netpold`: the commands that ask, for people at desks. It knows nothing of eBPF, and needs no root.

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use netpold_cli::{Command, completion, exit_code, parse};
use netpold_doctor::{DoctorArgs, DoctorReport};

#[derive(Debug, Parser)]
#[command(name = "netpold", bin_name = "kubectl netpold", version, max_term_width = 100)]
#[command(about = "Explain, compare and diagnose NetworkPolicy")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    if let Some(answered) = completion::answer_completion(Cli::command) {
        return answered;
    }
    exit_code(parse::<Cli>(Cli::command()).command.run(no_node))
}

/// The report of `doctor --local`.
fn no_node(_: &DoctorArgs) -> DoctorReport {
    let reason = "this binary has no checks of a node: run netpold there, or leave out --local";
    DoctorReport { unknown: vec![reason.to_owned()], ..DoctorReport::default() }
}
