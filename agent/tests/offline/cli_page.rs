//! The command line compared with `deploy/cli.md`, shell completion, and the krew manifest of the kubectl plugin.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::CommandFactory;
use netpold::cli::Cli;
use netpold_testbed::skip;
use serde_json::Value;
use tempfile::TempDir;

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(name)).unwrap()
}

#[test]
fn exit_statuses_in_help_and_page_agree() {
    let text = page("deploy/cli.md");
    let table = text.split("| command | exit status |\n").nth(1).unwrap();
    let rows = table.lines().skip(1).map_while(|line| line.strip_prefix("| `netpold "));
    let rows: BTreeMap<String, String> = rows
        .map(|row| {
            let (name, status) = row.split_once("` | ").unwrap();
            (name.to_owned(), status.strip_suffix(" |").unwrap().to_owned())
        })
        .collect();
    let printed = |command: &clap::Command| {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let status = help.split("Exit status: ").nth(1);
        let status = status
            .unwrap_or_else(|| panic!("the help of {} has no exit status", command.get_name()));
        (command.get_name().to_owned(), status.replace('\n', " "))
    };
    let command = Cli::command();
    let printed: BTreeMap<String, String> = command.get_subcommands().map(printed).collect();
    assert_eq!(rows, printed);
}

#[test]
fn the_help_lists_every_command_once() {
    let output = Command::new(env!("CARGO_BIN_EXE_netpold")).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for command in Cli::command().get_subcommands() {
        let line = format!("  {:<12}{}\n", command.get_name(), command.get_about().unwrap());
        assert_eq!(help.matches(&line).count(), 1, "{line}{help}");
    }
    let groups: Vec<&str> = help.lines().filter(|line| line.ends_with(':')).collect();
    assert_eq!(groups, ["Daily commands:", "On a node:", "Other commands:", "Options:"]);
}

fn completion(shell: &str) -> String {
    let mut netpold = Command::new(env!("CARGO_BIN_EXE_netpold"));
    let output = netpold.args(["completion", shell]).env_clear().output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// Returns a directory with the binary as `name`.
fn path(name: &str) -> TempDir {
    let directory = TempDir::new().unwrap();
    symlink(env!("CARGO_BIN_EXE_netpold"), directory.path().join(name)).unwrap();
    directory
}

/// Returns the completions that bash offers for the last word.
fn offered(words: &[&str]) -> Vec<String> {
    let (directory, last) = (path("netpold"), words.len() - 1);
    let script = directory.path().join("netpold.bash");
    fs::write(&script, completion("bash")).unwrap();
    let call = format!(
        "source \"$1\"; COMP_WORDS=({}); COMP_CWORD={last}; _clap_complete_netpold netpold {:?} {:?}; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" "),
        words[last],
        words[last - 1],
    );
    let mut bash = Command::new("/bin/bash");
    let bash = bash.args(["-c", &call, "bash"]).arg(&script).env_clear();
    let output = bash.env("PATH", directory.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let offered = String::from_utf8(output.stdout).unwrap();
    offered.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn shells_complete_commands_and_flags() {
    assert_eq!(offered(&["netpold", "doc"]), ["doctor"]);
    assert!(offered(&["netpold", "doctor", "--m"]).contains(&"--manifests".to_owned()));
    assert_eq!(offered(&["netpold", "doctor", "-o", ""]), ["text", "json"]);
    assert_eq!(
        offered(&["netpold", "explain", "--from", "x"]),
        [""; 0],
        "without a cluster, no object is completed"
    );
}

/// Returns whether a shell is installed; otherwise skips the test, which CI does not allow.
fn is_installed(shell: &str) -> bool {
    let found = Command::new(shell).arg("--version").output().is_ok();
    if !found {
        skip(
            &format!("completion in {shell}"),
            "it is not installed; `cargo xtask setup` installs it",
        );
    }
    found
}

/// Returns a directory with the binary and a shell's completion script.
fn shell_directory(shell: &str) -> TempDir {
    let directory = path("netpold");
    fs::write(directory.path().join("script"), completion(shell)).unwrap();
    directory
}

/// Runs a shell's commands in a directory, with the binary on the path and without the user's settings.
fn run_shell(shell: &str, arguments: &[&str], directory: &TempDir) -> String {
    let mut command = Command::new(shell);
    let path = format!("{}:/usr/bin:/bin", directory.path().display());
    let command = command.args(arguments).current_dir(directory).env_clear();
    let command = command.env("PATH", path).env("HOME", directory.path()).env("TERM", "dumb");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (printed, errors) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && errors.is_empty(), "{shell}: {errors}");
    String::from_utf8_lossy(printed).into_owned()
}

#[test]
fn fish_completes_commands_and_flags() {
    if !is_installed("fish") {
        return;
    }
    let directory = shell_directory("fish");
    let offered = |line: &str| -> Vec<String> {
        let call = format!("source script; complete -C {line:?}");
        let printed = run_shell("fish", &["--no-config", "-c", &call], &directory);
        printed.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
    };
    assert_eq!(offered("netpold doc"), ["doctor"]);
    assert_eq!(offered("netpold doctor -o "), ["text", "json"]);
    assert_eq!(offered("netpold doctor --manif"), ["--manifests"]);
}

/// Script that types the first argument into an interactive zsh on its own terminal, and prints the screen once the
/// screen contains the second argument.
const ZSH: &str = r#"
    zmodload zsh/zpty
    zpty -b terminal zsh -f -i
    zpty -w terminal "PS1=; autoload -Uz compinit && compinit -u -D; source script; print REA''DY"
    zpty -r -m terminal printed '*READY*' || exit 1
    zpty -w -n terminal "$1"$'\t'
    screen=
    for attempt in {1..200}; do
        while zpty -r -t terminal printed; do screen+=$printed; done
        [[ $screen == *"$2"* ]] && break
        sleep 0.05
    done
    print -r -- "$screen"
    zpty -d terminal
"#;

#[test]
fn zsh_completes_commands_and_flags() {
    if !is_installed("zsh") {
        return;
    }
    let directory = shell_directory("zsh");
    let file = directory.path().join("drive");
    fs::write(&file, ZSH).unwrap();
    let file = file.to_str().unwrap();
    for (typed, shown) in [
        ("netpold doc", "netpold doctor"),
        ("netpold doctor -o ", "json"),
        ("netpold doctor --manif", "--manifests"),
    ] {
        let screen = run_shell("zsh", &["-f", file, typed, shown], &directory);
        assert!(screen.contains(shown), "{typed}: {screen:?}");
    }
}

/// The plugin's completion has the format of kubectl's own commands (Cobra): candidates, then a directive for the
/// shell.
#[test]
fn kubectl_completes_its_plugin() {
    let directory = path("kubectl_complete-netpold");
    let complete = |words: &[&str]| {
        let mut hook = Command::new(directory.path().join("kubectl_complete-netpold"));
        String::from_utf8(hook.args(words).env_clear().output().unwrap().stdout).unwrap()
    };
    let answer = complete(&["doc"]);
    let (name, rest) = answer.split_once('\t').unwrap();
    assert_eq!((name, rest.lines().last()), ("doctor", Some(":4")), "{answer}");
    assert_eq!(complete(&["doctor", "-o", "j"]).lines().last(), Some(":4"));
    assert_eq!(complete(&["no-such-command", "x"]), ":4\n");
}

/// Returns the manifest as krew-release-bot renders it: the template function `addURIAndSha` yields the lines `uri` and
/// `sha256`, the second one indented by four.
fn filled_in(template: &str, tag: &str, checksum: &str) -> String {
    let line = |line: &str| {
        let Some((before, call)) = line.split_once("{{addURIAndSha \"") else {
            return line.replace("{{ .TagName }}", tag);
        };
        let uri = call.strip_suffix("\" .TagName }}").unwrap().replace("{{ .TagName }}", tag);
        format!("{before}uri: {uri}\n    sha256: {checksum}")
    };
    template.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_krew_manifest_lists_the_archives_of_a_release() {
    let tag = concat!("v", env!("CARGO_PKG_VERSION"));
    let checksum = "ab".repeat(32);
    let manifest = filled_in(&page("deploy/krew.yaml"), tag, &checksum);
    assert!(!manifest.contains("{{"), "{manifest}");
    let manifest: Value = serde_saphyr::from_str(&manifest).unwrap();
    assert_eq!(manifest["apiVersion"], "krew.googlecontainertools.github.com/v1alpha2");
    assert_eq!(
        (&manifest["kind"], &manifest["metadata"]["name"]),
        (&"Plugin".into(), &"netpold".into())
    );
    let spec = &manifest["spec"];
    assert_eq!(spec["version"], tag);
    let short = spec["shortDescription"].as_str().unwrap();
    assert!(short.len() <= 50 && !short.ends_with('.'), "krew-index: one short phrase: {short}");
    for text in ["homepage", "description", "caveats"] {
        assert!(spec[text].is_string(), "{text}");
    }
    let release: Value = serde_saphyr::from_str(&page(".github/workflows/release.yaml")).unwrap();
    let built = release["jobs"]["plugin"]["strategy"]["matrix"]["include"].as_array().unwrap();
    let built: Vec<_> = built.iter().map(|it| it["platform"].as_str().unwrap()).collect();
    let mut platforms = Vec::new();
    for platform in spec["platforms"].as_array().unwrap() {
        let labels = &platform["selector"]["matchLabels"];
        let (os, arch) = (labels["os"].as_str().unwrap(), labels["arch"].as_str().unwrap());
        let (end, suffix) = if os == "windows" { ("zip", ".exe") } else { ("tar.gz", "") };
        let releases = concat!(env!("CARGO_PKG_REPOSITORY"), "/releases/download");
        let archive = format!("{releases}/{tag}/kubectl-netpold-{tag}-{os}-{arch}.{end}");
        assert_eq!(platform["uri"], archive);
        assert_eq!(platform["sha256"], checksum);
        assert_eq!(platform["bin"], format!("kubectl-netpold{suffix}"));
        platforms.push(format!("{os}-{arch}"));
    }
    assert_eq!(platforms, built);
}
