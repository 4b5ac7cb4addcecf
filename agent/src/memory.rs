//! The agent's own memory: what it does not need goes back to the kernel.

use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process};
use tracing::debug;

/// What is freed goes back at once. The C library would keep an arena for each few threads, and more and more of
/// what was freed in the largest pieces: after the start alone 20 MB.
#[cfg(target_env = "gnu")]
pub(crate) fn keep_little_freed() {
    for (parameter, value) in [
        (libc::M_ARENA_MAX, 2),
        (libc::M_MMAP_THRESHOLD, 128 << 10),
        (libc::M_TRIM_THRESHOLD, 1 << 20),
    ] {
        // SAFETY: mallopt(3) takes no pointers. Where it refuses, more stays.
        let _ = unsafe { libc::mallopt(parameter, value) };
    }
}

#[cfg(not(target_env = "gnu"))]
pub(crate) fn keep_little_freed() {}

/// After the start, gives back what it used: what it freed, and the pages of the binary.
pub(crate) fn give_back_the_start() {
    // SAFETY: malloc_trim(3) takes no pointers.
    #[cfg(target_env = "gnu")]
    let _ = unsafe { libc::malloc_trim(0) };
    leave_binary_to_the_cache();
}

/// Leaves the pages of the binary to the page cache, among the first that the kernel takes when it needs room. The
/// start reads most of the binary (the programs in it, their loading, the first compilation); an agent at work
/// reads little, which comes back with page faults that read no disk. Otherwise all of it would count as the agent's
/// working set for as long as it runs.
fn leave_binary_to_the_cache() {
    match binary() {
        Ok(maps) => maps.iter().for_each(leave),
        Err(error) => debug!(%error, "the pages of the binary stay"),
    }
}

/// The parts of the binary that are in memory as they are in the file.
fn binary() -> procfs::ProcResult<Vec<MemoryMap>> {
    let process = Process::myself()?;
    let binary = MMapPath::Path(process.exe()?);
    let unchanged = |map: &MemoryMap| {
        // What was writable once and relocated then is this process's own copy, and would be lost.
        let copies = ["Anonymous", "Swap"].map(|kind| map.extension.map.get(kind));
        map.pathname == binary
            && !map.perms.contains(MMPermissions::WRITE)
            && copies == [Some(&0); 2]
    };
    Ok(process.smaps()?.into_iter().filter(unchanged).collect())
}

fn leave(map: &MemoryMap) {
    let (begin, end) = map.address;
    // Before Linux 5.4 the first is not known: then the pages stay where the kernel has them in its lists.
    for advice in [libc::MADV_COLD, libc::MADV_DONTNEED] {
        let address = begin as *mut libc::c_void;
        // SAFETY: pages of a file that nothing in this process has changed or can change; who reads them gets
        // them from the file again.
        let _ = unsafe { libc::madvise(address, (end - begin) as usize, advice) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the binary that this process has mapped.
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
