//! Manifests read once, for commands that answer and end.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use netpold_core::model::Change;

use crate::printable::printable;
use crate::source::convert::DEFAULT_NAMESPACE;
use crate::source::manifests;

/// The objects of a directory. What of them was not understood goes to standard error, after the name
/// of the directory.
///
/// # Errors
/// The directory, or a file in it, cannot be read: without it not everything is known.
pub fn read_directory(directory: &Path) -> Result<Vec<Change>> {
    read_directory_in(directory, DEFAULT_NAMESPACE)
}

/// The same; objects that name no namespace are in that one.
///
/// # Errors
/// As [`read_directory`].
pub fn read_directory_in(directory: &Path, namespace: &str) -> Result<Vec<Change>> {
    let (changes, status) = manifests::read_once_in(directory, namespace)?;
    for problem in &status.problems {
        let text = directory.join(problem.to_string());
        anstream::eprintln!("netpold: {}", printable(&text.to_string_lossy()));
    }
    let unread = status.files.iter().filter(|file| !file.current);
    let unread: Vec<&str> = unread.map(|file| file.name.as_str()).collect();
    if !unread.is_empty() {
        let (directory, unread) = (directory.display(), unread.join(", "));
        bail!("{directory}: not everything is known without {unread}: correct or remove it");
    }
    Ok(changes)
}

/// The objects of a directory, or of one file. Those that name no namespace are in that one.
///
/// # Errors
/// As [`read_directory`].
pub fn read(path: &Path, namespace: &str) -> Result<Vec<Change>> {
    if path.is_dir() {
        return read_directory_in(path, namespace);
    }
    let name = path.display().to_string();
    let bytes = fs::read(path).with_context(|| format!("{name} cannot be read"))?;
    let read = manifests::read_text_in(&name, &bytes, namespace);
    let (changes, problems) =
        read.map_err(|error| anyhow::anyhow!("{name}:{}: {}", error.line, error.reason))?;
    for problem in &problems {
        anstream::eprintln!("netpold: {}", printable(&problem.to_string()));
    }
    Ok(changes)
}
