//! `netpold completion`: scripts with which shells complete commands and flags.
//!
//! Names of pods and Services are not completed. `clap_complete` has an engine for such values behind its
//! feature `unstable-dynamic`, which its promise of compatible versions leaves out, and every press of the
//! key would list the cluster's pods, since the API finds no names by their beginnings.

use std::io::Write as _;

use anyhow::Result;
use clap::{Args, Command, ValueEnum};
use clap_complete::{generate, shells};

use crate::output::is_read;

/// What the script calls the program.
const NAME: &str = "netpold";

/// Flags of `netpold completion`.
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// For which shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// Shells that scripts are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// source <(netpold completion bash)
    Bash,
    /// netpold completion fish | source
    Fish,
    /// source <(netpold completion zsh)
    Zsh,
}

/// Writes the script for `command` to standard output.
///
/// # Errors
/// Standard output cannot be written to.
pub fn run(args: &CompletionArgs, mut command: Command) -> Result<()> {
    let mut script = Vec::new();
    match args.shell {
        Shell::Bash => generate(shells::Bash, &mut command, NAME, &mut script),
        Shell::Fish => generate(shells::Fish, &mut command, NAME, &mut script),
        Shell::Zsh => generate(shells::Zsh, &mut command, NAME, &mut script),
    }
    is_read(std::io::stdout().write_all(&script))?;
    Ok(())
}
