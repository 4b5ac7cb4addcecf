//! netpold: Kubernetes NetworkPolicy enforced in eBPF at every pod's veth.

use std::process::ExitCode;

use clap::Parser;
use netpold::cli::{Cli, Command};
use netpold::config::RunConfig;

/// Exit status of a command that failed; `explain` has its own, see there.
const FAILED: u8 = 1;
/// Exit status of `explain` that cannot tell, and of arguments that make no sense.
const UNUSABLE: u8 = 2;

pub(crate) fn main() -> ExitCode {
    let (result, failure) = match Cli::parse().command {
        Command::Run(args) => match RunConfig::try_from(args) {
            Ok(config) => (netpold::run::run(config).map(|()| 0), FAILED),
            Err(error) => (Err(error), UNUSABLE),
        },
        Command::Explain(args) => (netpold::explain::run(&args), UNUSABLE),
        Command::Uninstall(args) => (netpold::uninstall::run(&args).map(|()| 0), FAILED),
        Command::Status(args) => (netpold::status::run(&args).map(|()| 0), FAILED),
    };
    let status = result.unwrap_or_else(|error| {
        anstream::eprintln!("netpold: {error:#}");
        failure
    });
    ExitCode::from(status)
}
