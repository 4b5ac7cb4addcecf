//! Where cluster state comes from: one interface that yields changes and "in sync".

pub mod convert;
pub mod decode;
pub mod document;
