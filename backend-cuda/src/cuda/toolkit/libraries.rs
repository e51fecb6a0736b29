//! The CUDA libraries, found and opened before cudarc asks for them: it panics if they are missing,
//! and does not search the folders of toolkits and Python packages.
//!
//! An open library is found by its name, whichever folder it came from. So cudarc gets the
//! libraries that are opened here. That also holds for a program that is linked with them, which
//! has them open from the start.

use std::path::{Path, PathBuf};
use std::{fs, mem};

use cudarc::driver::sys;

use crate::folders::{begins, below, library_folders};

/// The CUDA version whose function tables this program was built with.
const MAJOR: i32 = (sys::CUDA_VERSION / 1000) as i32;
/// CUDA versions whose libraries are looked for only to report that they are too old.
const OLD: [i32; 3] = [12, 11, 10];

/// A library, and its dependencies.
pub(crate) struct Library {
    /// Name of the library in messages.
    title: &'static str,
    /// File name without the system's prefix and suffix.
    name: &'static str,
    /// Libraries in its folder that it opens by name.
    companion: Option<&'static str>,
    /// Whether it comes with the toolkit rather than with the driver.
    is_of_toolkit: bool,
}

pub(crate) const DRIVER: Library = Library {
    title: "NVIDIA driver",
    name: if cfg!(windows) { "nvcuda" } else { "cuda" },
    companion: None,
    is_of_toolkit: false,
};
pub(crate) const NVRTC: Library = Library {
    title: "NVRTC",
    name: "nvrtc",
    companion: Some("nvrtc-builtins"),
    is_of_toolkit: true,
};
pub(crate) const CUBLAS: Library =
    Library { title: "cuBLAS", name: "cublasLt", companion: None, is_of_toolkit: true };

impl Library {
    /// Opens the library, unless it is open.
    ///
    /// # Errors
    /// If it is not found, with a message.
    pub(crate) fn require(&self) -> Result<(), String> {
        if self.names().iter().any(opens) {
            return Ok(());
        }
        if !self.is_of_toolkit {
            return Err(format!("there is no {}: {} is not found", self.title, self.file()));
        }
        if self.open_in(&library_folders()) {
            return Ok(());
        }
        match OLD.into_iter().find(|major| *major < MAJOR && opens(self.of(*major))) {
            Some(old) => Err(self.too_old(&format!("{} of CUDA {old}", self.of(old)))),
            None => Err(format!("{} is not found", self.file())),
        }
    }

    /// Refuses an older CUDA than the program was built for: functions have other types there.
    ///
    /// # Errors
    /// If `major` is older.
    pub(crate) fn check(&self, major: i32, version: &str) -> Result<(), String> {
        if major >= MAJOR {
            return Ok(());
        }
        let place = self.place().map(|path| format!(" ({})", path.display()));
        Err(self.too_old(&format!("{} {version}{}", self.title, place.unwrap_or_default())))
    }

    fn too_old(&self, found: &str) -> String {
        let (file, unversioned) = (self.file(), self.unversioned());
        // The unversioned name is tried first, and Python packages do not have it.
        format!(
            "{found} is too old: this program needs {} of CUDA {MAJOR}; put a folder first in LD_LIBRARY_PATH that has {file}, \
             and {unversioned} as a link to it",
            self.title
        )
    }

    /// Returns the names by which cudarc looks for it, as far as they have this version or none.
    fn names(&self) -> Vec<String> {
        vec![self.unversioned(), self.file()]
    }

    fn unversioned(&self) -> String {
        let prefix = if cfg!(windows) { "" } else { "lib" };
        format!("{prefix}{}{}", self.name, std::env::consts::DLL_SUFFIX)
    }

    /// Returns the file name in its packages.
    fn file(&self) -> String {
        self.of(if self.is_of_toolkit { MAJOR } else { 1 })
    }

    fn of(&self, major: i32) -> String {
        match (cfg!(windows), self.name) {
            (false, name) => format!("lib{name}.so.{major}"),
            (true, "nvcuda") => "nvcuda.dll".into(),
            (true, "nvrtc") => format!("nvrtc64_{major}0_0.dll"),
            (true, name) => format!("{name}64_{major}.dll"),
        }
    }

    /// Returns true if it was opened in one of these folders, after its companion there.
    fn open_in(&self, folders: &[PathBuf]) -> bool {
        folders.iter().any(|folder| {
            let library = folder.join(self.file());
            if !library.is_file() {
                return false;
            }
            for companion in self.companions(folder) {
                opens(&companion);
            }
            opens(&library) && self.names().iter().any(opens)
        })
    }

    fn companions(&self, folder: &Path) -> Vec<PathBuf> {
        let Some(name) = self.companion else { return Vec::new() };
        let begin = if cfg!(windows) {
            format!("{name}64_{MAJOR}")
        } else {
            format!("lib{name}.so.{MAJOR}")
        };
        below(folder).into_iter().filter(|path| begins(path, &begin)).collect()
    }

    /// Returns the file that is open under its name, if the system reports it.
    fn place(&self) -> Option<PathBuf> {
        let maps = fs::read_to_string("/proc/self/maps").ok()?;
        let begin = format!("lib{}.so", self.name);
        let paths = maps.lines().filter_map(|line| Some(PathBuf::from(&line[line.find('/')?..])));
        paths.into_iter().find(|path| begins(path, &begin))
    }
}

/// Opens a library for as long as the process lives. Returns false if there is none.
fn opens(name: impl libloading::AsFilename) -> bool {
    // SAFETY: opening a CUDA library runs its initialisers, which are made for that.
    unsafe { libloading::Library::new(name) }.map(mem::forget).is_ok()
}
