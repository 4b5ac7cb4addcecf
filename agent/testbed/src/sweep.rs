//! Removal of what killed processes have left.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{agent, netns};

/// Removes the namespaces and agent directories that processes which no longer live have left
/// behind. Called at the start of a test it keeps a killed run from leaking into the next; it
/// touches nothing of a living process, so parallel runs do not disturb each other.
pub fn sweep() {
    for path in stale(Path::new(netns::DIRECTORY)) {
        netns::remove(&path);
    }
    for path in stale(&std::env::temp_dir()) {
        agent::clean(&path);
    }
}

/// Entries of a directory whose names carry the id of a process that is gone.
fn stale(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let dead = |pid: u32| !Path::new("/proc").join(pid.to_string()).exists();
    entries
        .flatten()
        .filter(|entry| entry.file_name().to_str().and_then(owner).is_some_and(dead))
        .map(|entry| entry.path())
        .collect()
}

/// The process that made the namespace of this name; `None` if it is not one of ours.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix("np-")?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::owner;

    #[test]
    fn only_our_names_have_an_owner() {
        assert_eq!(owner("np-4711-0-node-a"), Some(4711));
        assert_eq!(owner("np-x-0"), None);
        assert_eq!(owner("cni-4711"), None);
        assert_eq!(owner("np-"), None);
    }
}
