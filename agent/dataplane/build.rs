//! Builds the eBPF object and its traced variant, and passes their paths to `src/object.rs`, which embeds them.
//!
//! The program is Rust for `bpfel-unknown-none`, which needs a compiler with unstable features, the sources of `core`,
//! and bpf-linker. If one of these is missing, the build continues with an empty object and a warning: everything but
//! loading the program still works.
#![expect(clippy::print_stderr, reason = "cargo shows it")]

use std::{
    env,
    error::Error,
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

const TARGET: &str = "bpfel-unknown-none";
const PROGRAM: &str = "netpold-bpf";
const LINKER_VERSION: &str = "0.13.0";
/// Variables that choose the toolchain.
const RUSTC_VARIABLE: &str = "NETPOLD_BPF_RUSTC";
const LINKER_VARIABLE: &str = "NETPOLD_BPF_LINKER";

fn main() -> ExitCode {
    match embed() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn embed() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("no OUT_DIR: run by cargo only")?);
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("no CARGO_MANIFEST_DIR")?);
    let root = root.ancestors().nth(2).ok_or("the crate is not in a workspace")?;
    watch(root);

    let objects = [("bpf", "netpold-bpf.o"), ("trace", "netpold-bpf-traced.o")];
    let objects = objects.map(|(feature, name)| (feature, out.join(name)));
    let missing = match find_toolchain() {
        Ok((compiler, linker)) => {
            let directory = target_directory(&out);
            fs::create_dir_all(&directory)?;
            // Held until the last object is copied: another run would replace it.
            let lock = File::create(directory.join("lock"))?;
            lock.lock()?;
            for (feature, object) in &objects {
                let built = build(&compiler, &linker, root, &directory, feature)?;
                fs::copy(built, object)?;
                strip(&compiler, object);
            }
            String::new()
        }
        Err(missing) => {
            println!("cargo:warning=eBPF object not built: {missing}; see `cargo xtask setup`");
            objects.iter().try_for_each(|(_, object)| fs::write(object, []))?;
            missing
        }
    };
    let [(_, object), (_, traced)] = objects;
    println!("cargo:rustc-env=NETPOLD_BPF_OBJECT={}", object.display());
    println!("cargo:rustc-env=NETPOLD_BPF_TRACED_OBJECT={}", traced.display());
    println!("cargo:rustc-env=NETPOLD_BPF_MISSING={missing}");
    Ok(())
}

/// Directory of the inner cargo. Clippy, rustdoc and builds with other features run this script too, each with an
/// `OUT_DIR` of its own; a directory for all of one profile lets the inner cargo find that nothing has changed.
fn target_directory(out: &Path) -> PathBuf {
    let mut above = out.ancestors().skip(2);
    match (above.next(), above.next()) {
        (Some(build), Some(profile)) if build.ends_with("build") => profile.join("ebpf"),
        _ => out.join("target"),
    }
}

/// Declares the inputs of the object, and the paths at which a toolchain may appear.
fn watch(root: &Path) {
    for path in ["ebpf/src", "ebpf/Cargo.toml", "Cargo.lock"] {
        println!("cargo:rerun-if-changed={}", root.join(path).display());
    }
    println!("cargo:rerun-if-changed=build.rs");
    for variable in [RUSTC_VARIABLE, LINKER_VARIABLE, "PATH"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    if let Some(linker) = cached_linker() {
        println!("cargo:rerun-if-changed={}", linker.display());
    }
}

/// A compiler that can build `core` for the eBPF target.
enum EbpfCompiler {
    /// A rustc with unstable features by `RUSTC_BOOTSTRAP`, under the running cargo.
    Bootstrap(PathBuf),
    /// `rustup run nightly`.
    Nightly,
}

impl EbpfCompiler {
    fn rustc(&self) -> Command {
        match self {
            Self::Bootstrap(rustc) => Command::new(rustc),
            Self::Nightly => {
                let mut command = Command::new("rustup");
                command.args(["run", "nightly", "rustc"]);
                command
            }
        }
    }

    fn cargo(&self) -> Command {
        match self {
            Self::Bootstrap(rustc) => {
                let mut command =
                    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
                clear_outer_cargo(&mut command);
                command.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
                command
            }
            Self::Nightly => {
                let mut command = Command::new("rustup");
                command.args(["run", "nightly", "cargo"]);
                clear_outer_cargo(&mut command);
                command
            }
        }
    }

    /// Whether the compiler runs and has the sources of `core`.
    fn usable(&self) -> bool {
        self.sysroot().is_some_and(|root| root.join("lib/rustlib/src/rust/library/core").is_dir())
    }

    fn sysroot(&self) -> Option<PathBuf> {
        output(self.rustc().args(["--print", "sysroot"])).map(|path| PathBuf::from(path.trim()))
    }

    fn llvm_major(&self) -> Option<u32> {
        let version = output(self.rustc().arg("-vV"))?;
        version
            .lines()
            .find_map(|line| line.strip_prefix("LLVM version: "))
            .and_then(|version| version.split('.').next()?.parse().ok())
    }
}

fn find_toolchain() -> Result<(EbpfCompiler, PathBuf), String> {
    let compiler = find_compiler()?;
    let linker = find_linker()?;
    if let (Some(rustc), Some(linker_llvm)) = (compiler.llvm_major(), linker_llvm_major(&linker))
        && rustc > linker_llvm
    {
        return Err(format!(
            "the compiler's LLVM {rustc} is newer than LLVM {linker_llvm} of {}",
            linker.display()
        ));
    }
    Ok((compiler, linker))
}

fn find_compiler() -> Result<EbpfCompiler, String> {
    if let Some(rustc) = env::var_os(RUSTC_VARIABLE) {
        let compiler = EbpfCompiler::Bootstrap(rustc.into());
        return if compiler.usable() {
            Ok(compiler)
        } else {
            Err(format!("{RUSTC_VARIABLE} is no rustc with rust-src"))
        };
    }
    [EbpfCompiler::Nightly, EbpfCompiler::Bootstrap("/usr/bin/rustc".into())]
        .into_iter()
        .find(EbpfCompiler::usable)
        .ok_or_else(|| "no nightly toolchain with rust-src, nor Debian's rust-web-src".to_owned())
}

fn find_linker() -> Result<PathBuf, String> {
    if let Some(linker) = env::var_os(LINKER_VARIABLE) {
        let linker = PathBuf::from(linker);
        return if linker.is_file() {
            Ok(linker)
        } else {
            Err(format!("{LINKER_VARIABLE} ({}) is no file", linker.display()))
        };
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let mut candidates: Vec<PathBuf> =
        env::split_paths(&path).map(|directory| directory.join("bpf-linker")).collect();
    if let Some(home) = env::var_os("HOME") {
        candidates.push(Path::new(&home).join(".cargo/bin/bpf-linker"));
    }
    candidates.extend(cached_linker());
    candidates
        .into_iter()
        .find(|candidate| candidate.is_file())
        .ok_or_else(|| "no bpf-linker".to_owned())
}

/// Path at which `cargo xtask setup` installs the linker.
fn cached_linker() -> Option<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cache")))?;
    Some(cache.join(format!("netpold/bpf-linker-{LINKER_VERSION}/bin/bpf-linker")))
}

/// LLVM version of a dynamically linked bpf-linker; `None` if unknown.
fn linker_llvm_major(linker: &Path) -> Option<u32> {
    let libraries = output(Command::new("ldd").arg(linker))?;
    let (_, name) = libraries.split_once("libLLVM")?;
    let digits: String =
        name.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

fn build(
    compiler: &EbpfCompiler,
    linker: &Path,
    root: &Path,
    directory: &Path,
    feature: &'static str,
) -> Result<PathBuf, Box<dyn Error>> {
    let mut flags = OsString::from("-Clinker=");
    flags.push(linker);
    // Zeroing and copying by stores in place: a call of `memset` would cost a stack frame, and is no faster.
    let in_place = "-Clink-arg=--disable-expand-memcpy-in-order";
    for flag in ["-Clink-arg=--btf", in_place, "-Ctarget-cpu=v3", "-Cdebuginfo=2", "-Cpanic=abort"]
    {
        flags.push("\u{1f}");
        flags.push(flag);
    }
    for (path, name) in places(compiler, root, directory) {
        flags.push("\u{1f}--remap-path-prefix=");
        flags.push(path);
        flags.push(format!("={name}"));
    }
    let other = env::var_os("CARGO_FEATURE_OTHER_LAYOUT").is_some();
    // The agent of the upgrade test has ordered reads too, so that every machine tests them.
    let ordered = other || env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64");
    let features: Vec<_> = [feature]
        .into_iter()
        .chain(other.then_some("other-layout"))
        .chain(ordered.then_some("ordered-reads"))
        .collect();
    let mut command = compiler.cargo();
    command
        .current_dir(root)
        .args(["build", "--package", "netpold-ebpf", "--bin", PROGRAM, "--release"])
        .args(["--no-default-features", "--features", &features.join(",")])
        .args(["--target", TARGET, "-Zbuild-std=core"])
        .arg("--target-dir")
        .arg(directory)
        .env("CARGO_ENCODED_RUSTFLAGS", flags)
        // One codegen unit, so that functions are inlined before linking.
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_LTO", "off");
    let result = command.output()?;
    if !result.status.success() {
        return Err(format!(
            "the eBPF program does not build:\n{}",
            String::from_utf8_lossy(&result.stderr)
        )
        .into());
    }
    Ok(directory.join(TARGET).join("release").join(PROGRAM))
}

/// Removes the DWARF, four fifths of the object: the kernel reads only the BTF that was made from it. Without a working
/// tool, the object stays larger, and works the same.
fn strip(compiler: &EbpfCompiler, object: &Path) {
    const LLVM: &str = "/usr/lib/llvm-22/bin/llvm-objcopy";
    let sysroot = compiler.sysroot().unwrap_or_default();
    let host = env::var("HOST").unwrap_or_default();
    let own = sysroot.join("lib/rustlib").join(host).join("bin/rust-objcopy");
    for tool in [&*own, Path::new(LLVM), Path::new("llvm-objcopy")] {
        let mut command = Command::new(tool);
        command.arg("--strip-debug").arg(object);
        // rustup's tool does not find its own library.
        command.env("LD_LIBRARY_PATH", sysroot.join("lib"));
        if output(&mut command).is_some() {
            return;
        }
    }
}

/// Names for the directories of the sources in the object's debugging information and BTF: the paths of this machine
/// would make a different object from the same sources. If several directories hold a path, the last counts.
fn places(compiler: &EbpfCompiler, root: &Path, directory: &Path) -> Vec<(PathBuf, &'static str)> {
    let home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".cargo")));
    let known = [(compiler.sysroot(), "rust"), (home, "cargo")];
    let known = known.into_iter().filter_map(|(path, name)| Some((path?, name)));
    known.chain([(root.to_owned(), "netpold"), (directory.to_owned(), "out")]).collect()
}

/// Removes variables that the outer cargo set for this package, its target and its compiler wrappers (clippy's among
/// them), so that the inner cargo does not inherit them.
fn clear_outer_cargo(command: &mut Command) {
    const KEPT: [&str; 3] = ["CARGO_HOME", "CARGO_NET_", "CARGO_HTTP_"];
    const REMOVED: [&str; 9] = [
        "RUSTC",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_LINKER",
        "RUSTFLAGS",
        "RUSTUP_TOOLCHAIN",
        "TARGET",
        "MAKEFLAGS",
        "CLIPPY_ARGS",
    ];
    for (name, _) in env::vars_os() {
        let Some(text) = name.to_str() else { continue };
        let kept = KEPT.iter().any(|prefix| text.starts_with(prefix));
        if REMOVED.contains(&text) || (text.starts_with("CARGO") && !kept) {
            command.env_remove(&name);
        }
    }
}

fn output(command: &mut Command) -> Option<String> {
    let result = command.output().ok()?;
    result.status.success().then(|| String::from_utf8_lossy(&result.stdout).into_owned())
}
