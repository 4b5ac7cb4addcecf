//! netpold's pure core: compiles cluster state into table contents. No I/O, no clock, no Kubernetes types.
//!
//! ```text
//!  model::Change ──ingest──► cluster::Cluster            current objects and their indexes
//!                                 │
//!                                 ▼ update
//!  compile::rules            direction policies of each local endpoint: rules with
//!                                 │   pods, blocks and Services as peers
//!                                 ▼
//!  compile::sets             membership of each address: its class
//!                                 │
//!                                 ▼
//!  compile::tables           addresses → class, endpoint → row, row × class → port set
//!                                 │
//!                                 ▼
//!  compile::ordering         operations, in an order without intermediate verdicts
//!                                 │
//!  ops::Op ────────write────► the kernel's maps, or tables in memory
//! ```
//!
//! [`compile::Compiler`] does all of this. [`explain::Explainer`] reads the same cluster state and gives the reasons of
//! a verdict; [`bindings::Bindings`] binds veths to pods. Imports point only down the list `LAYERS` in
//! `tests/all/layers.rs`.
//!
//! # Glossary
//!
//! | term | meaning |
//! |---|---|
//! | endpoint | a local pod behind its interface, and its record in the tables |
//! | isolated | selected by some policy in this direction, so only traffic that rules allow passes |
//! | direction policy | the union of all rules that apply to a pod in one direction; equal unions are one value |
//! | peer set | a set of addresses in the rules in use: pods by selector, this node, a named port, ... |
//! | membership | the peer sets that an address belongs to |
//! | class | the number of a distinct membership; 0 is "member of nothing" |
//! | block group | the prefixes with the same grants in all direction policies' ipBlocks |
//! | address partition | the prefixes at which the class changes |
//! | service target | the backends behind a Service's address or a node port, as a peer set |
//! | hairpin Service | a Service through which a local pod reaches itself |
//! | allowed ports | the allowed ports of TCP, UDP and SCTP, and whether all other protocols are allowed |
//! | port set | allowed ports in a row: one word, which refers to bitmaps where one port is not enough |
//! | row | a direction policy in the tables: a port set for each class |
//! | slot | the number of an element in a table; reused only after a grace period |
//! | operation | one write that flips one word, or fills an element that no packet reads yet |
//! | grace period | time until every packet that is being evaluated has its verdict |
//! | image | contents of the tables, free of numbers and history; for tests |
//! | snapshot | the objects behind the installed tables, enough to build them again |
//! | unit | weight of one rule, peer, port or value in the budget of a policy |
//! | closed | isolated, with nothing allowed, because the policies are over their budget |
//!
//! # A worked example
//!
//! Node `here` runs pods `shop/web` (10.0.0.1, interface 1) and `shop/db` (10.0.0.2, interface 2); `ops/probe`
//! (10.0.1.1) runs elsewhere. Policy `shop/web` allows ingress to `app=web` from 10.0.1.0/24 at TCP 80, policy
//! `shop/db` allows ingress to `app=db` from `app=web` at TCP 5432. The operations of the first update (compared by
//! `tests/all/worked_example.rs`):
//!
//! ```text
//! fill row 1: class 2 TCP 80
//! fill row 2: class 1 TCP 5432
//! fill trie block 0: word 1 class 1
//! fill trie block 1: word 0 block 0, word 1 class 2
//! trie root word 2560: block 1
//! fill slot 5062: interface 1, ingress row 1, egress row 0
//! fill slot 1933: interface 2, ingress row 2, egress row 0
//! ```
//!
//! Class 1 is the peer set "pods of `shop` with `app=web`", which is 10.0.0.1. Class 2 is the block group of
//! 10.0.1.0/24. 10.0.0.2 is in no peer set of a rule, so its class is 0 and no table contains it. Each element is
//! complete before anything points to it, and the endpoints, which put the rows into use, come last.
//!
//! Then `shop/web` gets the label `app=db`. The peer set has no pod any more, and no endpoint uses the policy with
//! 10.0.1.0/24, so both classes lose their addresses; the endpoint flips to the row of the other policy:
//!
//! ```text
//! trie block 1 word 0: class 0
//! trie block 1 word 1: class 0
//! trie root word 2560: class 0
//! slot 5062: ingress row 2, egress row 0
//! ```
#![forbid(unsafe_code)]

pub mod bindings;
pub mod budget;
pub mod cluster;
pub mod compile;
pub mod error_chain;
pub mod explain;
pub mod first_names;
pub mod labels;
pub mod lock;
pub mod model;
pub mod ops;
pub mod options;
pub mod owner;
pub mod pattern;
mod ports;
mod prefix;
pub mod printable;
pub mod probe;
pub mod turns;
