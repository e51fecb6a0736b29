//! A release in one folder, `target/release-VERSION`: text of its tag, packages, wheel, program and
//! book. It publishes nothing.

use std::env::consts::{ARCH, OS};
use std::env::current_exe;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use xtask::command::{cargo, files, program, python, read, root, run as run_command, target};

use super::publish::{manifests, published};

/// The parts of a release.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    /// The version's section of CHANGELOG.md, as the text of a tag
    Tag,
    /// Packages for the crates registry, without a rebuild
    Packages,
    /// The wheel of the Python package, for this system
    Wheel,
    /// The command for this system, optimized, with the page of schedules in it
    Program,
    /// The book
    Book,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Parts to make [default: all]
    parts: Vec<Part>,
    /// Also packages files that are not committed, to try it out
    #[arg(long)]
    allow_dirty: bool,
}

/// Makes the parts and prints the steps that are left to a maintainer.
pub(crate) fn run(args: &Args) -> Result<()> {
    manifests()?;
    let version = version()?;
    let folder = target()?.join(format!("release-{version}"));
    fs::create_dir_all(&folder)?;
    let is_asked = |part: &Part| args.parts.is_empty() || args.parts.contains(part);
    for part in Part::value_variants().iter().filter(|part| is_asked(part)) {
        match part {
            Part::Tag => fs::write(folder.join("tag.txt"), tag(&version)?)?,
            Part::Packages => packages(&folder, &version, args.allow_dirty)?,
            Part::Wheel => {
                let tools = ["maturin", "twine", "ziglang", "cargo-zigbuild", "auditwheel"];
                let mut wheel = Command::new(python("python-release", &tools)?);
                run_command(wheel.arg(root().join("python/wheel.py")).arg(&folder))?;
            }
            Part::Program => {
                let name = program(&format!("chimera-{version}-{OS}-{ARCH}"));
                fs::copy(with_page()?, folder.join(name))?;
            }
            Part::Book => book(&folder)?,
        }
    }
    sums(&folder)?;
    println!("{}", by_hand(&folder, &version)?);
    Ok(())
}

/// The version of the command.
fn version() -> Result<String> {
    let id = read(&mut cargo(["pkgid", "--package", "chimera-pipeline"]))?;
    let version = id.trim().rsplit(['#', '@']).next();
    Ok(version.context("cargo names no version")?.to_owned())
}

/// The version's section of CHANGELOG.md under a line that names the version.
fn tag(version: &str) -> Result<String> {
    let text = fs::read_to_string(root().join("CHANGELOG.md"))?;
    Ok(format!("Chimera {version}\n\n{}\n", section(&text, version)?))
}

/// The text below the heading of a version.
fn section<'t>(changelog: &'t str, version: &str) -> Result<&'t str> {
    let heading = format!("## {version}");
    let start = changelog.find(&heading);
    let start = start.with_context(|| format!("CHANGELOG.md has no `{heading}`"))?;
    let (_, rest) = changelog[start..].split_once('\n').unwrap_or_default();
    let section = rest.split("\n## ").next().unwrap_or_default().trim();
    ensure!(!section.is_empty(), "CHANGELOG.md says nothing of {version}");
    Ok(section)
}

/// Packages every crate that is published.
fn packages(folder: &Path, version: &str, allow_dirty: bool) -> Result<()> {
    let mut package = cargo(["package", "--no-verify"]);
    package.args(allow_dirty.then_some("--allow-dirty"));
    let crates = published()?;
    for published in &crates {
        package.args(["--package", &published.name]);
    }
    run_command(&mut package)?;
    for published in &crates {
        let name = format!("{}-{version}.crate", published.name);
        fs::copy(target()?.join("package").join(&name), folder.join(&name)).context(name)?;
    }
    Ok(())
}

/// Builds the command with the page of schedules, which its chore builds first.
fn with_page() -> Result<PathBuf> {
    run_command(Command::new(current_exe()?).arg("page"))?;
    let target = target()?;
    let mut build =
        cargo(["build", "--release", "--package", "chimera-pipeline", "--bin", "chimera"]);
    run_command(build.env("CHIMERA_EMBED_PAGE", target.join("page")))?;
    Ok(target.join("release").join(program("chimera")))
}

/// Builds the book with its chore, and copies it.
fn book(folder: &Path) -> Result<()> {
    run_command(Command::new(current_exe()?).arg("book"))?;
    let html = target()?.join("book/html");
    for file in files(&html)? {
        let to = folder.join("book").join(file.strip_prefix(&html)?);
        fs::create_dir_all(to.parent().unwrap_or(folder))?;
        fs::copy(file, to)?;
    }
    Ok(())
}

/// Writes the SHA-256 of all files except the book's.
fn sums(folder: &Path) -> Result<()> {
    let mut names: Vec<PathBuf> = files(folder)?;
    names.retain(|file| file.parent() == Some(folder) && !file.ends_with("SHA256SUMS"));
    let names = names.iter().filter_map(|file| file.file_name());
    let sums = read(Command::new("sha256sum").args(names).current_dir(folder))?;
    Ok(fs::write(folder.join("SHA256SUMS"), sums)?)
}

/// The steps that only a maintainer can take.
fn by_hand(folder: &Path, version: &str) -> Result<String> {
    let place = folder.display();
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let address = if manifest.contains("<owner to fill in>") {
        "- Put the repository's address into [workspace.package] of Cargo.toml, and make the release again.\n"
    } else {
        ""
    };
    let unreleased = format!("## {version} (unreleased)");
    let changelog = fs::read_to_string(root().join("CHANGELOG.md"))?;
    let date = if changelog.contains(&unreleased) {
        format!(
            "- Replace `(unreleased)` after {version} in CHANGELOG.md by the date, and commit.\n"
        )
    } else {
        String::new()
    };
    Ok(format!(
        "The release is in {place}. By hand:\n{address}{date}\
         - Run `cargo xtask ci`, `deny`, `powerset`, `publish` and, for GPUs, `gpu` on this commit.\n\
         - Make programs and wheels for other systems there: `cargo xtask release wheel program`.\n\
         - git tag --sign v{version} --cleanup=verbatim --file {place}/tag.txt && git push origin v{version}\n\
         - cargo publish --workspace, with a token of the crates registry (comm-mpi needs an MPI compiler).\n\
         - Upload the wheels to the Python package index, and all files with SHA256SUMS to the hosting page.\n\
         - Publish the book."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_ends_at_the_next_version() {
        let text = "# Changelog\n\n## 0.2.0 (unreleased)\n\nNew.\n\n## 0.1.0\n\nOld.\n";
        assert_eq!(section(text, "0.2.0").unwrap(), "New.");
        assert_eq!(section(text, "0.1.0").unwrap(), "Old.");
        assert!(section(text, "0.3.0").is_err());
    }
}
