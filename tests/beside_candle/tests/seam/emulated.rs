//! The emulated libraries, under the names that a program linked with CUDA loads when it starts. So
//! a test on them runs in a process of its own, started from this program.

#[path = "../../../../backend-cuda/tests/emulated/libraries.rs"]
mod libraries;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The libraries that the program loads, by the names under which the emulated ones are compiled.
const NAMES: [(&str, &str); 3] = [
    ("libcuda.so", "libcuda.so.1"),
    ("libnvrtc.so", "libnvrtc.so.13"),
    ("libcublasLt.so", "libcublasLt.so.13"),
];
/// The CUDA libraries that candle links besides these, and candle's kernels, emulated as one
/// library.
const REST: [&str; 2] = ["libcublas.so.13", "libcurand.so.10"];

/// Fails if the test fails on emulated GPUs with these settings.
pub(crate) fn passes(test: &str, settings: &[(&str, &str)]) {
    let (passed, said) = run(test, settings);
    assert!(passed, "{test} with {settings:?}:\n{said}");
    assert!(said.contains("1 passed"), "{test} is not there:\n{said}");
}

/// Runs the test on emulated GPUs. Returns true if it passes, with its output.
pub(crate) fn run(test: &str, settings: &[(&str, &str)]) -> (bool, String) {
    let before = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = [folder().to_path_buf()].into_iter().chain(env::split_paths(&before));
    let mut alone = Command::new(env::current_exe().expect("this program"));
    alone.args(["--exact", "--include-ignored", test]).envs(settings.iter().copied());
    alone.env("LD_LIBRARY_PATH", env::join_paths(folders).expect("folders"));
    alone.env("XDG_CACHE_HOME", folder()); // for kernels, which must not go into the user's cache
    let output = alone.output().expect("it starts");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// The folder with the libraries, built once.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated");
        let _ = fs::remove_dir_all(&folder);
        let emulated = libraries::compile(&folder);
        for (name, linked) in NAMES {
            symlink(name, folder.join(linked)).expect("a link");
        }
        rest(&folder, &emulated);
        folder
    })
}

/// Compiles what candle needs, and stubs of functions that nobody calls: a program starts only if
/// all linked functions exist.
fn rest(folder: &Path, emulated: &[PathBuf]) {
    let here = env::current_exe().expect("this program");
    let candle = include_str!("candle.cpp");
    let mut missing = symbols("--undefined-only", &here);
    missing.retain(|name| name.starts_with("cu") && !name.starts_with("cuda"));
    missing.retain(|name| !candle.contains(&format!("int {name}(")));
    for library in emulated {
        let there = symbols("--defined-only", library);
        missing.retain(|name| !there.contains(name));
    }
    let fault = |name| format!("extern \"C\" int {name}() {{ fault(\"{name}\"); }}\n");
    let faults: String = missing.iter().map(fault).collect();
    let (source, library) = (folder.join("candle.cpp"), folder.join(REST[0]));
    fs::write(&source, [candle, FAULT, &faults].concat()).expect("room");
    let mut compile = Command::new(env::var("CXX").unwrap_or_else(|_| "c++".into()));
    compile.args(["-std=c++17", "-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    assert!(compile.arg(&emulated[0]).status().expect("a C++ compiler").success());
    symlink(REST[0], folder.join(REST[1])).expect("a link");
}

/// A function that ends the program and prints the function's name.
const FAULT: &str = "
#include <cstdio>
#include <cstdlib>
[[noreturn]] static void fault(const char* name) {
    fprintf(stderr, \"%s is not emulated\\n\", name);
    abort();
}
";

/// The functions that a program or library needs or has.
fn symbols(which: &str, of: &Path) -> BTreeSet<String> {
    let output = Command::new("nm").args(["--dynamic", which]).arg(of).output();
    let output = output.expect("nm, which comes with the C compiler");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = text.lines().filter_map(|line| line.split_whitespace().next_back());
    names.filter_map(|name| name.split('@').next()).map(str::to_owned).collect()
}
