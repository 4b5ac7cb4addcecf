//! Lets userspace read and write the layouts as map contents.

use crate::layout::{
    Ct4Way, Ct6Way, DropEvent, Endpoint, FragmentKey, FragmentPorts, Lpm6Key, PortSet, Settings,
};

macro_rules! plain {
    ($($layout:ty),+) => {$(
        // SAFETY: repr(C), without padding (sizes are asserted beside the definitions), of integers
        // only: every bit pattern is a value.
        unsafe impl aya::Pod for $layout {}
    )+};
}

plain!(Ct4Way, Ct6Way, DropEvent, Endpoint, FragmentKey, FragmentPorts, Lpm6Key, PortSet, Settings);
