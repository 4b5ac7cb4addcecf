//! Kubernetes NetworkPolicy enforced in eBPF at every pod's veth: the agent's parts.

pub mod admin;
pub mod arguments;
pub mod assertions;
pub mod cli;
pub mod completion;
pub mod config;
pub mod diff;
pub mod doctor;
pub mod engine;
pub mod events;
pub mod explain;
pub mod flows;
pub mod kept;
pub mod learn;
pub mod live;
mod logging;
mod memory;
pub mod metrics;
pub mod observe;
pub mod offline;
pub mod output;
mod printable_document;
pub mod probe;
pub mod publish;
pub mod requirements;
pub mod rule_use;
pub mod run;
pub mod service_manager;
pub mod socket;
pub mod standby;
pub mod status;
pub mod top;
pub mod trace;
pub mod uninstall;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches};

use crate::cli::{Cli, Command, ControllerArgs};
use crate::config::RunConfig;
use crate::logging::{log_filter, start_log};

/// Exit status of a failed command.
const FAILED: u8 = 1;
/// Exit status of invalid arguments, and of a failed `explain`, `diff`, `test`, `doctor` or `learn`.
const UNUSABLE: u8 = 2;

/// Parses the command line. kubectl runs a binary called `kubectl-netpold` as `kubectl netpold`.
fn parse() -> Cli {
    let mut command = Cli::command();
    if live::is_plugin() {
        command = command.bin_name("kubectl netpold");
    }
    Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
}

/// Runs the controller.
fn control(args: ControllerArgs) -> Result<()> {
    start_log(args.log_format, log_filter(&args.log)?)?;
    netpold_controller::run(args.into())
}

/// Runs the process, for each binary of this package.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(answered) = completion::answer(Cli::command) {
        return if answered.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) };
    }
    let (result, failure) = match parse().command {
        Command::Run(args) => match RunConfig::try_from(args) {
            Ok(config) => (run::run(config).map(|()| 0), FAILED),
            Err(error) => (Err(error), UNUSABLE),
        },
        Command::Explain(args) => (explain::run(&args), UNUSABLE),
        Command::Diff(args) => (diff::run(&args), UNUSABLE),
        Command::Test(args) => (assertions::run(&args), UNUSABLE),
        Command::Completion(args) => (completion::run(&args).map(|()| 0), FAILED),
        Command::Doctor(args) => (doctor::run(&args), UNUSABLE),
        Command::Controller(args) => (control(args).map(|()| 0), FAILED),
        Command::Standby(args) => (standby::run(&args).map(|()| 0), FAILED),
        Command::Uninstall(args) => (uninstall::run(&args).map(|()| 0), FAILED),
        Command::Status(args) => (admin::client::run(&args), FAILED),
        Command::Rules(args) => (admin::client::rules(&args), FAILED),
        Command::Flows(args) => (flows::client::run(&args), FAILED),
        Command::Observe(args) => (observe::run(&args), FAILED),
        Command::Trace(args) => (trace::run(&args), FAILED),
        Command::Top(args) => (top::run(&args).map(|()| 0), FAILED),
        Command::Learn(args) => (learn::run(&args), UNUSABLE),
    };
    let status = result.unwrap_or_else(|error| {
        anstream::eprintln!("netpold: {error:#}");
        failure
    });
    ExitCode::from(status)
}
