//! netpold.
fn main() {}
