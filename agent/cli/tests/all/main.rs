//! Tests of the commands, each run as a program.

mod changes;
mod command;
mod findings;
mod incomplete;
mod learned;
mod names;
mod objects;
mod possible;
mod presets;
mod recursive;
mod secondary;
mod statements;
mod ui;
mod written;
