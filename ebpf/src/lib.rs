//! Packet path of netpold, shared by the kernel program, the agent and the tests.
//!
//! [`judge::decide::decide`] judges one packet: [`packet::parse`] reads it through [`packet::bytes::Bytes`], and
//! [`tables::Tables`] gives access to policy and flows. In the kernel these are the packet and BPF maps, on the host
//! a slice and plain memory.
//!
//! Imports point down this list, and no two files import each other:
//!
//! | module | contents |
//! |---|---|
//! | [`xdp`] | the judgement before the stack, at uplinks and pods' interfaces |
//! | [`names`] | domain names: questions, answers, and the rows that resolved addresses select |
//! | [`observe`] | records of the flows of pods that no policy selects |
//! | [`judge`] | the judgement at the pods' hooks, and after the node's translation |
//! | [`tables`] | the tables that a judgement reads: policy, endpoints, flows |
//! | [`flow`] | the flow table: keys, control words, insertion, eviction |
//! | [`trace`] | the steps of a judgement, as the traced variant of the programs reports them |
//! | [`event`] | the fields of a drop event |
//! | [`packet`] | bytes, headers, IP versions |
//! | [`endpoint`], [`verdict`], [`direction`] | an endpoint's record, a packet's verdict and direction |
//! | [`layout`], [`reason`], [`order`] | layouts of the maps, reasons of verdicts, order of reads |
#![no_std]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]

#[cfg(not(target_arch = "bpf"))]
extern crate std;

pub mod direction;
pub mod endpoint;
pub mod event;
pub mod flow;
#[cfg(not(target_arch = "bpf"))]
pub mod host;
pub mod judge;
pub mod layout;
pub mod names;
pub mod observe;
pub mod order;
pub mod packet;
pub mod reason;
pub mod tables;
pub mod trace;
#[cfg(feature = "user")]
mod user;
pub mod verdict;
pub mod xdp;
