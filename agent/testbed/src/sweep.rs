//! Removal of remains of killed processes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{agent, netns};

/// Removes the namespaces and agent directories of processes that no longer exist. A call at the start of a test keeps
/// a killed run from affecting the next; objects of living processes stay, so parallel runs do not disturb each other.
pub fn sweep() {
    for path in stale(Path::new(netns::DIRECTORY)) {
        netns::remove(&path);
    }
    for path in stale(&std::env::temp_dir()) {
        agent::clean(&path);
    }
}

/// Entries of a directory with the id of an ended process in their names.
fn stale(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let dead = |pid: u32| !Path::new("/proc").join(pid.to_string()).exists();
    entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().and_then(owner).is_some_and(dead))
        .map(|entry| entry.path())
        .collect()
}

/// Id of the process that created the namespace or directory of this name; `None` if the name is not a testbed's.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix("np-")?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::owner;

    #[test]
    fn only_names_of_the_testbed_have_an_owner() {
        assert_eq!(owner("np-4711-0-node-a"), Some(4711));
        assert_eq!(owner("np-x-0"), None);
        assert_eq!(owner("cni-4711"), None);
        assert_eq!(owner("np-"), None);
    }
}
