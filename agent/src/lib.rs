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
use clap::CommandFactory;
use netpold_cli::{FAILED, UNUSABLE, completion, exit_code};
use netpold_client::live;

use crate::cli::{Cli, Command, ControllerArgs};
use crate::config::RunConfig;
use crate::logging::{log_filter, start_log};

/// Parses the command line. kubectl runs a binary called `kubectl-netpold` as `kubectl netpold`.
fn parse() -> Cli {
    let mut command = Cli::command();
    if live::is_plugin() {
        command = command.bin_name("kubectl netpold");
    }
    netpold_cli::parse(command)
}

/// Runs the controller.
fn control(args: ControllerArgs) -> Result<()> {
    start_log(args.log_format, log_filter(&args.log)?)?;
    netpold_controller::run(args.into())
}

/// Runs the process, for each binary of this package.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(answered) = completion::answer_completion(Cli::command) {
        return answered;
    }
    exit_code(match parse().command {
        Command::Ask(command) => command.run(doctor::examine),
        Command::Run(args) => match RunConfig::try_from(*args) {
            Ok(config) => (run::run(config).map(|()| 0), FAILED),
            Err(error) => (Err(error), UNUSABLE),
        },
        Command::Standby(args) => (standby::run(&args).map(|()| 0), FAILED),
        Command::Controller(args) => (control(args).map(|()| 0), FAILED),
        Command::Uninstall(args) => (uninstall::run(&args).map(|()| 0), FAILED),
    })
}
