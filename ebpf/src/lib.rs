//! netpold's packet path, shared by the kernel program, the agent and the tests.
//!
//! [`verdict::decide`] judges one packet: [`packet`] reads it through [`packet::Bytes`], [`policy`]
//! and [`conntrack`] read [`tables::Tables`]. In the kernel these are the packet and BPF maps, on
//! the host a slice and plain memory.
#![no_std]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]

#[cfg(not(target_arch = "bpf"))]
extern crate std;

pub mod cached_verdict;
pub mod connection;
pub mod conntrack;
mod control;
pub mod event;
pub mod family;
mod fast_path;
mod fragment;
#[cfg(not(target_arch = "bpf"))]
pub mod host;
pub mod hosts6;
pub mod icmp;
pub mod layout;
mod neighbour;
mod observer;
pub mod order;
pub mod packet;
mod parsed;
pub mod policy;
pub mod proof;
pub mod reason;
pub mod sent;
pub mod station;
pub mod tables;
mod tracking;
pub mod translated;
pub mod uplink;
#[cfg(feature = "user")]
mod user;
pub mod verdict;
