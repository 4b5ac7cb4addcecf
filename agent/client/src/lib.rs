//! Common parts of netpold's commands: [`arguments`], the objects of manifests ([`offline`]) or of a cluster ([`live`]), their
//! fields that only reviews read ([`details`]), the answers of agents ([`socket`], [`flows`]), and [`output`].

pub mod arguments;
pub mod details;
pub mod flows;
pub mod live;
pub mod offline;
pub mod output;
pub mod printable_document;
pub mod socket;
