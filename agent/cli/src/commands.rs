//! The commands, for the binary of a node and for `kubectl-netpold`.

use std::process::ExitCode;

use anyhow::Result;
use clap::{FromArgMatches, Subcommand};
use netpold_core::printable::printable;
use netpold_doctor::{DoctorArgs, DoctorReport};
use netpold_review::assertions::{self, TestArgs};
use netpold_review::diff::{self, DiffArgs};
use netpold_review::explain::{self, ExplainArgs};

use crate::completion::CompletionArgs;
use crate::flows::FlowsArgs;
use crate::init::InitArgs;
use crate::learn::LearnArgs;
use crate::observe::ObserveArgs;
use crate::rules::RulesArgs;
use crate::status::StatusArgs;
use crate::top::TopArgs;
use crate::trace::TraceArgs;
use crate::ui::UiArgs;
use crate::{completion, flows, init, learn, observe, rules, status, top, trace, ui};

/// Exit status of a failed command.
pub const FAILED: u8 = 1;
/// Exit status of invalid arguments, and of a failed `explain`, `diff`, `test`, `doctor` or `learn`.
pub const UNUSABLE: u8 = 2;

/// Commands that ask, and exit.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Explain whether policy allows a connection, and why
    #[command(after_help = "Exit status: 0 allowed, 1 denied, 2 cannot tell (why is on stderr).\n\
        With --socket or --nodes: 2 also if objects, tables and kernel differ.\n\
        With --probes: 0 every line answered, 2 some line is not.")]
    Explain(ExplainArgs),
    /// Show which connections a change of manifests cuts or opens
    #[command(
        after_help = "Exit status: 0 nothing of the kind of --fail-on, 1 something, 2 cannot tell, or not everything \
        could be compared."
    )]
    Diff(DiffArgs),
    /// Check that connections are allowed or denied as assertions in a file expect
    #[command(after_help = "Exit status: 0 every assertion holds, 1 some does not, 2 cannot tell.")]
    Test(TestArgs),
    /// Find misconfigurations of policies, nodes or a cluster, with a fix for each
    #[command(
        after_help = "Exit status: 0 nothing, 1 errors or warnings were found, 2 none were, but not \
        everything could be checked."
    )]
    Doctor(DoctorArgs),
    /// Show endpoints, drops and problems of a running agent, or of all agents of a cluster
    #[command(after_help = "Exit status: 0 every agent answered, 1 some did not.")]
    Status(StatusArgs),
    /// Show drops, denials of policies in audit mode, and new flows, with policy and rule
    #[command(after_help = "Exit status: 0 all was shown, 1 an agent did not answer or ended.")]
    Observe(ObserveArgs),
    /// Show the busiest drops, flows, pods and policies on a terminal
    #[command(after_help = "Exit status: 0 ended by a key or a signal, 1 failed.")]
    Top(TopArgs),
    /// List the flows of pods, with the latest verdict of each
    #[command(after_help = "Exit status: 0 every agent answered, 1 some did not.")]
    Flows(FlowsArgs),
    /// List the rules that isolate pods, with the time of last use and the number of flows
    #[command(after_help = "Exit status: 0 every agent answered, 1 some did not.")]
    Rules(RulesArgs),
    /// Show each step of the judgement of a pod's packets, for a limited time
    #[command(
        after_help = "Exit status: 0 the time is over, 1 the agent did not answer, refused or ended."
    )]
    Trace(TraceArgs),
    /// Write least-privilege NetworkPolicies from observed flows
    #[command(
        after_help = "Exit status: 0 what was seen stays allowed, 1 some of it would be denied (named on \
            stderr), 2 cannot tell."
    )]
    Learn(LearnArgs),
    /// Write policies to begin with, in audit mode, and assertions that check them
    #[command(after_help = "Exit status: 0 done, 1 failed.")]
    Init(InitArgs),
    /// Serve a page with map, live denials, what-if and policies in force to a browser on this machine
    #[command(after_help = "Exit status: 0 ended by Ctrl-C, 1 failed.")]
    Ui(UiArgs),
    /// Write a shell completion script for commands and flags
    #[command(after_help = "Exit status: 0 done, 1 failed.")]
    Completion(CompletionArgs),
}

impl Command {
    /// Runs the command; `node` are doctor's checks of this node. Returns the exit status, or that of a failure.
    pub fn run(self, node: impl FnOnce(&DoctorArgs) -> DoctorReport) -> (Result<u8>, u8) {
        match self {
            Self::Explain(args) => (explain::run(&args), UNUSABLE),
            Self::Diff(args) => (diff::run(&args), UNUSABLE),
            Self::Test(args) => (assertions::run(&args), UNUSABLE),
            Self::Doctor(args) => (netpold_doctor::run(&args, node), UNUSABLE),
            Self::Learn(args) => (learn::run(&args), UNUSABLE),
            Self::Status(args) => (status::run(&args), FAILED),
            Self::Rules(args) => (rules::run(&args), FAILED),
            Self::Flows(args) => (flows::client::run(&args), FAILED),
            Self::Observe(args) => (observe::run(&args), FAILED),
            Self::Trace(args) => (trace::run(&args), FAILED),
            Self::Top(args) => (top::run(&args).map(|()| 0), FAILED),
            Self::Init(args) => (init::run(&args).map(|()| 0), FAILED),
            Self::Ui(args) => (ui::run(&args).map(|()| 0), FAILED),
            Self::Completion(args) => (completion::run(&args).map(|()| 0), FAILED),
        }
    }
}

/// Groups of commands in the help; those without a group come last.
const GROUPS: [(&str, &[&str]); 2] = [
    (
        "Daily commands",
        &["explain", "diff", "test", "doctor", "status", "observe", "ui", "learn", "init"],
    ),
    ("On a node", &["run", "standby", "controller", "uninstall"]),
];

/// Parses the arguments of the process. The help has subcommands in groups.
#[must_use]
pub fn parse<C: FromArgMatches>(command: clap::Command) -> C {
    let matches = grouped(command).get_matches();
    C::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

fn grouped(command: clap::Command) -> clap::Command {
    let (header, literal) =
        (*command.get_styles().get_header(), *command.get_styles().get_literal());
    let list = |title: &str, is_listed: &dyn Fn(&str) -> bool| {
        let listed = command.get_subcommands().filter(|it| is_listed(it.get_name()));
        let lines: String = listed
            .map(|it| {
                let about = it.get_about().cloned().unwrap_or_default();
                format!("  {literal}{:<12}{literal:#}{about}\n", it.get_name())
            })
            .collect();
        if lines.is_empty() { lines } else { format!("{header}{title}:{header:#}\n{lines}\n") }
    };
    let [daily, on_a_node] = GROUPS.map(|(title, names)| list(title, &|it| names.contains(&it)));
    let is_other = |name: &str| !GROUPS.iter().any(|(_, names)| names.contains(&name));
    let other = list("Other commands", &is_other);
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{daily}{on_a_node}{other}\
         {header}Options:{header:#}\n{{options}}"
    );
    command.help_template(template)
}

/// Prints the error of a failed command in one line: names of files and fields in it may be anyone's. Returns the exit
/// code of the process.
#[must_use]
pub fn exit_code((result, failure): (Result<u8>, u8)) -> ExitCode {
    let status = result.unwrap_or_else(|error| {
        anstream::eprintln!("netpold: {}", printable(&format!("{error:#}")));
        failure
    });
    ExitCode::from(status)
}
