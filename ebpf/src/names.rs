//! Domain names: questions that a pod asks, the addresses in the answers, and the rows that these addresses select.
//!
//! A pod's question to a trusted resolver is recorded at its egress hook ([`conversation::record_question`]). An answer passes its
//! ingress hook only after the addresses in it are recorded ([`conversation::check_answer`], [`conversation::next_record`]), for
//! each name of policy that is the question's name or a suffix of it. A packet that the endpoint's row denies is judged
//! once more by the row of each group of rules with a name that its remote address was resolved from
//! ([`choice::query`], [`choice::groups`]); the first packet of a TCP or UDP flow over IPv4 at once
//! ([`crate::tables::Opening`]).
//!
//! Over TCP, both are read from the segments of the connection ([`steps`]): the questions from whole segments, the
//! answers from the bytes that follow the resolver's SYN-ACK, each byte once and in order ([`stream`]).
//!
//! Whatever is not understood is not recorded, and so it stays denied; its reason is counted ([`ignored`]).

pub mod choice;
pub mod conversation;
pub mod doubt;
pub mod ignored;
pub mod name;
pub mod segment;
pub mod steps;
pub mod store;
pub mod stream;
pub mod stream_table;
pub mod tables;
pub mod work;
