//! Runs commands: each is printed, and the error for a failure names it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Root of the repository, where every command runs.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The cargo that runs this program, with arguments.
pub fn cargo<I: AsRef<str>>(args: impl IntoIterator<Item = I>) -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(args.into_iter().map(|arg| arg.as_ref().to_owned())).current_dir(root());
    command
}

/// Runs `command` with its output shown.
pub fn run(command: &mut Command) -> Result<()> {
    eprintln!("$ {}", line(command));
    let status = command.status().with_context(|| format!("cannot start `{}`", line(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", line(command));
    }
    Ok(())
}

/// Runs `command` and returns its standard output.
pub fn read(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start `{}`", line(command)))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed: {}\n{}", line(command), output.status, errors.trim_end());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns true if the standard library of a target is installed, or rustup can install it.
pub fn has_target(target: &str) -> bool {
    let mut rustc = Command::new("rustc");
    let library = read(rustc.args(["--print", "target-libdir", "--target", target]));
    library.is_ok_and(|library| Path::new(library.trim()).exists())
        || run(Command::new("rustup").args(["target", "add", target])).is_ok()
}

/// Programs that cargo has built.
pub struct Programs(Vec<Value>);

impl Programs {
    /// Runs a cargo command that builds, and shows its progress.
    pub fn build(command: &mut Command) -> Result<Self> {
        eprintln!("$ {}", line(command));
        command.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
        let messages = read(command)?;
        Ok(Self(messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()))
    }

    /// The program of a target in the crate of a folder below the root.
    pub fn program(&self, folder: &str, target: &str) -> Result<PathBuf> {
        let manifest = root().join(folder).join("Cargo.toml");
        let is_it = |message: &&Value| {
            let of = message["manifest_path"].as_str().map(Path::new);
            message["target"]["name"] == target && of == Some(&manifest)
        };
        let mut paths = self.0.iter().filter(is_it).filter_map(|m| m["executable"].as_str());
        // a library's test program comes before those of its integration tests
        let path = paths.next_back().map(PathBuf::from);
        path.with_context(|| format!("cargo built no {target} of {}", manifest.display()))
    }
}

/// Builds the release command `chimera` and returns its path.
pub fn chimera() -> Result<PathBuf> {
    run(&mut cargo(["build", "--release", "--package", "chimera-pipeline", "--bin", "chimera"]))?;
    Ok(target()?.join("release").join(program("chimera")))
}

/// The folder in which cargo builds.
pub fn target() -> Result<PathBuf> {
    let metadata = read(&mut cargo(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let target = metadata["target_directory"].as_str().context("cargo names no target folder")?;
    Ok(PathBuf::from(target))
}

/// The file name of a program on this system.
pub fn program(name: &str) -> String {
    format!("{name}{}", env::consts::EXE_SUFFIX)
}

/// Installs Debian packages. Fetches the package lists first if they are missing or old.
pub fn install(packages: &[&str]) -> Result<()> {
    let apt_get = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        run(command.args(words).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    let install = [&["install", "--yes"], packages].concat();
    apt_get(&install)
        .or_else(|_| apt_get(&["update"]).and_then(|()| apt_get(&install)))
        .with_context(|| {
            format!(
                "install it yourself; on Debian and Ubuntu: apt-get install {}",
                packages.join(" ")
            )
        })
}

/// The path of a program from the crates registry, installed below cargo's target folder if it is
/// missing.
pub fn installed(name: &str) -> Result<PathBuf> {
    let folder = target()?.join("tools");
    let path = folder.join("bin").join(program(name));
    if !path.exists() {
        run(cargo(["install", "--quiet", "--locked", name, "--root"]).arg(&folder))?;
    }
    Ok(path)
}

/// The given Python, or one of a virtual environment in `target/NAME` that has `packages`.
pub fn given_python(given: Option<&Path>, name: &str, packages: &[&str]) -> Result<PathBuf> {
    given.map_or_else(|| python(name, packages), |given| Ok(given.to_owned()))
}

/// The Python of a virtual environment in `target/NAME` that has `packages`.
pub fn python(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let python = environment(&target()?.join(name))?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages))?;
    Ok(python)
}

/// The Python of the virtual environment in `folder`, which is created if it is missing.
pub fn environment(folder: &Path) -> Result<PathBuf> {
    let python = folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
    if !python.exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    }
    Ok(python)
}

/// All Rust files below `folder`, sorted, without those of builds.
pub fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = files(folder)?;
    found.retain(|path| {
        let below = path.strip_prefix(folder).unwrap_or(path);
        path.extension().is_some_and(|end| end == "rs")
            && !below.iter().any(|part| part == "target")
    });
    Ok(found)
}

/// Paths of the project's files below its root: those that git tracks, and new ones that it does
/// not ignore.
pub fn project_files() -> Result<Vec<PathBuf>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard"]).current_dir(root());
    let files = read(&mut git)?;
    Ok(files.lines().map(PathBuf::from).filter(|path| root().join(path).exists()).collect())
}

/// All files below `folder`, sorted.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in folder.read_dir().with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// `command` as one would type it.
fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}
