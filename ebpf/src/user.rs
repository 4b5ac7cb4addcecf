//! `aya::Pod` for the layouts.

use crate::layout::{
    Blocks6Node, Counters, Ct4Key, Ct4Way, Ct6Key, Ct6Way, DropEvent, Endpoint, FragmentKey,
    FragmentPorts, Hosts6Bucket, Hosts6Entry, NameEntry, NameKey, Row, Settings, StreamEntry,
    Unproven,
};
use crate::trace::{TraceFilter, TraceRecord};

macro_rules! pod {
    ($($type:ty),*) => {
        $(
            // SAFETY: `repr(C)`, `Copy`, no padding (asserted in `layout`), any bits are valid.
            unsafe impl aya::Pod for $type {}
        )*
    };
}

pod!(TraceFilter, TraceRecord, NameKey, NameEntry, StreamEntry);
pod!(Settings, Counters, Endpoint, Row, Blocks6Node, Hosts6Bucket, Hosts6Entry);
pod!(Ct4Key, Ct4Way, Ct6Key, Ct6Way, FragmentKey, FragmentPorts, DropEvent, Unproven);
