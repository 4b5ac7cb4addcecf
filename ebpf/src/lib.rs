//! netpold's packet path, shared by the kernel program, the agent and the tests.
//!
//! [`verdict::decide`] judges one packet: [`packet`] reads it through [`packet::Bytes`], [`policy`]
//! and [`conntrack`] read [`tables::Tables`]. In the kernel these are the packet and BPF maps, on
//! the host a slice and plain memory.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod conntrack;
pub mod event;
pub mod family;
mod fragment;
mod icmp;
pub mod layout;
pub mod packet;
pub mod policy;
pub mod reason;
pub mod tables;
mod tracking;
pub mod verdict;
