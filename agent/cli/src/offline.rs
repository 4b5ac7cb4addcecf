//! Manifests read once, for commands that answer and exit.

mod input;
mod owner;
mod ranges;
mod templates;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use netpold_core::model::Change;
use netpold_core::printable::printable;
use netpold_kube::manifests;

pub use input::{STANDARD_INPUT, claim_standard_input, is_standard_input, standard_input};
pub use owner::{Owner, owner, pods_named, resolve};
pub use ranges::ranges;
pub use templates::{apply, is_template, pods_of, stand_in};

/// Reads the objects of a directory, or of standard input (`-`), with stand-ins for pod templates: see [`stand_in`].
/// Objects without a namespace get `namespace`; `option` names the path in errors. Parts of objects that cannot be
/// interpreted are reported on standard error, with file and line.
///
/// # Errors
/// The directory, or a file in it, cannot be read: the objects would be incomplete.
pub fn read_directory(option: &'static str, path: &Path, namespace: &str) -> Result<Vec<Change>> {
    if is_standard_input(path) {
        return read_text(STANDARD_INPUT, &standard_input(option)?, namespace);
    }
    let (changes, status) = manifests::review_once(path, namespace)?;
    for problem in &status.problems {
        let text = path.join(problem.to_string());
        anstream::eprintln!("netpold: {}", printable(&text.to_string_lossy()));
    }
    let unread = status.files.iter().filter(|file| !file.current);
    let unread: Vec<&str> = unread.map(|file| file.name.as_str()).collect();
    if !unread.is_empty() {
        let (directory, unread) = (path.display(), unread.join(", "));
        bail!("{directory}: incomplete without {unread}: correct or remove it");
    }
    Ok(changes)
}

/// Reads the objects of a directory, of one file or of standard input, like [`read_directory`].
///
/// # Errors
/// As [`read_directory`].
pub fn read(option: &'static str, path: &Path, namespace: &str) -> Result<Vec<Change>> {
    if is_standard_input(path) || path.is_dir() {
        return read_directory(option, path, namespace);
    }
    let name = path.display().to_string();
    let bytes = fs::read(path).with_context(|| format!("cannot read {name}"))?;
    read_text(&name, &bytes, namespace)
}

/// Reads the objects of a text, like [`read_directory`].
///
/// # Errors
/// The text is not YAML or JSON of Kubernetes objects.
pub fn read_text(name: &str, bytes: &[u8], namespace: &str) -> Result<Vec<Change>> {
    let read = manifests::review_text(name, bytes, namespace);
    let (changes, problems) =
        read.map_err(|error| anyhow!("{name}:{}: {}", error.line, error.reason))?;
    for problem in &problems {
        anstream::eprintln!("netpold: {}", printable(&problem.to_string()));
    }
    Ok(changes)
}
