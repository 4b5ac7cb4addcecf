//! `netpold top`: the busiest drops, flows, pods and policies on a terminal, from the stream of `netpold observe`.
//!
//! `board` counts events, `screen` draws the counts, `terminal` reads keys and restores the terminal at every end that
//! a process can catch: a key, a signal, an error, a panic.

mod args;
mod board;
mod feed;
mod screen;
mod terminal;

pub use args::TopArgs;
pub use board::{CountRow, EventCounts, RowOrder, TopView};
pub use screen::{Choice, draw};
pub use terminal::{Terminal, run};
