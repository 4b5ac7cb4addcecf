//! One run of qemu, read from its serial console.

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::guest::Guest;
use super::kernel::UnpackedKernel;
use super::qemu::Qemu;

/// Limit of a guest's time until its first step.
const BOOT: Duration = Duration::from_mins(10);

/// Result of a step.
pub(super) struct StepResult {
    pub(super) name: String,
    pub(super) status: i32,
    pub(super) seconds: u64,
    pub(super) output: Vec<String>,
}

impl StepResult {
    pub(super) const fn passed(&self) -> bool {
        self.status == 0
    }

    /// The result line of a test binary, or else the last line.
    pub(super) fn summary(&self) -> &str {
        let mut lines = self.output.iter().rev().map(|line| line.trim());
        let result = lines.clone().find_map(|line| line.strip_prefix("test result: "));
        result.or_else(|| lines.find(|line| !line.is_empty())).unwrap_or_default()
    }
}

/// Result of the guest as a whole.
pub(super) enum GuestEnd {
    Well,
    Badly(String),
}

/// Events of a guest.
pub(super) struct GuestReport {
    pub(super) steps: Vec<StepResult>,
    pub(super) notes: Vec<String>,
    pub(super) ended: GuestEnd,
    /// Time until the first step.
    pub(super) booted: Duration,
    pub(super) took: Duration,
    /// Lines outside of steps at the end: the kernel's last messages.
    pub(super) tail: Vec<String>,
}

/// A guest that ends with this value, also on errors.
struct GuestProcess(Child);

impl Drop for GuestProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots the guest and reads its console until it ends.
///
/// # Errors
/// When qemu cannot be run.
pub(super) fn boot(
    qemu: &Qemu,
    kernel: &UnpackedKernel,
    guest: &Guest,
    verbose: bool,
) -> Result<GuestReport> {
    let mut child = qemu.command(kernel, guest).spawn().context("cannot run qemu")?;
    let stdout = child.stdout.take().context("qemu has no output")?;
    let _machine = GuestProcess(child);
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    Ok(ConsoleReader::new(guest, verbose).read(&lines))
}

struct ConsoleReader<'a> {
    guest: &'a Guest,
    verbose: bool,
    start: Instant,
    deadline: Instant,
    done: bool,
    running: Option<StepResult>,
    report: GuestReport,
}

impl<'a> ConsoleReader<'a> {
    fn new(guest: &'a Guest, verbose: bool) -> Self {
        let start = Instant::now();
        let report = GuestReport {
            steps: Vec::new(),
            notes: Vec::new(),
            ended: GuestEnd::Well,
            booted: Duration::ZERO,
            took: Duration::ZERO,
            tail: Vec::new(),
        };
        let deadline = start + BOOT;
        Self { guest, verbose, start, deadline, done: false, running: None, report }
    }

    fn read(mut self, lines: &Receiver<String>) -> GuestReport {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            match lines.recv_timeout(left) {
                Ok(line) => self.line(&line),
                Err(RecvTimeoutError::Timeout) => break self.bad("hangs: was ended"),
                Err(RecvTimeoutError::Disconnected) if self.done => break,
                Err(RecvTimeoutError::Disconnected) => break self.bad("ended before its steps"),
            }
        }
        if let Some(step) = self.running.take() {
            self.report.tail.extend(step.output);
        }
        self.report.took = self.start.elapsed();
        self.report
    }

    fn bad(&mut self, reason: &str) {
        let during = self.running.as_ref().map(|step| format!(" (in {})", step.name));
        self.report.ended = GuestEnd::Badly(format!("{reason}{}", during.unwrap_or_default()));
    }

    fn line(&mut self, line: &str) {
        if self.verbose {
            anstream::println!("      {line}");
        }
        let Some((_, told)) = line.split_once("@@ ") else {
            let output = match &mut self.running {
                Some(step) => &mut step.output,
                None => &mut self.report.tail,
            };
            output.push(line.to_owned());
            return;
        };
        let words: Vec<&str> = told.split_whitespace().collect();
        match words[..] {
            ["begin", name] => self.begin(name),
            ["end", _, status, seconds] => self.end(status, seconds),
            ["done"] => self.done = true,
            ["note", ..] => self.report.notes.push(words[1..].join(" ")),
            _ => {}
        }
    }

    fn begin(&mut self, name: &str) {
        if self.report.steps.is_empty() {
            self.report.booted = self.start.elapsed();
        }
        let limit = self.guest.steps().iter().find(|step| step.name == name);
        // The guest ends a step in time; this limit is for a guest that cannot.
        let limit = limit.map_or(BOOT, |step| Duration::from_secs(step.limit + 60));
        self.deadline = Instant::now() + limit;
        let name = name.to_owned();
        self.running = Some(StepResult { name, status: -1, seconds: 0, output: Vec::new() });
    }

    fn end(&mut self, status: &str, seconds: &str) {
        if let Some(mut step) = self.running.take() {
            step.status = status.parse().unwrap_or(-1);
            step.seconds = seconds.parse().unwrap_or_default();
            self.report.steps.push(step);
        }
        self.deadline = Instant::now() + BOOT;
    }
}
