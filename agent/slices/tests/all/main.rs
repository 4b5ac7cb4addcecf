//! Tests of peer slices.

mod form;
mod packing;
mod verdicts;
mod view;
