//! Packets to addresses that are translated: marked at the sender, judged again after the translation.

mod answers;
mod backends;
mod proof;
mod setup;
