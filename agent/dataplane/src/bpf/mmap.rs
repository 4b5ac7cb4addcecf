//! Array maps as plain memory, shared with running programs.
//!
//! A map created with `BPF_F_MMAPABLE` (kernel 5.5) is mapped once; from then on a write is a store, not a system
//! call. Every access is atomic, because programs on other CPUs read (and, in conntrack tables, write) the same words
//! at the same time. Words are never torn, and a `store_*` is a release: a program that reads its value also sees all
//! earlier writes.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aya::Pod;
use aya::maps::{MapData, MapError};

/// Failure to map a BPF map into memory, or to access a mapped one.
#[derive(Debug, thiserror::Error)]
pub enum MmapError {
    /// The map's description could not be read.
    #[error("reading the map's description: {0}")]
    Info(#[from] MapError),
    /// The map's values are not of the expected size, so the map has another layout.
    #[error("map values are {found} bytes, expected {expected}")]
    ValueSize {
        /// Value size in the kernel, in bytes.
        found: u32,
        /// Value size in the layout, in bytes.
        expected: u32,
    },
    /// The kernel refused: EINVAL if the map lacks `BPF_F_MMAPABLE` or is smaller, EPERM if the map is frozen.
    #[error("mapping {bytes} bytes: {cause}")]
    Map {
        /// Requested length.
        bytes: usize,
        /// Error of the kernel.
        cause: io::Error,
    },
    /// The kernel's clock could not be read, so no time was written to the map.
    #[error("reading the kernel's clock: {0}")]
    Clock(io::Error),
    /// Access outside the map: a defect of the caller, which must detect full tables before.
    #[error("byte {offset} of element {element} is outside a map of {elements} elements")]
    OutOfBounds {
        /// Element number.
        element: u32,
        /// Byte offset in the element.
        offset: usize,
        /// Elements in the map.
        elements: u32,
    },
}

/// A mmapable BPF array of `T`, by element number. Unmapped on drop; the map itself remains.
#[derive(Debug)]
pub struct MappedArray<T: Pod> {
    base: NonNull<u8>,
    elements: u32,
    bytes: usize,
    element: PhantomData<T>,
}

// SAFETY: the mapping belongs to this value alone and is only accessed by atomic operations.
unsafe impl<T: Pod> Send for MappedArray<T> {}
// SAFETY: every access through a shared reference is an atomic operation.
unsafe impl<T: Pod> Sync for MappedArray<T> {}

impl<T: Pod> MappedArray<T> {
    /// Distance between elements: the kernel rounds values up to 8 bytes.
    pub const STRIDE: usize = size_of::<T>().next_multiple_of(8);

    /// Compile-time check: elements consist of whole words, so that every byte belongs to one atomic.
    const WHOLE_WORDS: () = {
        assert!(size_of::<T>() > 0 && size_of::<T>().is_multiple_of(4), "whole words only");
        assert!(align_of::<T>() <= 8, "the kernel aligns elements to 8 bytes");
    };

    /// Maps all elements of a map, after checking its value size.
    ///
    /// # Errors
    /// The map has another value size, or cannot be mapped.
    pub fn new(map: &MapData) -> Result<Self, MmapError> {
        let info = map.info()?;
        let expected = size_of::<T>() as u32;
        if info.value_size() != expected {
            return Err(MmapError::ValueSize { found: info.value_size(), expected });
        }
        Self::from_fd(map.fd().as_fd(), info.max_entries())
    }

    /// Maps a map with values of one or several consecutive `T` each.
    ///
    /// # Errors
    /// The map's values are not a multiple of `T`, or it cannot be mapped.
    pub fn flat(map: &MapData) -> Result<Self, MmapError> {
        let info = map.info()?;
        let (found, each) = (info.value_size(), Self::STRIDE as u32);
        if found == 0 || !found.is_multiple_of(each) {
            return Err(MmapError::ValueSize { found, expected: each });
        }
        Self::from_fd(map.fd().as_fd(), info.max_entries().saturating_mul(found / each))
    }

    /// Maps the first `elements` elements of the map behind `fd`, which has values of type `T`.
    ///
    /// # Errors
    /// The map cannot be mapped or is smaller.
    pub fn from_fd(fd: BorrowedFd<'_>, elements: u32) -> Result<Self, MmapError> {
        const { Self::WHOLE_WORDS };
        let bytes = Self::STRIDE * elements as usize;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (shared, fd) = (libc::MAP_SHARED, fd.as_raw_fd());
        // SAFETY: a new shared mapping at an address that the kernel chooses, without aliases in Rust; the kernel
        // refuses lengths of zero or beyond the map.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, shared, fd, 0) };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => {
                Ok(Self { base, elements, bytes, element: PhantomData })
            }
            _ => Err(MmapError::Map { bytes, cause: io::Error::last_os_error() }),
        }
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> u32 {
        self.elements
    }

    /// Stores one aligned 32-bit word (release): `offset` in bytes from the start of the element.
    ///
    /// # Errors
    /// [`MmapError::OutOfBounds`]
    pub fn store_u32(&self, element: u32, offset: usize, value: u32) -> Result<(), MmapError> {
        self.word32(element, offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Stores one aligned 64-bit word (release).
    ///
    /// # Errors
    /// [`MmapError::OutOfBounds`]
    pub fn store_u64(&self, element: u32, offset: usize, value: u64) -> Result<(), MmapError> {
        self.word64(element, offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Loads one aligned 32-bit word (acquire).
    ///
    /// # Errors
    /// [`MmapError::OutOfBounds`]
    pub fn load_u32(&self, element: u32, offset: usize) -> Result<u32, MmapError> {
        Ok(self.word32(element, offset)?.load(Ordering::Acquire))
    }

    /// Loads one aligned 64-bit word (acquire).
    ///
    /// # Errors
    /// [`MmapError::OutOfBounds`]
    pub fn load_u64(&self, element: u32, offset: usize) -> Result<u64, MmapError> {
        Ok(self.word64(element, offset)?.load(Ordering::Acquire))
    }

    /// Replaces one aligned 64-bit word if its value is `current`; returns whether it was replaced.
    ///
    /// # Errors
    /// [`MmapError::OutOfBounds`]
    pub fn swap_u64(
        &self,
        element: u32,
        offset: usize,
        current: u64,
        new: u64,
    ) -> Result<bool, MmapError> {
        let word = self.word64(element, offset)?;
        Ok(word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }

    /// Writes a whole element word by word, visible in any order: for an element that no program reads yet, or with
    /// words that may change one by one. A later store of any word publishes the element.
    ///
    /// # Errors
    /// [`MmapError::OutOfBounds`]
    pub fn write_element(&self, element: u32, value: &T) -> Result<(), MmapError> {
        for index in 0..size_of::<T>() / 4 {
            let words = std::ptr::from_ref(value).cast::<u32>();
            // SAFETY: T is plain old data of whole 32-bit words (WHOLE_WORDS), index is inside.
            let at = unsafe { words.add(index) };
            // SAFETY: as for `at`.
            let word = unsafe { at.read_unaligned() };
            self.word32(element, index * 4)?.store(word, Ordering::Relaxed);
        }
        std::sync::atomic::fence(Ordering::Release);
        Ok(())
    }

    /// Reads a whole element. Each 32-bit word is consistent; the element is not, if a program writes to it meanwhile.
    ///
    /// # Errors
    /// [`MmapError::OutOfBounds`]
    pub fn read(&self, element: u32) -> Result<T, MmapError> {
        self.word32(element, 0)?;
        let mut value = std::mem::MaybeUninit::<T>::uninit();
        for index in 0..size_of::<T>() / 4 {
            let word = self.word32(element, index * 4)?.load(Ordering::Relaxed);
            // SAFETY: inside `value`, which is whole words (WHOLE_WORDS).
            let at = unsafe { value.as_mut_ptr().cast::<u32>().add(index) };
            // SAFETY: as for `at`.
            unsafe { at.write_unaligned(word) };
        }
        std::sync::atomic::fence(Ordering::Acquire);
        // SAFETY: every word was written, and T: Pod is valid for any bytes.
        Ok(unsafe { value.assume_init() })
    }

    /// All 64-bit words of the map in order, for scans of large tables. `None` unless elements are whole 64-bit words.
    #[must_use]
    pub fn words(&self) -> Option<&[AtomicU64]> {
        let whole = size_of::<T>().is_multiple_of(8);
        // SAFETY: the mapping is page aligned, `bytes` long, lives as long as self, and all other
        // accesses to it are atomic too.
        whole.then(|| unsafe {
            std::slice::from_raw_parts(self.base.as_ptr().cast(), self.bytes / 8)
        })
    }

    fn word32(&self, element: u32, offset: usize) -> Result<&AtomicU32, MmapError> {
        let at = self.position(element, offset, 4)?;
        // SAFETY: in bounds (position).
        let word = unsafe { self.base.as_ptr().add(at) };
        // SAFETY: aligned (position); the mapping lives as long as self.
        Ok(unsafe { AtomicU32::from_ptr(word.cast()) })
    }

    fn word64(&self, element: u32, offset: usize) -> Result<&AtomicU64, MmapError> {
        let at = self.position(element, offset, 8)?;
        // SAFETY: in bounds (position).
        let word = unsafe { self.base.as_ptr().add(at) };
        // SAFETY: aligned (position); the mapping lives as long as self.
        Ok(unsafe { AtomicU64::from_ptr(word.cast()) })
    }

    fn position(&self, element: u32, offset: usize, width: usize) -> Result<usize, MmapError> {
        let inside = offset.checked_add(width).is_some_and(|end| end <= size_of::<T>());
        if element >= self.elements || !inside || !offset.is_multiple_of(width) {
            return Err(MmapError::OutOfBounds { element, offset, elements: self.elements });
        }
        Ok(element as usize * Self::STRIDE + offset)
    }
}

impl<T: Pod> Drop for MappedArray<T> {
    fn drop(&mut self) {
        // SAFETY: base and bytes are those of mmap; no reference outlives self.
        let _ = unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use aya::maps::{Array, Map};

    use super::*;
    use crate::bpf::test_objects;

    const BPF_F_MMAPABLE: u32 = 1 << 10;

    fn array<T: Pod>(elements: u32, flags: u32) -> MapData {
        MapData::from_fd(test_objects::array(size_of::<T>() as u32, elements, flags)).unwrap()
    }

    fn kernel_view<T: Pod>(map: MapData) -> Array<MapData, T> {
        Array::try_from(Map::from_map_data(map).unwrap()).unwrap()
    }

    #[test]
    fn the_kernel_reads_stores_and_the_agent_reads_updates() {
        let map = array::<[u32; 3]>(100, BPF_F_MMAPABLE);
        let memory = MappedArray::<[u32; 3]>::new(&map).unwrap();
        let mut map = kernel_view::<[u32; 3]>(map);
        memory.write_element(99, &[1, 2, 3]).unwrap();
        memory.store_u32(98, 8, 7).unwrap();
        assert_eq!(map.get(&99, 0).unwrap(), [1, 2, 3]);
        assert_eq!(map.get(&98, 0).unwrap(), [0, 0, 7]);
        map.set(0, [9, 8, 7], 0).unwrap();
        assert_eq!(memory.read(0).unwrap(), [9, 8, 7]);
        assert_eq!(memory.load_u64(0, 0).unwrap(), 9 | 8 << 32);
    }

    #[test]
    fn swap_replaces_only_the_expected_word() {
        let map = array::<[u64; 4]>(2, BPF_F_MMAPABLE);
        let memory = MappedArray::<[u64; 4]>::new(&map).unwrap();
        memory.store_u64(1, 24, 5).unwrap();
        assert!(!memory.swap_u64(1, 24, 4, 6).unwrap());
        assert!(memory.swap_u64(1, 24, 5, 6).unwrap());
        assert_eq!(kernel_view::<[u64; 4]>(map).get(&1, 0).unwrap(), [0, 0, 0, 6]);
        assert_eq!(memory.words().unwrap().len(), 8);
        assert_eq!(memory.words().unwrap()[7].load(Ordering::Relaxed), 6);
    }

    #[test]
    fn a_value_may_hold_several_elements() {
        let map = array::<[u64; 6]>(2, BPF_F_MMAPABLE);
        let memory = MappedArray::<[u64; 3]>::flat(&map).unwrap();
        assert_eq!(memory.elements(), 4);
        memory.store_u64(3, 16, 9).unwrap();
        assert_eq!(kernel_view::<[u64; 6]>(map).get(&1, 0).unwrap(), [0, 0, 0, 0, 0, 9]);
        let odd = array::<[u64; 4]>(2, BPF_F_MMAPABLE);
        assert!(MappedArray::<[u64; 3]>::flat(&odd).is_err(), "not a whole number of elements");
    }

    #[test]
    fn refuses_access_outside_or_unaligned() {
        let map = array::<[u32; 3]>(2, BPF_F_MMAPABLE);
        let memory = MappedArray::<[u32; 3]>::new(&map).unwrap();
        assert!(memory.store_u32(2, 0, 1).is_err(), "element");
        assert!(memory.store_u32(1, 12, 1).is_err(), "padding of the stride");
        assert!(memory.store_u32(1, 2, 1).is_err(), "alignment");
        assert!(memory.store_u64(1, 8, 1).is_err(), "half outside");
        assert!(memory.store_u32(1, usize::MAX - 1, 1).is_err(), "overflow");
        assert!(memory.words().is_none(), "elements are not whole 64-bit words");
    }

    #[test]
    fn refuses_maps_of_another_shape() {
        let plain = array::<u64>(8, 0);
        assert!(MappedArray::<u64>::new(&plain).is_err(), "not mmapable");
        let small = array::<u64>(8, BPF_F_MMAPABLE);
        assert!(MappedArray::<u64>::from_fd(small.fd().as_fd(), 100_000).is_err(), "beyond");
        assert!(MappedArray::<u64>::from_fd(small.fd().as_fd(), 0).is_err(), "nothing");
        let error = MappedArray::<u32>::new(&small).unwrap_err();
        assert!(matches!(error, MmapError::ValueSize { found: 8, expected: 4 }), "{error}");
    }
}
