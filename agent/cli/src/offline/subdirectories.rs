//! Subdirectories of a directory of manifests, which are not read.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use netpold_kube::manifests::is_manifest;

/// Most subdirectories that are named.
const NAMED: usize = 5;
/// Deepest level of subdirectories that are searched for manifests.
const DEPTH: usize = 16;

/// Describes the subdirectories with manifests; `None` without any. Hidden ones, and links, are left out.
///
/// # Errors
/// The directory cannot be read.
pub(super) fn text(directory: &Path) -> Result<Option<String>> {
    let mut found = Vec::new();
    let shown = || directory.display().to_string();
    for entry in fs::read_dir(directory).with_context(shown)? {
        let entry = entry.with_context(shown)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let files = count(&entry.path(), DEPTH);
            if files > 0 {
                found.push((name, files));
            }
        }
    }
    found.sort();
    let text = |(name, files): &(String, usize)| match files {
        1 => format!("{name} (1 file)"),
        files => format!("{name} ({files} files)"),
    };
    let named: Vec<String> = found.iter().take(NAMED).map(text).collect();
    let more = match found.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let word = if found.len() == 1 { "subdirectory" } else { "subdirectories" };
    let text = || {
        let (directory, named) = (directory.display(), named.join(", "));
        format!("{directory}: {word} not read: {named}{more}; give all files on standard input")
    };
    Ok((!found.is_empty()).then(text))
}

/// Counts the manifests below a directory; a directory that cannot be read counts as one file.
fn count(directory: &Path, depth: usize) -> usize {
    let Ok(entries) = fs::read_dir(directory) else { return 1 };
    let mut files = 0;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            if depth > 1 && !name.as_encoded_bytes().starts_with(b".") {
                files += count(&entry.path(), depth - 1);
            }
        } else if is_manifest(&name.to_string_lossy()) {
            files += 1;
        }
    }
    files
}
