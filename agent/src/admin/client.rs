//! `netpold status` and `netpold rules`: ask the agent via its control socket.

use std::io::{ErrorKind, Write};

use anyhow::Result;

use super::{RULES_REQUEST, STATUS_REQUEST};
use crate::cli::{Output, RulesArgs, StatusArgs};
use crate::rule_use::{self, Answer};
use crate::socket;
use crate::status::{text, understood};

/// Prints the agent's status, as text or JSON.
///
/// # Errors
/// No agent answers, or its answer is not one of this version.
pub fn run(args: &StatusArgs) -> Result<()> {
    let json = socket::answer(&args.socket, STATUS_REQUEST)?;
    let text = match args.output {
        Output::Json => {
            let value: serde_json::Value = understood(&json)?;
            format!("{value:#}\n")
        }
        Output::Text => text(&json)?,
    };
    print(&text)
}

/// Prints what rules were used for, as text or JSON.
///
/// # Errors
/// As for [`run`].
pub fn rules(args: &RulesArgs) -> Result<()> {
    let json = socket::answer(&args.socket, RULES_REQUEST)?;
    let mut answer: Answer = understood(&json)?;
    answer.select(args.namespace.as_deref(), args.unused);
    print(&match args.output {
        Output::Json => format!("{:#}\n", serde_json::to_value(&answer)?),
        Output::Text => rule_use::text(&answer)?,
    })
}

fn print(text: &str) -> Result<()> {
    match anstream::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
