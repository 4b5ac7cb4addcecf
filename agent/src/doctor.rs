//! Checks of this node for `netpold doctor`.

mod netfilter;
mod node;

pub(crate) use node::examine;
