//! Real files and real notifications. The arrival of a change is asserted, with a generous limit; its speed is measured
//! elsewhere.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;

const LIMIT: Duration = Duration::from_secs(10);
/// Long enough for an unexpected change to be reported.
const QUIET: Duration = Duration::from_millis(400);

struct Fixture {
    dir: TempDir,
    source: ObjectStream,
}

impl Fixture {
    /// Watches a directory with these files; returns the changes of the first batch.
    fn new(files: &[(&str, &str)]) -> (Self, Vec<String>) {
        let dir = TempDir::new().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let source = watch(dir.path()).unwrap();
        let mut fixture = Self { dir, source };
        let batch = fixture.source.batches.blocking_recv().unwrap();
        (fixture, said(&batch))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Puts a file there in one step.
    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(".new"), text).unwrap();
        fs::rename(self.path(".new"), self.path(name)).unwrap();
    }

    fn next_within(&mut self, limit: Duration) -> Option<Batch> {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            match self.source.batches.try_recv() {
                Ok(batch) => return Some(batch),
                Err(mpsc::error::TryRecvError::Empty) => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(e) => panic!("{e}"),
            }
        }
        None
    }

    /// Returns the changes of the next batch.
    fn next(&mut self) -> Vec<String> {
        said(&self.next_within(LIMIT).expect("no batch came"))
    }

    #[track_caller]
    fn nothing_comes(&mut self) {
        let batch = self.next_within(QUIET);
        assert!(batch.is_none(), "{batch:?}");
    }

    /// Waits for a status.
    #[track_caller]
    fn status(&mut self, wanted: impl Fn(&SourceStatus) -> bool) -> SourceStatus {
        let until = Instant::now() + LIMIT;
        loop {
            let status = self.source.status.borrow().clone();
            if wanted(&status) {
                return status;
            }
            assert!(Instant::now() < until, "{status:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[track_caller]
    fn problem(&mut self, start: &str) -> SourceStatus {
        self.status(|s| s.problems.iter().any(|p| p.to_string().starts_with(start)))
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "of the many kinds, the ones this is about")]
fn said(batch: &Batch) -> Vec<String> {
    let text = |change: &Change| match change {
        Change::Namespace(namespace) => format!("+{}", namespace.name),
        Change::NamespaceGone(name) => format!("-{name}"),
        other => panic!("{other:?}"),
    };
    batch.changes.iter().map(text).collect()
}

fn namespace(name: &str) -> String {
    format!("---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n")
}

#[test]
fn everything_there_is_comes_first_and_in_sync() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("a.yaml"), namespace("a") + &namespace("b")).unwrap();
    fs::write(dir.path().join("c.yml"), namespace("c")).unwrap();
    let json = r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "d"}}"#;
    fs::write(dir.path().join("d.json"), json).unwrap();
    for ignored in [".hidden.yaml", "notes.txt", "e.yaml~", "README"] {
        fs::write(dir.path().join(ignored), namespace("z")).unwrap();
    }
    fs::create_dir(dir.path().join("sub.yaml")).unwrap();
    fs::write(dir.path().join("sub.yaml/z.yaml"), namespace("z")).unwrap();
    let mut source = watch(dir.path()).unwrap();
    let batch = source.batches.blocking_recv().unwrap();
    assert_eq!(said(&batch), ["+a", "+b", "+c", "+d"]);
    assert!(batch.in_sync);
}

#[test]
fn an_empty_directory_is_in_sync() {
    let dir = TempDir::new().unwrap();
    let batch = watch(dir.path()).unwrap().batches.blocking_recv().unwrap();
    assert!(batch.in_sync && batch.changes.is_empty());
}

#[test]
fn create_change_and_delete() {
    let (mut fixture, _) = Fixture::new(&[]);
    fixture.write("a.yaml", &namespace("a"));
    assert_eq!(fixture.next(), ["+a"]);
    fixture.write("a.yaml", &(namespace("a") + &namespace("b")));
    assert_eq!(fixture.next(), ["+b"]);
    // Same length, and perhaps within the same tick of the clock.
    fs::write(fixture.path("a.yaml"), namespace("a") + &namespace("c")).unwrap();
    assert_eq!(fixture.next(), ["-b", "+c"]);
    fs::remove_file(fixture.path("a.yaml")).unwrap();
    assert_eq!(fixture.next(), ["-a", "-c"]);
}

#[test]
fn renames() {
    let (mut fixture, _) = Fixture::new(&[("a.yaml", &namespace("a"))]);
    fs::rename(fixture.path("a.yaml"), fixture.path("b.yaml")).unwrap();
    fixture.nothing_comes();
    // Atomically over a file.
    fixture.write("new.tmp", &namespace("new"));
    fs::rename(fixture.path("new.tmp"), fixture.path("b.yaml")).unwrap();
    assert_eq!(fixture.next(), ["-a", "+new"]);
    // To a name that is not watched.
    fs::rename(fixture.path("b.yaml"), fixture.path("b.yaml.off")).unwrap();
    assert_eq!(fixture.next(), ["-new"]);
    fs::rename(fixture.path("b.yaml.off"), fixture.path("b.yaml")).unwrap();
    assert_eq!(fixture.next(), ["+new"]);
}

#[test]
fn an_editor_that_moves_the_file_away_first_loses_nothing() {
    let (mut fixture, _) = Fixture::new(&[("a.yaml", &namespace("a"))]);
    fs::rename(fixture.path("a.yaml"), fixture.path("a.yaml~")).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    fixture.write("a.yaml", &namespace("a"));
    fixture.nothing_comes();
}

#[test]
fn a_mounted_config_map() {
    let (mut fixture, _) = Fixture::new(&[]);
    let version = |n: u32, name: &str| {
        let dir = fixture.path(&format!("..{n}"));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("a.yaml"), namespace(name)).unwrap();
        symlink(format!("..{n}"), fixture.path("..data_tmp")).unwrap();
        fs::rename(fixture.path("..data_tmp"), fixture.path("..data")).unwrap();
    };
    version(1, "one");
    symlink("..data/a.yaml", fixture.path("a.yaml")).unwrap();
    version(2, "two");
    assert_eq!(fixture.next(), ["+two"]);
    let dir = fixture.path("..3");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("a.yaml"), namespace("six")).unwrap();
    symlink("..3", fixture.path("..data_tmp")).unwrap();
    fs::rename(fixture.path("..data_tmp"), fixture.path("..data")).unwrap();
    assert_eq!(fixture.next(), ["+six", "-two"]);
}

#[test]
fn a_symlinks_target_changes_without_notice() {
    let elsewhere = TempDir::new().unwrap();
    let target = elsewhere.path().join("t");
    fs::write(&target, namespace("a")).unwrap();
    let (mut fixture, _) = Fixture::new(&[]);
    symlink(&target, fixture.path("a.yaml")).unwrap();
    assert_eq!(fixture.next(), ["+a"]);
    fs::write(&target, namespace("bb")).unwrap();
    assert_eq!(fixture.next(), ["-a", "+bb"]);
}

#[test]
fn a_bad_file_keeps_its_last_good_content() {
    let (mut fixture, _) = Fixture::new(&[("a.yaml", &namespace("a"))]);
    fixture.write("a.yaml", "apiVersion: v1\nkind: [\n");
    let status = fixture.problem("a.yaml:");
    assert!(status.in_sync && !status.files[0].current && status.files[0].objects == 1);
    fixture.nothing_comes();
    fixture.write("a.yaml", &namespace("b"));
    assert_eq!(fixture.next(), ["-a", "+b"]);
    fixture.status(|s| s.problems.is_empty() && s.files[0].current);
}

#[test]
fn a_file_that_never_was_good_holds_back_in_sync() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("a.yaml"), namespace("a")).unwrap();
    fs::write(dir.path().join("b.yaml"), "kind: Pod\n").unwrap();
    let source = watch(dir.path()).unwrap();
    let mut fixture = Fixture { dir, source };
    let first = fixture.next_within(LIMIT).unwrap();
    assert_eq!((said(&first), first.in_sync), (vec!["+a".to_owned()], false));
    assert_eq!(
        fixture.source.status.borrow().problems[0].to_string(),
        "b.yaml:1: not a Kubernetes object: no `apiVersion` (nothing of it is in effect)"
    );
    fixture.write("b.yaml", "");
    let second = fixture.next_within(LIMIT).unwrap();
    assert!(second.in_sync && second.changes.is_empty());
}

#[test]
fn a_bad_file_that_is_added_later_holds_nothing_back() {
    let (mut fixture, _) = Fixture::new(&[("a.yaml", &namespace("a"))]);
    fixture.write("b.yaml", "kind: Pod\n");
    fixture.problem("b.yaml:1: ");
    fixture.write("a.yaml", &namespace("c"));
    let batch = fixture.next_within(LIMIT).unwrap();
    assert_eq!((said(&batch), batch.in_sync), (vec!["-a".into(), "+c".to_owned()], true));
}

#[test]
fn one_bad_object_holds_nothing_back() {
    let broken = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: b, labels: {v: 1}}\n";
    let file = namespace("a") + broken;
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("a.yaml"), &file).unwrap();
    let source = watch(dir.path()).unwrap();
    let mut fixture = Fixture { dir, source };
    let first = fixture.next_within(LIMIT).unwrap();
    assert_eq!((said(&first), first.in_sync), (vec!["+a".to_owned()], true));
    let status = fixture.problem("a.yaml:8: Namespace b: metadata.labels.v: is integer `1`");
    assert!(status.problems[0].text.ends_with("(it counts as absent)"), "{status:?}");
    assert!(status.files[0].current && status.files[0].objects == 1);
    fixture.write("a.yaml", &(file.replace("v: 1", "v: '1'") + &namespace("c")));
    assert_eq!(fixture.next(), ["+b", "+c"]);
    // Broken again, the object keeps its last good version; the rest of the file is followed.
    fixture.write("a.yaml", &(file + &namespace("d")));
    assert_eq!(fixture.next(), ["-c", "+d"]);
    let status = fixture.problem("a.yaml:8: Namespace b: metadata.labels.v: ");
    assert!(status.problems[0].text.ends_with("(its last good version stays in effect)"));
    assert!(status.in_sync && !status.files[0].current && status.files[0].objects == 3);
    fixture.write("a.yaml", &namespace("d"));
    assert_eq!(fixture.next(), ["-a", "-b"]);
    fixture.status(|s| s.problems.is_empty() && s.files[0].current);
}

/// The former objects of such a document stay, since its new content is unknown.
#[test]
fn a_document_that_cannot_be_read_leaves_the_others() {
    let dir = TempDir::new().unwrap();
    let bad = "---\napiVersion: v1\nkind: [\n";
    fs::write(dir.path().join("a.yaml"), namespace("a") + bad + &namespace("c")).unwrap();
    let source = watch(dir.path()).unwrap();
    let mut fixture = Fixture { dir, source };
    let first = fixture.next_within(LIMIT).unwrap();
    assert_eq!((said(&first), first.in_sync), (vec!["+a".to_owned(), "+c".into()], false));
    let status = fixture.problem("a.yaml:7: ");
    assert!(status.problems[0].text.ends_with("(nothing of it is in effect)"), "{status:?}");
    fixture.write("a.yaml", &(namespace("a") + &namespace("b") + &namespace("c")));
    let second = fixture.next_within(LIMIT).unwrap();
    assert_eq!((said(&second), second.in_sync), (vec!["+b".to_owned()], true));
    fixture.write("a.yaml", &(namespace("d") + bad));
    assert_eq!(fixture.next(), ["+d"]);
    let status = fixture.problem("a.yaml:7: ");
    assert!(status.problems[0].text.ends_with("(its last good content stays in effect)"));
    assert!(status.in_sync && !status.files[0].current && status.files[0].objects == 4);
    fixture.write("a.yaml", &namespace("d"));
    assert_eq!(fixture.next(), ["-a", "-b", "-c"]);
}

#[test]
fn a_file_being_written_is_not_read_half() {
    let (mut fixture, _) = Fixture::new(&[("a.yaml", &(namespace("a") + &namespace("b")))]);
    let mut file = fs::File::create(fixture.path("a.yaml")).unwrap();
    std::thread::sleep(Duration::from_millis(10));
    file.write_all(namespace("a").as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(10));
    file.write_all(namespace("b").as_bytes()).unwrap();
    drop(file);
    fixture.nothing_comes();
}

/// A slow writer, such as `curl -o`.
#[test]
fn a_file_being_written_slowly_keeps_what_it_held() {
    let (mut fixture, _) = Fixture::new(&[("a.yaml", &(namespace("a") + &namespace("b")))]);
    let mut file = fs::File::create(fixture.path("a.yaml")).unwrap();
    fixture.nothing_comes();
    file.write_all(namespace("a").as_bytes()).unwrap();
    fixture.nothing_comes();
    // Other files are followed meanwhile.
    fixture.write("c.yaml", &namespace("c"));
    assert_eq!(fixture.next(), ["+c"]);
    file.write_all(namespace("d").as_bytes()).unwrap();
    fixture.nothing_comes();
    drop(file);
    assert_eq!(fixture.next(), ["-b", "+d"]);
    assert!(fixture.source.status.borrow().problems.is_empty());
}

#[test]
fn an_emptied_file_keeps_its_objects_until_it_is_deleted() {
    let (mut fixture, _) = Fixture::new(&[("a.yaml", &namespace("a"))]);
    for empty in ["", "\n \n"] {
        fs::write(fixture.path("a.yaml"), empty).unwrap();
        fixture.problem("a.yaml: is empty; delete the file to remove its objects (its last good");
    }
    fixture.nothing_comes();
    fs::remove_file(fixture.path("a.yaml")).unwrap();
    assert_eq!(fixture.next(), ["-a"]);
    fixture.status(|s| s.problems.is_empty());
    // A file with a comment alone removes its objects.
    fixture.write("a.yaml", &namespace("a"));
    assert_eq!(fixture.next(), ["+a"]);
    fixture.write("a.yaml", "# nothing any more\n");
    assert_eq!(fixture.next(), ["-a"]);
}

#[test]
fn a_symlink_that_leads_nowhere_is_not_a_file_deleted() {
    let elsewhere = TempDir::new().unwrap();
    let target = elsewhere.path().join("t");
    fs::write(&target, namespace("a")).unwrap();
    let (mut fixture, _) = Fixture::new(&[]);
    symlink(&target, fixture.path("a.yaml")).unwrap();
    assert_eq!(fixture.next(), ["+a"]);
    fs::remove_file(&target).unwrap();
    fixture.problem("a.yaml: cannot be read: a dangling symlink (its last good content");
    fixture.nothing_comes();
    fs::write(&target, namespace("b")).unwrap();
    assert_eq!(fixture.next(), ["-a", "+b"]);
    fs::remove_file(&target).unwrap();
    fs::remove_file(fixture.path("a.yaml")).unwrap();
    assert_eq!(fixture.next(), ["-b"]);
}

/// An unmounted volume.
#[test]
fn an_empty_directory_in_the_place_of_the_former_removes_nothing() {
    let outer = TempDir::new().unwrap();
    let (path, away) = (outer.path().join("manifests"), outer.path().join("away"));
    fs::create_dir(&path).unwrap();
    fs::write(path.join("a.yaml"), namespace("a")).unwrap();
    let source = watch(&path).unwrap();
    let mut fixture = Fixture { dir: outer, source };
    assert_eq!(fixture.next(), ["+a"]);
    fs::rename(&path, &away).unwrap();
    fs::create_dir(&path).unwrap();
    let status = fixture.problem("--manifests ");
    assert!(status.problems[0].text.contains("another, empty directory"), "{status:?}");
    fixture.nothing_comes();
    fs::remove_dir(&path).unwrap();
    fs::rename(&away, &path).unwrap();
    fixture.status(|s| s.problems.is_empty());
    fixture.nothing_comes();
    fs::remove_file(path.join("a.yaml")).unwrap();
    assert_eq!(fixture.next(), ["-a"]);
}

#[test]
fn unreadable_files_are_named() {
    let (mut fixture, _) = Fixture::new(&[("a.yaml", &namespace("a"))]);
    fs::remove_file(fixture.path("a.yaml")).unwrap();
    symlink("a.yaml", fixture.path("a.yaml")).unwrap();
    fixture.problem("a.yaml: cannot be read: ");
    fixture.nothing_comes();
    fs::remove_file(fixture.path("a.yaml")).unwrap();
    assert_eq!(fixture.next(), ["-a"]);
    let fifo = fixture.path("f.yaml");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    fixture.problem("f.yaml: cannot be read: not a regular file");
    fs::remove_file(&fifo).unwrap();
    fixture.status(|s| s.problems.is_empty());
}

/// Regardless of the file that a name leads to, the follower continues with the other files, and keeps the last good
/// content.
#[test]
fn what_is_no_file_or_too_large_holds_nothing_up() {
    let (mut fixture, _) = Fixture::new(&[("a.yaml", &namespace("a"))]);
    let mut names = 0;
    let mut next = || {
        names += 1;
        format!("n{names}")
    };
    let _socket = std::os::unix::net::UnixListener::bind(fixture.path(".socket")).unwrap();
    nix::unistd::mkfifo(&fixture.path(".fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let large = fs::File::create(fixture.path(".large")).unwrap();
    large.set_len(3 << 30).unwrap();
    for (target, reason) in [
        (".socket", "not a regular file"),
        (".fifo", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("/dev/tty", "not a regular file"),
        (".large", "larger than 64 MiB; split it into several files"),
        // A regular file without an end or a length.
        ("/proc/kmsg", "Resource temporarily unavailable"),
    ] {
        if target.starts_with("/proc") && !nix::unistd::geteuid().is_root() {
            continue;
        }
        symlink(target, fixture.path(".link")).unwrap();
        fs::rename(fixture.path(".link"), fixture.path("a.yaml")).unwrap();
        let status = fixture.problem("a.yaml: cannot be read: ");
        let all: Vec<String> = status.problems.iter().map(ToString::to_string).collect();
        assert!(all[0].contains(reason), "{target}: {all:?}");
        assert!(all[0].ends_with("(its last good content stays in effect)"), "{all:?}");
        let other = next();
        fixture.write("b.yaml", &namespace(&other));
        assert!(fixture.next().contains(&format!("+{other}")), "{target}");
        // The former content again: no change.
        fixture.write("a.yaml", &namespace("a"));
        fixture.status(|status| status.problems.is_empty());
    }
    fixture.nothing_comes();
}

#[test]
fn one_object_in_two_files() {
    let (mut fixture, first) =
        Fixture::new(&[("a.yaml", &namespace("x")), ("b.yaml", &namespace("x"))]);
    assert_eq!(first, ["+x"]);
    fixture.problem("a.yaml:2: Namespace x is also in b.yaml");
    fs::remove_file(fixture.path("b.yaml")).unwrap();
    fixture.status(|s| s.problems.is_empty());
    fixture.nothing_comes();
}

#[test]
fn a_directory_that_vanishes_and_returns() {
    let outer = TempDir::new().unwrap();
    let path = outer.path().join("manifests");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("a.yaml"), namespace("a")).unwrap();
    let source = watch(&path).unwrap();
    let mut fixture = Fixture { dir: outer, source };
    assert_eq!(fixture.next(), ["+a"]);
    fs::remove_dir_all(&path).unwrap();
    fixture.problem("--manifests ");
    while fixture.source.batches.try_recv().is_ok() {}
    fixture.nothing_comes();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("b.yaml"), namespace("b")).unwrap();
    let mut said = fixture.next();
    if !said.contains(&"-a".to_owned()) {
        said.extend(fixture.next());
    }
    said.sort();
    assert_eq!(said, ["+b", "-a"]);
    fixture.status(|s| s.problems.is_empty());
    fs::write(path.join("b.yaml"), namespace("c")).unwrap();
    assert_eq!(fixture.next(), ["-b", "+c"]);
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let dir = TempDir::new().unwrap();
    let missing = dir.path().join("none");
    let error = watch(&missing).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("--manifests {}: No such file", missing.display())),
        "{error}"
    );
    assert!(error.contains("create it"), "{error}");
    let file = dir.path().join("f.yaml");
    fs::write(&file, "").unwrap();
    let error = watch(&file).unwrap_err().to_string();
    assert!(error.contains("name the directory"), "{error}");
}
