//! netpold's pure core: from cluster state to table contents. No I/O, no clock, no Kubernetes types.
//!
//! ```text
//!  model::Change ──ingest──► cluster::Cluster            objects as they are now, and their indexes
//!                                 │
//!                                 ▼ update
//!  compile::rules            what the policies of each local endpoint allow: a direction policy
//!                                 │   names pods, blocks, Services
//!                                 ▼
//!  compile::sets             what each address is a member of: its class
//!                                 │
//!                                 ▼
//!  compile::tables           addresses → class, endpoint → row, row × class → port set
//!                                 │
//!                                 ▼
//!  compile::ordering         operations, in an order in which no packet sees a mixture
//!                                 │
//!  ops::Op ────────write────► the kernel's maps, or tables in memory
//! ```
//!
//! [`compile::Compiler`] is all of it. [`explain::Explainer`] reads the same cluster state and says why something is
//! allowed or denied; [`bindings::Bindings`] decides which pod a veth belongs to. Imports point only down this list:
//! `compile` (compiler, compiled, update, ordering, tables, rules, sets), `explain`, `options`, `ops`, `bindings`, `cluster`,
//! `budget`, `ports`, `probe`, `prefix`, `model`; `tests/layers.rs` checks it.
//!
//! # Glossary
//!
//! | term | meaning |
//! |---|---|
//! | endpoint | a local pod behind its interface, and its record in the tables |
//! | isolated | some policy selects the pod in this direction, so only what rules allow passes |
//! | direction policy | the union of all rules that apply to a pod in one direction; equal unions are one value |
//! | peer set | a set of addresses that rules in use name: pods by selector, the own node, a named port, ... |
//! | membership | the peer sets that an address belongs to |
//! | class | the number of a distinct membership; 0 is "member of nothing" |
//! | block group | the prefixes to which all direction policies' ipBlocks allow the same |
//! | address partition | the prefixes at which the class changes |
//! | service target | where packets to a Service's address or to a node port lead, as a peer set |
//! | hairpin Service | a Service through which a local pod reaches itself |
//! | allowed ports | what is allowed of TCP, UDP, SCTP, and whether of all other protocols |
//! | port set | allowed ports as a row holds them: one word, with bitmaps where one port does not do |
//! | row | a direction policy in the tables: a port set for each class |
//! | slot | the number of an element in a table; reused only after a grace period |
//! | operation | one write that flips one word or fills what no packet reads yet |
//! | grace period | until every packet whose evaluation began before is through |
//! | image | what the tables say, free of numbers and history; for tests |
//! | snapshot | the objects that what is installed came from, enough to install it again |
//! | unit | what one rule, peer, port or value weighs against the budget of a policy |
//! | closed | isolated, with nothing allowed, because the policies are over their budget |
//!
//! # A worked example
//!
//! Node `here` runs pods `shop/web` (10.0.0.1, interface 1) and `shop/db` (10.0.0.2, interface 2); `ops/probe` (10.0.1.1)
//! runs elsewhere. Policy `shop/web` allows ingress to `app=web` from 10.0.1.0/24 at TCP 80, policy `shop/db` allows
//! ingress to `app=db` from `app=web` at TCP 5432. The first update comes to (`tests/worked_example.rs` holds this text):
//!
//! ```text
//! fill row 1: class 2 TCP 80
//! fill row 2: class 1 TCP 5432
//! fill trie block 0: word 1 class 1
//! fill trie block 1: word 0 block 0, word 1 class 2
//! trie root word 2560: block 1
//! fill slot 1: interface 1, ingress row 1, egress row 0
//! fill slot 2: interface 2, ingress row 2, egress row 0
//! ```
//!
//! Class 1 is the peer set "pods of `shop` with `app=web`", which is 10.0.0.1. Class 2 is the block group of
//! 10.0.1.0/24. 10.0.0.2 is a member of nothing that a rule names, so its class is 0 and no table mentions it. Each
//! element is complete before anything points to it, and the endpoints, which put the rows into use, come last.
//!
//! Then `shop/web` gets the label `app=db`. No pod is in the peer set any more, and no endpoint uses the policy that
//! names 10.0.1.0/24, so both classes lose their addresses; the endpoint flips to the row of the other policy:
//!
//! ```text
//! trie block 1 word 0: class 0
//! trie block 1 word 1: class 0
//! trie root word 2560: class 0
//! slot 1: ingress row 2, egress row 0
//! ```
#![forbid(unsafe_code)]

pub mod bindings;
pub mod budget;
pub mod cluster;
pub mod compile;
pub mod explain;
pub mod model;
pub mod ops;
pub mod options;
pub mod ports;
mod prefix;
pub mod probe;
