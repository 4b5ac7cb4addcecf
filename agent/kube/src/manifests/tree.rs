//! Files of a directory of manifests and of its subdirectories.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Entries of a directory, by their paths relative to it, sorted. Hidden ones are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Files that are manifests by their names, also by a symlink to a file.
    pub files: Vec<PathBuf>,
    /// Subdirectories.
    pub directories: Vec<PathBuf>,
    /// Symlinks to directories: never followed, since they may form a loop.
    pub links: Vec<PathBuf>,
}

/// Lists a directory; if `is_deep` also its subdirectories.
///
/// # Errors
/// The directory or one of its subdirectories cannot be read: the objects would be incomplete.
pub fn tree(root: &Path, is_deep: bool) -> io::Result<Tree> {
    let mut tree = Tree::default();
    let mut left = vec![PathBuf::new()];
    while let Some(directory) = left.pop() {
        let path = root.join(&directory);
        let named = |error: io::Error| match directory.as_os_str().is_empty() {
            true => error,
            false => io::Error::new(error.kind(), format!("{}: {error}", directory.display())),
        };
        for entry in fs::read_dir(&path).map_err(named)? {
            let entry = entry.map_err(named)?;
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let kind = match entry.file_type() {
                // The file was removed after it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                kind => kind.map_err(named)?,
            };
            let relative = directory.join(&name);
            if kind.is_symlink() && entry.path().is_dir() {
                tree.links.push(relative);
            } else if kind.is_dir() {
                if is_deep {
                    left.push(relative.clone());
                }
                tree.directories.push(relative);
            } else if is_manifest(&name.to_string_lossy()) {
                tree.files.push(relative);
            }
        }
    }
    tree.files.sort();
    tree.directories.sort();
    tree.links.sort();
    Ok(tree)
}

/// Returns whether a name is `*.yaml`, `*.yml` or `*.json`, and not hidden.
#[must_use]
pub fn is_manifest(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|e| e.to_str());
    !name.starts_with('.') && matches!(extension, Some("yaml" | "yml" | "json"))
}
