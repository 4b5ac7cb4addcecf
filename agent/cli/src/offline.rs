//! Manifests read once, for commands that answer and exit.

mod input;
mod owner;
mod ranges;
mod subdirectories;
mod templates;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use netpold_api::source::SourceProblem;
use netpold_core::cluster::ObjectKey;
use netpold_core::model::Change;
use netpold_core::printable::printable;
use netpold_kube::manifests::{self, Review, Undecoded};

pub use input::{STANDARD_INPUT, claim_standard_input, content, is_standard_input, standard_input};
pub use owner::{Owner, add_replicas, is_generated, is_run, owner, pods_named, resolve};
pub use ranges::ranges;
pub use templates::{apply, is_template, pods_of, stand_in};

/// Files that `kubectl kustomize` renders a directory by.
const KUSTOMIZATIONS: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// Flag of commands that read directories.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Recursive {
    /// Read the files of subdirectories, too
    #[arg(short = 'R', long, env = "NETPOLD_RECURSIVE")]
    pub recursive: bool,
}

/// Objects of a text or a directory, with stand-ins for pod templates.
#[derive(Clone, Debug, Default)]
pub struct Reviewed {
    /// Objects that policies depend on.
    pub objects: Vec<Change>,
    /// Parts of objects that cannot be interpreted, with the path of the file.
    pub problems: Vec<SourceProblem>,
    /// Objects among the problems that count as absent, and pod templates without their labels and ports.
    pub undecoded: Vec<Undecoded>,
    /// Subdirectories with manifests, which are not read, as a text; absent without any.
    pub subdirectories: Option<String>,
}

impl Reviewed {
    /// Reports the problems on standard error.
    #[must_use]
    pub fn reported(self) -> Self {
        for problem in &self.problems {
            anstream::eprintln!("netpold: {}", printable(&problem.to_string()));
        }
        self
    }

    /// Reports the problems and the subdirectories that are not read on standard error.
    #[must_use]
    pub fn reported_with_subdirectories(self) -> Self {
        let reviewed = self.reported();
        if let Some(text) = &reviewed.subdirectories {
            anstream::eprintln!("netpold: {}", printable(text));
        }
        reviewed
    }

    /// Returns the parts that an answer about these objects lacks: objects that cannot be decoded, and the
    /// subdirectories.
    #[must_use]
    pub fn gaps(&self) -> Vec<String> {
        let undecoded = self.undecoded.iter().map(|it| it.problem.to_string());
        undecoded.chain(self.subdirectories.clone()).collect()
    }
}

/// Reads the objects of a directory, or of standard input (`-`), with stand-ins for pod templates: see [`stand_in`].
/// Objects without a namespace get `namespace`; `option` names the path in errors.
///
/// # Errors
/// The directory, or a file in it, cannot be read: the objects would be incomplete.
pub fn review_directory(
    option: &'static str,
    path: &Path,
    namespace: &str,
    depth: Recursive,
) -> Result<Reviewed> {
    let (reviewed, unread) = review_readable(option, path, namespace, depth)?;
    if !unread.is_empty() {
        let _ = reviewed.reported();
        let (directory, unread) = (path.display(), unread.join(", "));
        bail!("{directory}: incomplete without {unread}: correct or remove it");
    }
    Ok(reviewed)
}

/// Reads the objects of a directory like [`review_directory`], without the documents that cannot be read, which are among
/// the problems. Returns the names of their files, too.
///
/// # Errors
/// The directory cannot be read, or the text of standard input is not YAML or JSON of Kubernetes objects.
pub fn review_readable(
    option: &'static str,
    path: &Path,
    namespace: &str,
    depth: Recursive,
) -> Result<(Reviewed, Vec<String>)> {
    if is_standard_input(path) {
        let reviewed = review_text(STANDARD_INPUT, &standard_input(option)?, namespace)?;
        return Ok((reviewed, Vec::new()));
    }
    let review = manifests::review_once(path, namespace, depth.recursive)?;
    let Review { objects, mut problems, mut undecoded, unread } = review;
    let of_undecoded = undecoded.iter_mut().map(|it| &mut it.problem);
    for SourceProblem { file, .. } in problems.iter_mut().chain(of_undecoded) {
        *file = path.join(&*file).to_string_lossy().into_owned();
    }
    let subdirectories = subdirectories::text(path, depth)?;
    Ok((Reviewed { objects, problems, undecoded, subdirectories }, unread))
}

/// Reads the objects of a directory, of one file or of standard input, like [`review_directory`].
///
/// # Errors
/// As [`review_directory`].
pub fn review(
    option: &'static str,
    path: &Path,
    namespace: &str,
    depth: Recursive,
) -> Result<Reviewed> {
    if is_standard_input(path) || path.is_dir() {
        return review_directory(option, path, namespace, depth);
    }
    review_text(&path.display().to_string(), &content(path)?, namespace)
}

/// Reads the objects of a text, and reports its problems on standard error.
///
/// # Errors
/// As [`review_text`].
pub fn read_text(name: &str, bytes: &[u8], namespace: &str) -> Result<Vec<Change>> {
    review_text(name, bytes, namespace).map(|reviewed| reviewed.reported().objects)
}

/// Reads the objects of a text, like [`review_directory`].
///
/// # Errors
/// The text is not YAML or JSON of Kubernetes objects.
pub fn review_text(name: &str, bytes: &[u8], namespace: &str) -> Result<Reviewed> {
    let read = manifests::review_text(name, bytes, namespace);
    let Review { objects, problems, undecoded, .. } = read.map_err(|error| {
        anyhow!("{name}:{}: {}{}", error.line, error.reason, template_hint(bytes))
    })?;
    Ok(Reviewed { objects, problems, undecoded, subdirectories: None })
}

/// Removes the objects that others replace.
pub fn replace(undecoded: &mut Vec<Undecoded>, others: &[Change]) {
    let others: BTreeSet<ObjectKey> = others.iter().map(ObjectKey::of).collect();
    undecoded.retain(|it| !it.key.as_ref().is_some_and(|key| others.contains(key)));
}

/// Refuses a directory with files that `kubectl kustomize` changes before they are applied.
///
/// # Errors
/// The directory, or a subdirectory that is read, contains a kustomization.
pub fn refuse_kustomization(
    command: &str,
    option: &str,
    path: &Path,
    depth: Recursive,
) -> Result<()> {
    if is_standard_input(path) {
        return Ok(());
    }
    let mut directories = vec![path.to_owned()];
    // A directory that cannot be read fails when its objects are read.
    if depth.recursive
        && let Ok(tree) = manifests::tree(path, true)
    {
        directories.extend(tree.directories.iter().map(|directory| path.join(directory)));
    }
    let rendered = directories.iter().find_map(|directory| {
        let name = KUSTOMIZATIONS.iter().find(|name| directory.join(name).is_file())?;
        Some((directory, name))
    });
    let Some((path, name)) = rendered else { return Ok(()) };
    let path = path.display();
    bail!(
        "{option} {path}: {name} is not rendered: kubectl kustomize {path} | netpold {command} ... {option} -"
    )
}

/// Returns a hint for the error of a text that is a template of a chart.
#[must_use]
pub fn template_hint(text: &[u8]) -> &'static str {
    match text.windows(2).any(|pair| pair == b"{{") {
        true => "; it looks like a template: helm template renders it",
        false => "",
    }
}

/// Returns the sorted manifests of a directory, or the one file.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn files(path: &Path, depth: Recursive) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let tree = manifests::tree(path, depth.recursive)
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(tree.files.iter().map(|file| path.join(file)).collect())
}

/// Returns the name of a file in a directory: its path from there, else the last part of its path.
pub(crate) fn name_within(directory: &Path, file: &Path) -> String {
    let within = file.strip_prefix(directory).ok().filter(|name| !name.as_os_str().is_empty());
    let last = || file.file_name().map(Path::new);
    within.or_else(last).unwrap_or(file).to_string_lossy().into_owned()
}
