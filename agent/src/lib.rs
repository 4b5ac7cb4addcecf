//! The binary: parses the command line, dispatches, and wires the agent's parts together for `netpold run`.

pub mod cli;
pub mod config;
mod doctor;
mod logging;
mod memory;
pub mod requirements;
pub mod run;
pub mod service_manager;
pub mod standby;
pub mod uninstall;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches};
use netpold_cli::{assertions, completion, diff, explain, live, top};

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
        Command::Doctor(args) => (netpold_cli::doctor::run(&args, doctor::examine), UNUSABLE),
        Command::Controller(args) => (control(args).map(|()| 0), FAILED),
        Command::Standby(args) => (standby::run(&args).map(|()| 0), FAILED),
        Command::Uninstall(args) => (uninstall::run(&args).map(|()| 0), FAILED),
        Command::Status(args) => (netpold_cli::status::run(&args), FAILED),
        Command::Rules(args) => (netpold_cli::rules::run(&args), FAILED),
        Command::Flows(args) => (netpold_cli::flows::client::run(&args), FAILED),
        Command::Observe(args) => (netpold_cli::observe::run(&args), FAILED),
        Command::Trace(args) => (netpold_cli::trace::run(&args), FAILED),
        Command::Top(args) => (top::run(&args).map(|()| 0), FAILED),
        Command::Learn(args) => (netpold_cli::learn::run(&args), UNUSABLE),
    };
    let status = result.unwrap_or_else(|error| {
        anstream::eprintln!("netpold: {error:#}");
        failure
    });
    ExitCode::from(status)
}
