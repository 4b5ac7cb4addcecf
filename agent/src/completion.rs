//! `netpold completion`: scripts with which shells complete commands, flags, and names of the cluster.
//!
//! The scripts ask this binary for each word, with [`VARIABLE`] set; kubectl (1.26 and newer) asks an executable called
//! [`KUBECTL_HOOK`]. Both are answered by `clap_complete`'s engine, whose feature is called unstable: its interface may
//! change with a minor version. `names.rs` adds what a cluster has.

mod names;

use std::env;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::{Args, Command, ValueEnum};
use clap_complete::engine::complete;
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};

use self::names::Typed;
use crate::live::called;
use crate::output::is_read;

/// What the scripts call the program.
const NAME: &str = "netpold";
/// Set by the scripts to the name of their shell.
const VARIABLE: &str = "NETPOLD_COMPLETE";
/// What kubectl runs to complete `kubectl netpold`.
const KUBECTL_HOOK: &str = "kubectl_complete-netpold";
/// Cobra's `ShellCompDirectiveNoSpace`: the word goes on.
const NO_SPACE: u8 = 2;
/// Cobra's `ShellCompDirectiveNoFileComp`: files are not meant, unless they are among the answers.
const NO_FILES: u8 = 4;

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
    is_read(io::stdout().write_all(&script))?;
    Ok(())
}

/// Answers a shell or kubectl that completes a word, on standard output; `None` if nobody asks. A word that cannot be
/// completed has no answers.
#[must_use]
pub fn answer(command: fn() -> Command) -> Option<Result<()>> {
    if called(KUBECTL_HOOK) {
        return Some(answer_kubectl(command()));
    }
    let shell = env::var(VARIABLE).ok()?;
    let shell = Shell::from_str(&shell, false).ok()?;
    Some(answer_shell(command(), shell))
}

fn answer_shell(command: Command, shell: Shell) -> Result<()> {
    let words: Vec<OsString> = env::args_os().skip_while(|word| word != "--").skip(1).collect();
    if words.is_empty() {
        return Ok(());
    }
    let mut command = names::with_names(command, &Arc::new(Typed::read(&words, false)));
    let (directory, mut answers) = (env::current_dir().ok(), Vec::new());
    // The engine knows no word that is not there yet, and says so by an error.
    let asked =
        shell.completer().write_complete(&mut command, words, directory.as_deref(), &mut answers);
    if asked.is_ok() {
        is_read(io::stdout().write_all(&answers))?;
    }
    Ok(())
}

/// As kubectl expects it: a line for each answer, with its description behind a tab, and a line of a colon and a
/// number, whose bits say what the shell is to do.
fn answer_kubectl(command: Command) -> Result<()> {
    let plugin = OsString::from(crate::live::PLUGIN);
    let words: Vec<OsString> = [plugin].into_iter().chain(env::args_os().skip(1)).collect();
    let mut command = names::with_names(command, &Arc::new(Typed::read(&words, true)));
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
    is_read(io::stdout().write_all(text.as_bytes())).context("cannot answer kubectl")?;
    Ok(())
}
