//! Memory of the agent itself: unneeded pages go back to the kernel.

use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process};
use tracing::debug;

/// Makes the C library return freed memory at once. By default it keeps an arena for each few threads, and raises its
/// mmap threshold with the largest freed block: 20 MB after the start alone.
#[cfg(target_env = "gnu")]
pub(crate) fn keep_little_freed() {
    for (parameter, value) in [
        (libc::M_ARENA_MAX, 2),
        (libc::M_MMAP_THRESHOLD, 128 << 10),
        (libc::M_TRIM_THRESHOLD, 1 << 20),
    ] {
        // SAFETY: mallopt(3) takes no pointers. If it fails, more memory stays.
        let _ = unsafe { libc::mallopt(parameter, value) };
    }
}

#[cfg(not(target_env = "gnu"))]
pub(crate) fn keep_little_freed() {}

/// Gives back the memory of the start: freed heap, and the pages of the binary.
pub(crate) fn give_back_the_start() {
    // SAFETY: malloc_trim(3) takes no pointers.
    #[cfg(target_env = "gnu")]
    let _ = unsafe { libc::malloc_trim(0) };
    leave_binary_to_the_cache();
}

/// Leaves the pages of the binary to the page cache, among the first candidates for reclaim. The start reads most of
/// the binary (the embedded programs, their loading, the first compilation). Later the agent needs little of it, which
/// comes back by page faults without disk reads. Otherwise the whole binary would count as the agent's working set.
fn leave_binary_to_the_cache() {
    match binary() {
        Ok(maps) => maps.iter().for_each(discard_pages),
        Err(error) => debug!(%error, "cannot release the pages of the binary"),
    }
}

/// Returns the mappings of the binary with the unchanged content of the file.
fn binary() -> procfs::ProcResult<Vec<MemoryMap>> {
    let process = Process::myself()?;
    let binary = MMapPath::Path(process.exe()?);
    let unchanged = |map: &MemoryMap| {
        // Relocated pages that were writable once are private copies, and would be lost.
        let copies = ["Anonymous", "Swap"].map(|kind| map.extension.map.get(kind));
        map.pathname == binary
            && !map.perms.contains(MMPermissions::WRITE)
            && copies == [Some(&0); 2]
    };
    Ok(process.smaps()?.into_iter().filter(unchanged).collect())
}

fn discard_pages(map: &MemoryMap) {
    let (begin, end) = map.address;
    // Linux before 5.4 has no MADV_COLD: the pages then keep their place in the kernel's lists.
    for advice in [libc::MADV_COLD, libc::MADV_DONTNEED] {
        let address = begin as *mut libc::c_void;
        // SAFETY: file pages that this process has not changed and cannot change; later reads get them from the file.
        let _ = unsafe { libc::madvise(address, (end - begin) as usize, advice) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the resident bytes of the binary.
    fn resident() -> u64 {
        let size = |map: &MemoryMap| map.extension.map.get("Rss").copied().unwrap();
        binary().unwrap().iter().map(size).sum()
    }

    #[test]
    fn the_binary_leaves_and_comes_back_as_it_is_needed() {
        let maps = binary().unwrap();
        let executable = |map: &MemoryMap| map.perms.contains(MMPermissions::EXECUTE);
        assert!(maps.iter().any(executable), "the code is part of it");
        let before = resident();
        leave_binary_to_the_cache();
        let after = resident();
        assert!(after < before, "{before} bytes before, {after} after");
    }
}
