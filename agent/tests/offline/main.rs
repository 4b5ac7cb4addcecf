//! Tests without root: commands, pages and reviews.

mod assertions;
mod cli;
mod cli_page;
mod clock;
mod cluster_policy_page;
mod diff;
mod doctor;
mod learn;
mod observe;
mod pages;
mod threats;
