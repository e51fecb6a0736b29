//! Folders of CUDA libraries that the loader does not search itself.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Returns the existing folders of toolkits and Python packages that the environment names.
///
/// They are those of `CUDA_HOME` and `CUDA_PATH` (a toolkit), of `CONDA_PREFIX` and `VIRTUAL_ENV`
/// (an environment with pip's packages), and the installer's default folder of a toolkit. The
/// loader's own folders, such as those of `LD_LIBRARY_PATH`, come before them and are not included.
pub fn library_folders() -> Vec<PathBuf> {
    folders(|name| env::var_os(name))
}

fn folders(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(set);
    let mut found = Vec::new();
    for toolkit in toolkits {
        found.extend(["lib64", "lib", "bin/x64", "bin"].map(|name| toolkit.join(name)));
    }
    for environment in ["CONDA_PREFIX", "VIRTUAL_ENV"].into_iter().filter_map(set) {
        let lib = environment.join("lib");
        let pythons = below(&lib).into_iter().filter(|path| begins(path, "python3"));
        let sites = pythons.map(|python| python.join("site-packages"));
        for site in sites.chain([environment.join("Lib/site-packages")]) {
            let packages = below(&site.join("nvidia"));
            found.extend(packages.iter().flat_map(|p| ["lib", "bin"].map(|name| p.join(name))));
        }
        found.push(lib);
    }
    found.push("/usr/local/cuda/lib64".into());
    found.retain(|folder| folder.is_dir());
    found
}

/// Returns the contents of a folder, sorted; nothing if it cannot be read.
pub(super) fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = folder.read_dir().into_iter().flatten();
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

/// Returns true if a file's name begins with this text.
pub(super) fn begins(path: &Path, with: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(with))
}

#[cfg(test)]
mod tests {
    use std::fs::create_dir_all;

    use super::*;

    #[test]
    fn toolkits_come_before_packages() -> std::io::Result<()> {
        let root = env::temp_dir().join(format!("chimera-folders-{}", std::process::id()));
        let (toolkit, venv) = (root.join("cuda"), root.join("venv"));
        let packages = venv.join("lib/python3.12/site-packages/nvidia");
        for folder in [toolkit.join("lib64"), packages.join("cu13/lib"), packages.join("nccl/lib")]
        {
            create_dir_all(folder)?;
        }
        let variable = |name: &str| match name {
            "CUDA_HOME" => Some(toolkit.clone().into_os_string()),
            "CUDA_PATH" => Some(OsString::new()),
            "VIRTUAL_ENV" => Some(venv.clone().into_os_string()),
            _ => None,
        };
        let found: Vec<_> = folders(variable)
            .iter()
            .filter_map(|folder| folder.strip_prefix(&root).ok().map(Path::to_path_buf))
            .collect();
        let nvidia = Path::new("venv/lib/python3.12/site-packages/nvidia");
        let expected = [
            PathBuf::from("cuda/lib64"),
            nvidia.join("cu13/lib"),
            nvidia.join("nccl/lib"),
            "venv/lib".into(),
        ];
        assert_eq!(found, expected);
        std::fs::remove_dir_all(root)
    }
}
