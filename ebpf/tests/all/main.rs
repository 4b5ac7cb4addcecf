//! Tests of the packet path on the host.

mod checksum;
mod closing;
mod conntrack;
mod hash;
mod hostile;
mod link;
mod migration;
mod observe;
mod parts;
mod reject;
mod share;
mod translated;
mod uplink;
mod verdict;
