//! Output for the user about steps: their start, duration and end.

use std::io::{IsTerminal, Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use owo_colors::OwoColorize;

/// Interval of signs of life without a terminal.
const SIGN_OF_LIFE: Duration = Duration::from_secs(20);

/// Prints a heading for the next step.
pub(crate) fn title(text: &str) {
    anstream::println!("{} {}", "==>".cyan().bold(), text.bold());
}

/// Prints a remark.
pub(crate) fn note(text: &str) {
    anstream::println!("    {text}");
}

/// Prints a warning.
pub(crate) fn warning(text: &str) {
    anstream::eprintln!("{} {text}", "warning:".yellow().bold());
}

/// Prints the error that ends the command.
pub(crate) fn failure(text: &str) {
    anstream::eprintln!("{} {text}", "error:".red().bold());
}

/// Runs a command with visible output (cargo shows its own progress).
///
/// # Errors
/// When the command cannot be run or fails.
pub(crate) fn show(command: &mut Command) -> Result<()> {
    title(&line_of(command));
    let status = command.status().with_context(|| format!("cannot run {}", line_of(command)))?;
    ended(status, command)
}

/// Runs a command with signs of life; prints its output only if it fails.
///
/// # Errors
/// When the command cannot be run or fails; then its output has been printed.
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

/// Runs a command and returns its standard output, without printing it.
///
/// # Errors
/// When the command cannot be run or fails; the error has its standard error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} failed: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A command that runs in parallel with other steps, without output. Dropping it ends the command and its children: the
/// command's result is not needed.
pub(crate) struct BackgroundCommand(Option<Child>);

impl BackgroundCommand {
    /// Starts the command in a process group of its own, which yields to the other steps.
    pub(crate) fn start(command: &mut Command) -> Self {
        let child = silent(command).process_group(0).spawn().ok();
        if let Some(child) = &child {
            // Without the tool, the command competes with them.
            let group = child.id().to_string();
            let _ = silent(Command::new("renice").args(["-n", "10", "-g", &group])).status();
        }
        Self(child)
    }
}

fn silent(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

impl Drop for BackgroundCommand {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        // A command that has ended and was not waited for keeps its number.
        let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
        let _ = child.wait();
    }
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

/// The command as typed in a shell.
fn line_of(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    let arguments = command.get_args().map(|a| a.to_string_lossy().into_owned());
    std::iter::once(name).chain(arguments).collect::<Vec<_>>().join(" ")
}
