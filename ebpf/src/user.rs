//! The layouts as aya's maps take them.

use crate::layout::{
    Blocks6Node, Counters, Ct4Key, Ct4Way, Ct6Key, Ct6Way, DropEvent, Endpoint, FragmentKey,
    FragmentPorts, Host6, Hosts6Bucket, Row, Settings, Unproven,
};
use crate::trace::{TraceFilter, TraceRecord};

macro_rules! pod {
    ($($type:ty),*) => {
        $(
            // SAFETY: `repr(C)`, `Copy`, no padding (asserted in `layout`), any bits are a value.
            unsafe impl aya::Pod for $type {}
        )*
    };
}

pod!(TraceFilter, TraceRecord);
pod!(Settings, Counters, Endpoint, Row, Blocks6Node, Host6, Hosts6Bucket);
pod!(Ct4Key, Ct4Way, Ct6Key, Ct6Way, FragmentKey, FragmentPorts, DropEvent, Unproven);
