//! `netpold completion`: shell scripts that complete commands, flags, and names of objects in the cluster.
//!
//! The scripts run this binary for each word, with [`VARIABLE`] set; kubectl (1.26 and newer) runs an executable named
//! [`KUBECTL_HOOK`]. `clap_complete`'s engine answers both. Its feature is marked unstable: the interface may change
//! with a minor version. `names.rs` adds the names from a cluster.

mod names;

use std::env;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::{Args, Command, ValueEnum};
use clap_complete::engine::complete;
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};
use netpold_client::live::is_called_as;
use netpold_client::output::is_reader_open;

use self::names::TypedFlags;

/// Name of the program in the scripts.
const NAME: &str = "netpold";
/// Environment variable that the scripts set to the name of their shell.
const VARIABLE: &str = "NETPOLD_COMPLETE";
/// Name of the executable that kubectl runs to complete `kubectl netpold`.
const KUBECTL_HOOK: &str = "kubectl_complete-netpold";
/// Cobra's `ShellCompDirectiveNoSpace`: no space after the word.
const NO_SPACE: u8 = 2;
/// Cobra's `ShellCompDirectiveNoFileComp`: no file names beside the answers.
const NO_FILES: u8 = 4;

/// Flags of `netpold completion`.
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// Shell to write the script for
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// Shells with a completion script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// source <(netpold completion bash)
    Bash,
    /// netpold completion fish | source
    Fish,
    /// source <(netpold completion zsh)
    Zsh,
}

impl Shell {
    const fn completer(self) -> &'static dyn EnvCompleter {
        match self {
            Self::Bash => &Bash,
            Self::Fish => &Fish,
            Self::Zsh => &Zsh,
        }
    }
}

/// Writes the script of a shell to standard output.
///
/// # Errors
/// Standard output cannot be written to.
pub fn run(args: &CompletionArgs) -> Result<()> {
    let mut script = Vec::new();
    args.shell.completer().write_registration(VARIABLE, NAME, NAME, NAME, &mut script)?;
    is_reader_open(io::stdout().write_all(&script))?;
    Ok(())
}

/// Answers a completion request of a shell or kubectl on standard output, and returns the exit code; `None` if this process
/// received none. A word that cannot be completed has no answers.
#[must_use]
pub fn answer_completion(command: fn() -> Command) -> Option<ExitCode> {
    // An error text would stand between the words on the user's terminal.
    let code = |answered: Result<()>| answered.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    if is_called_as(KUBECTL_HOOK) {
        return Some(code(answer_kubectl(command())));
    }
    let shell = env::var(VARIABLE).ok()?;
    let shell = Shell::from_str(&shell, false).ok()?;
    Some(code(answer_shell(command(), shell)))
}

fn answer_shell(command: Command, shell: Shell) -> Result<()> {
    let words: Vec<OsString> = env::args_os().skip_while(|word| word != "--").skip(1).collect();
    if words.is_empty() {
        return Ok(());
    }
    let mut command = names::with_names(command, &Arc::new(TypedFlags::read(&words, false)));
    let (directory, mut answers) = (env::current_dir().ok(), Vec::new());
    // The engine returns an error for a word that does not exist yet.
    let asked =
        shell.completer().write_complete(&mut command, words, directory.as_deref(), &mut answers);
    if asked.is_ok() {
        is_reader_open(io::stdout().write_all(&answers))?;
    }
    Ok(())
}

/// Answers in Cobra's format: a line for each answer, with its description behind a tab; then a colon and a number with
/// directive bits for the shell.
fn answer_kubectl(command: Command) -> Result<()> {
    let plugin = OsString::from(netpold_client::live::PLUGIN);
    let words: Vec<OsString> = [plugin].into_iter().chain(env::args_os().skip(1)).collect();
    let mut command = names::with_names(command, &Arc::new(TypedFlags::read(&words, true)));
    let (directory, last) = (env::current_dir().ok(), words.len() - 1);
    let found = complete(&mut command, words, last, directory.as_deref()).unwrap_or_default();
    let (mut text, mut goes_on) = (String::new(), !found.is_empty());
    for candidate in found {
        let value = candidate.get_value().to_string_lossy().into_owned();
        goes_on &= value.ends_with(['/', '=']);
        let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
        text.push_str(&value);
        if let Some(line) = help.lines().next() {
            text.push('\t');
            text.push_str(line);
        }
        text.push('\n');
    }
    let directive = if goes_on { NO_FILES | NO_SPACE } else { NO_FILES };
    let text = format!("{text}:{directive}\n");
    is_reader_open(io::stdout().write_all(text.as_bytes())).context("cannot answer kubectl")?;
    Ok(())
}
