//! Manifests read once, for commands that answer and exit.

mod args;
mod input;
mod owner;
mod ranges;
mod subdirectories;
mod templates;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use netpold_api::source::SourceProblem;
use netpold_core::cluster::ObjectKey;
use netpold_core::model::Change;
use netpold_core::printable::printable;
use netpold_kube::manifests::{self, Review, Undecoded};

pub use args::{Recursive, ReviewArgs};
pub use input::{STANDARD_INPUT, claim_standard_input, content, is_standard_input, standard_input};
pub use owner::{Owner, add_replicas, is_generated, is_run, owner, pods_named, resolve};
pub use ranges::ranges;
pub use templates::{apply, is_template, pods_of, stand_in};

/// Files that `kubectl kustomize` renders a directory by.
const KUSTOMIZATIONS: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// Most unread documents that an answer names; standard error has all that the reader names.
const UNREAD: usize = 20;

/// Objects of a text or a directory, with stand-ins for pod templates.
#[derive(Clone, Debug, Default)]
pub struct Reviewed {
    /// Objects that policies depend on.
    pub objects: Vec<Change>,
    /// Parts of objects that cannot be interpreted, with the path of the file.
    pub problems: Vec<SourceProblem>,
    /// Objects among the problems that count as absent, and pod templates without their labels and ports.
    pub undecoded: Vec<Undecoded>,
    /// Documents and files that cannot be read, with the path of the file; they are among the problems, too.
    pub unread: Vec<SourceProblem>,
    /// Subdirectories with manifests, which are not read, as a text; absent without any.
    pub subdirectories: Option<String>,
}

impl Reviewed {
    /// Takes the result of a reading; `hint` returns the hint for unread documents of a file.
    fn from_review(review: Review, hint: impl Fn(&str) -> &'static str) -> Self {
        let Review { objects, mut problems, undecoded, mut unread } = review;
        let hints: BTreeMap<String, &str> = {
            let files: BTreeSet<&String> = unread.iter().map(|problem| &problem.file).collect();
            files.into_iter().map(|file| (file.clone(), hint(file))).collect()
        };
        let former: BTreeSet<SourceProblem> = unread.iter().cloned().collect();
        let problems_of_unread = problems.iter_mut().filter(|it| former.contains(it));
        for problem in unread.iter_mut().chain(problems_of_unread) {
            problem.text.push_str(hints.get(&problem.file).copied().unwrap_or_default());
        }
        Self { objects, problems, undecoded, unread, subdirectories: None }
    }

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

    /// Returns the parts that an answer about these objects lacks: documents that cannot be read, objects that cannot be
    /// decoded, and the subdirectories.
    #[must_use]
    pub fn gaps(&self) -> Vec<String> {
        let undecoded = self.undecoded.iter().map(|it| it.problem.to_string());
        unread(&self.unread).chain(undecoded).chain(self.subdirectories.clone()).collect()
    }
}

/// Describes documents that cannot be read: the first ones, and the number of the others.
pub fn unread(documents: &[SourceProblem]) -> impl Iterator<Item = String> {
    let named = documents.iter().take(UNREAD).map(ToString::to_string);
    let more = documents.len().saturating_sub(UNREAD);
    let more = (more > 0).then(|| format!("{more} more documents that cannot be read"));
    named.chain(more)
}

/// Reads the objects of a directory, or of standard input (`-`), with stand-ins for pod templates: see [`stand_in`].
/// Objects without a namespace get `namespace`; `option` names the path in errors. Documents and files that cannot be read
/// are among the problems.
///
/// # Errors
/// The directory or standard input cannot be read.
pub fn review_directory(
    option: &'static str,
    path: &Path,
    namespace: &str,
    depth: Recursive,
) -> Result<Reviewed> {
    if is_standard_input(path) {
        return Ok(review_text(STANDARD_INPUT, &standard_input(option)?, namespace));
    }
    let review = manifests::review_once(path, namespace, depth.recursive)?;
    let mut reviewed = Reviewed::from_review(review, |file| match path.join(file) {
        file if input::is_bounded_file(&file) => {
            content(&file).map_or("", |text| template_hint(&text))
        }
        _ => "",
    });
    let of_undecoded = reviewed.undecoded.iter_mut().map(|it| &mut it.problem);
    let problems = reviewed.problems.iter_mut().chain(&mut reviewed.unread).chain(of_undecoded);
    for SourceProblem { file, .. } in problems {
        *file = path.join(&*file).to_string_lossy().into_owned();
    }
    reviewed.subdirectories = subdirectories::text(path, depth)?;
    Ok(reviewed)
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
    Ok(review_text(&path.display().to_string(), &content(path)?, namespace))
}

/// Reads the objects of a text, and reports its problems on standard error.
///
/// # Errors
/// A document cannot be read.
pub fn read_text(name: &str, bytes: &[u8], namespace: &str) -> Result<Vec<Change>> {
    let reviewed = review_text(name, bytes, namespace);
    match reviewed.unread.first() {
        Some(problem) => Err(anyhow!("{problem}")),
        None => Ok(reviewed.reported().objects),
    }
}

/// Reads the objects of a text, like [`review_directory`].
#[must_use]
pub fn review_text(name: &str, bytes: &[u8], namespace: &str) -> Reviewed {
    let review = manifests::review_text(name, bytes, namespace);
    Reviewed::from_review(review, |_| template_hint(bytes))
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

/// Returns the sorted manifests of a directory that can be read, or the one file.
///
/// # Errors
/// The directory cannot be read.
pub fn files(path: &Path, depth: Recursive) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let tree = manifests::tree(path, depth.recursive)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let files = tree.files.iter().map(|file| path.join(file));
    Ok(files.filter(|file| input::is_bounded_file(file)).collect())
}

/// Returns the name of a file in a directory: its path from there, else the last part of its path.
#[must_use]
pub fn name_within(directory: &Path, file: &Path) -> String {
    let within = file.strip_prefix(directory).ok().filter(|name| !name.as_os_str().is_empty());
    let last = || file.file_name().map(Path::new);
    within.or_else(last).unwrap_or(file).to_string_lossy().into_owned()
}
