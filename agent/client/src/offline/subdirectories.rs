//! Subdirectories of a directory of manifests that are not read.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use netpold_kube::manifests::{is_manifest, tree};

use super::args::Recursive;

/// Most subdirectories that are named.
const NAMED: usize = 5;
/// Deepest level of subdirectories that are searched for manifests.
const DEPTH: usize = 16;
/// Most entries of subdirectories that are searched: a link may lead anywhere.
const ENTRIES: usize = 10_000;

/// Describes the directories with manifests that are not read: subdirectories unless `depth` includes them, and links to
/// directories elsewhere. `None` without any. Hidden ones are left out.
///
/// # Errors
/// The directory cannot be read.
pub(super) fn text(directory: &Path, depth: Recursive) -> Result<Option<String>> {
    let tree = tree(directory, depth.recursive)
        .with_context(|| format!("cannot read {}", directory.display()))?;
    let root = fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    // A link to a directory that is read adds nothing. Hidden directories are not read.
    let is_read = |target: &Path| {
        let below = target.strip_prefix(&root);
        target == root || depth.recursive && below.is_ok_and(|below| !is_hidden(below))
    };
    let is_elsewhere = |link: &&PathBuf| {
        fs::canonicalize(directory.join(link)).is_ok_and(|target| !is_read(&target))
    };
    let (unread, word, hint) = match depth.recursive {
        true => (Vec::new(), ["link", "links"], "links to directories are not followed"),
        false => (tree.directories, ["subdirectory", "subdirectories"], "-R reads them, too"),
    };
    let unread = unread.iter().chain(tree.links.iter().filter(is_elsewhere));
    let mut found: Vec<(String, usize)> = unread
        .map(|name| {
            let mut left = ENTRIES;
            let files = count(&directory.join(name), DEPTH, &mut left);
            (name.display().to_string(), files)
        })
        .filter(|(_, files)| *files > 0)
        .collect();
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
    let word = word[usize::from(found.len() != 1)];
    let text = || {
        let (directory, named) = (directory.display(), named.join(", "));
        format!("{directory}: {word} not read: {named}{more}; {hint}")
    };
    Ok((!found.is_empty()).then(text))
}

/// Counts the manifests below a directory; a directory that cannot be read counts as one file. Links are not followed.
fn count(directory: &Path, depth: usize, left: &mut usize) -> usize {
    let Ok(entries) = fs::read_dir(directory) else { return 1 };
    let mut files = 0;
    for entry in entries.flatten() {
        let Some(rest) = left.checked_sub(1) else { return files };
        *left = rest;
        let name = entry.file_name();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            if depth > 1 && !name.as_encoded_bytes().starts_with(b".") {
                files += count(&entry.path(), depth - 1, left);
            }
        } else if is_manifest(&name.to_string_lossy()) {
            files += 1;
        }
    }
    files
}

/// Whether a part of a path begins with a dot.
fn is_hidden(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str().as_encoded_bytes().starts_with(b"."))
}
