//! An agent whose tables are laid out differently: what the upgrade test goes to and back from.

use std::process::ExitCode;

#[path = "main.rs"]
mod agent;

fn main() -> ExitCode {
    agent::main()
}
