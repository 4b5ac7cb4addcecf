//! One step of a chore as the user sees it: what is being done, for how long, and how it ended.

use std::io::{IsTerminal, Read, Seek};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use owo_colors::OwoColorize;

/// How often a sign of life appears where there is no terminal.
const SIGN_OF_LIFE: Duration = Duration::from_secs(20);

/// Says what comes next.
pub(crate) fn title(text: &str) {
    anstream::println!("{} {}", "==>".cyan().bold(), text.bold());
}

/// Says something in passing.
pub(crate) fn note(text: &str) {
    anstream::println!("    {text}");
}

/// Says what the user must not miss.
pub(crate) fn warning(text: &str) {
    anstream::eprintln!("{} {text}", "warning:".yellow().bold());
}

/// Says why the chore ends here.
pub(crate) fn failure(text: &str) {
    anstream::eprintln!("{} {text}", "error:".red().bold());
}

/// Runs a command whose own output is of interest (cargo shows its progress itself).
///
/// # Errors
/// When it cannot be run or fails.
pub(crate) fn show(command: &mut Command) -> Result<()> {
    title(&line_of(command));
    let status = command.status().with_context(|| format!("cannot run {}", line_of(command)))?;
    ended(status, command)
}

/// Runs a command whose output matters only if it fails, with a sign of life meanwhile.
///
/// # Errors
/// When it cannot be run or fails; its output has been shown then.
pub(crate) fn quiet(command: &mut Command) -> Result<()> {
    let line = line_of(command);
    title(&line);
    let mut output = tempfile::tempfile().context("no temporary file")?;
    let child = command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .spawn()
        .with_context(|| format!("cannot run {line}"))?;
    let status = wait(child)?;
    if !status.success() {
        let mut said = Vec::new();
        output.rewind()?;
        output.read_to_end(&mut said)?;
        anstream::eprintln!("{}", String::from_utf8_lossy(&said).trim_end());
    }
    ended(status, command)
}

fn wait(mut child: Child) -> Result<ExitStatus> {
    let start = Instant::now();
    let bar = spinner();
    let mut told = start;
    loop {
        if let Some(status) = child.try_wait()? {
            bar.finish_and_clear();
            note(&format!("took {:.0?}", start.elapsed()));
            return Ok(status);
        }
        bar.tick();
        if bar.is_hidden() && told.elapsed() >= SIGN_OF_LIFE {
            told = Instant::now();
            note(&format!("still at it after {:.0?}", start.elapsed()));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn spinner() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("    {spinner} {elapsed}");
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = style { bar.with_style(style) } else { bar }
}

fn ended(status: ExitStatus, command: &Command) -> Result<()> {
    if !status.success() {
        bail!("`{}` failed ({status})", line_of(command));
    }
    Ok(())
}

/// The command as one would type it.
fn line_of(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    let arguments = command.get_args().map(|a| a.to_string_lossy().into_owned());
    std::iter::once(name).chain(arguments).collect::<Vec<_>>().join(" ")
}
