//! How commands answer.

use clap::ValueEnum;
use serde::Serialize;

/// Format of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
pub enum Output {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}
