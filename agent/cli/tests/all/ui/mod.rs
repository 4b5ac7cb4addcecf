//! `netpold ui`: requests to the server from a client on loopback, and the page in a browser.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod client;
mod clusters;
mod figures;
mod page;
mod server;
