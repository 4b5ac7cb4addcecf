//! Wire types of netpold: kinds of its API, and what an agent answers. Data and its serialization only: no I/O, no client,
//! no kernel.
#![forbid(unsafe_code)]

pub mod crd;
pub mod source;
