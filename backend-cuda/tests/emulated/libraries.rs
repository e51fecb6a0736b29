//! Compiles the emulated libraries under the names that programs load.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

/// The driver comes first: the others put their work into its streams.
const LIBRARIES: [(&str, &str); 5] = [
    ("libcuda.so", include_str!("cuda.cpp")),
    ("libnvrtc.so", include_str!("nvrtc.cpp")),
    ("libcublasLt.so", include_str!("cublas.cpp")),
    ("libnccl.so.2", include_str!("nccl.cpp")),
    ("libnvtx3interop.so.1", include_str!("nvtx.cpp")),
];

/// The headers that the libraries include, apart from the text of the shim.
const HEADERS: [(&str, &str); 3] = [
    ("memory.h", include_str!("memory.h")),
    ("queue.h", include_str!("queue.h")),
    ("streams.h", include_str!("streams.h")),
];

/// The folder of the emulated libraries below `tests`, built once for all test programs.
#[allow(dead_code, reason = "some programs have folders of their own")]
pub(crate) fn folder(tests: &Path) -> PathBuf {
    let folder = tests.join(format!("emulated-{}", stamp(&compiler())));
    if !folder.exists() {
        let begun = tests.join(format!("emulated-{}.begun", process::id()));
        let _ = fs::remove_dir_all(&begun); // of an earlier process of this number
        compile(&begun);
        if fs::rename(&begun, &folder).is_err() {
            fs::remove_dir_all(&begun).unwrap(); // another process was first
        }
    }
    folder
}

/// The libraries in such a folder, in the order in which they are opened.
#[allow(dead_code, reason = "a program that is started finds them by itself")]
pub(crate) fn all(folder: &Path) -> [PathBuf; 5] {
    LIBRARIES.map(|(name, _)| folder.join(name))
}

const FLAGS: [&str; 5] = ["-std=c++17", "-O3", "-fPIC", "-shared", "-pthread"];

/// Builds the folder and everything in it.
pub(crate) fn compile(into: &Path) -> Vec<PathBuf> {
    fs::create_dir_all(into).unwrap();
    let shim = format!("R\"shim({})shim\"\n", include_str!("shim.h"));
    for (name, text) in HEADERS.into_iter().chain([("shim.text", &*shim)]) {
        fs::write(into.join(name), text).unwrap();
    }
    LIBRARIES.map(|(name, source)| library(into, name, source)).to_vec()
}

fn library(folder: &Path, name: &str, source: &str) -> PathBuf {
    let (text, library) = (folder.join(name).with_extension("cpp"), folder.join(name));
    fs::write(&text, source).unwrap();
    let compiler = compiler();
    let mut command = Command::new(&compiler);
    command.args(FLAGS);
    command.arg(format!("-DSTAMP={}", stamp(&compiler)));
    command.arg(format!("-Wl,-soname,{name}")).arg("-o").arg(&library).arg(&text);
    let driver = folder.join(LIBRARIES[0].0);
    if library != driver {
        command.arg(driver);
    }
    let output = command.output();
    let output =
        output.unwrap_or_else(|e| panic!("the tests need a C++ compiler, {compiler}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} does not compile:\n{said}");
    library
}

fn compiler() -> String {
    env::var("CXX").unwrap_or_else(|_| "c++".into())
}

/// A hash of everything that the images of kernels depend on.
fn stamp(compiler: &str) -> u64 {
    let mut hash = DefaultHasher::new();
    (LIBRARIES, HEADERS, include_str!("shim.h"), FLAGS, compiler).hash(&mut hash);
    1_000 + hash.finish() % 1_000_000
}
