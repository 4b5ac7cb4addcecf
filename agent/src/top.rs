//! `netpold top`: the busiest drops, flows, pods and policies on a terminal, from the stream of `netpold observe`.
//!
//! `board` counts, `screen` draws what was counted, `terminal` reads keys and leaves the terminal as it was in
//! all cases that a process can see: a key, a signal, an error, a panic.

mod args;
mod board;
mod feed;
mod screen;
mod terminal;

pub use args::TopArgs;
pub use board::{Board, Order, Row, View};
pub use screen::{Choice, draw};
pub use terminal::{Terminal, run};
