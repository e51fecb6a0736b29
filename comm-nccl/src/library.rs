//! NCCL's library, opened on first use.
//!
//! Its functions are looked up here and not through `cudarc::nccl`. That does not know the name
//! that the packages of pip and Debian install (`libnccl.so.2`), and panics if there is no library.

use std::error::Error as _;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;

use chimera_backend_cuda::library_folders;

/// The library's names in runtime packages and in development packages.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// A communicator of the library.
pub(crate) type Handle = *mut c_void;

/// The id that distinguishes a communicator's ranks from others.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId(pub(crate) [u8; UniqueId::BYTES]);

impl UniqueId {
    pub(crate) const BYTES: usize = 128;
}

/// `ncclConfig_t` of NCCL 2.18. Later versions recognise it by its size and version.
#[repr(C)]
pub(crate) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    /// Padding, which later versions read as a setting.
    traffic_class: c_int,
}

impl Config {
    /// Makes calls return early. The few messages run beside compute, which keeps most of the chip.
    pub(crate) fn non_blocking() -> Config {
        const UNDEFINED: c_int = c_int::MIN;
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: 21_801,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: 4,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
            traffic_class: UNDEFINED,
        }
    }
}

/// The result of a call: `ncclResult_t`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome(c_uint);

impl Outcome {
    pub(crate) const SUCCESS: Outcome = Outcome(0);
    pub(crate) const IN_PROGRESS: Outcome = Outcome(7);
    const INVALID_USAGE: Outcome = Outcome(5);
}

macro_rules! functions {
    ($($name:ident: $symbol:literal, fn($($arg:ty),*) -> $out:ty;)*) => {
        /// The NCCL functions in use, with the C types of `nccl.h`.
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) -> $out,)*
        }

        impl Functions {
            /// # Safety
            /// The library must be NCCL, and stay open.
            unsafe fn of(library: &libloading::Library) -> Result<Functions, libloading::Error> {
                // SAFETY: the symbols are of these types in every NCCL since 2.18.
                unsafe { Ok(Functions { $($name: *library.get($symbol)?,)* }) }
            }
        }
    };
}

functions! {
    get_version: b"ncclGetVersion\0", fn(*mut c_int) -> Outcome;
    get_unique_id: b"ncclGetUniqueId\0", fn(*mut UniqueId) -> Outcome;
    init: b"ncclCommInitRankConfig\0", fn(*mut Handle, c_int, UniqueId, c_int, *mut Config) -> Outcome;
    async_error: b"ncclCommGetAsyncError\0", fn(Handle, *mut Outcome) -> Outcome;
    finalize: b"ncclCommFinalize\0", fn(Handle) -> Outcome;
    destroy: b"ncclCommDestroy\0", fn(Handle) -> Outcome;
    abort: b"ncclCommAbort\0", fn(Handle) -> Outcome;
    error_string: b"ncclGetErrorString\0", fn(Outcome) -> *const c_char;
    last_error: b"ncclGetLastError\0", fn(Handle) -> *const c_char;
    group_start: b"ncclGroupStart\0", fn() -> Outcome;
    group_end: b"ncclGroupEnd\0", fn() -> Outcome;
    send: b"ncclSend\0", fn(*const c_void, usize, c_int, c_int, Handle, *mut c_void) -> Outcome;
    recv: b"ncclRecv\0", fn(*mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> Outcome;
}

/// `ncclInt8`: messages are bytes to NCCL.
pub(crate) const BYTE: c_int = 0;

/// NCCL, open.
pub struct Library {
    pub(crate) call: Functions,
}

impl Library {
    /// Opens the machine's library, by name or in the folders of [`library_folders`].
    ///
    /// # Errors
    /// If the library is missing or lacks a function.
    pub fn open() -> Result<Library, String> {
        let folders = library_folders().into_iter().map(|folder| folder.join(NAMES[0]));
        let paths: Vec<PathBuf> = folders.filter(|path| path.is_file()).collect();
        let names = NAMES.map(OsStr::new).into_iter().chain(paths.iter().map(AsRef::as_ref));
        Library::first_of(&names.collect::<Vec<_>>())
    }

    /// Opens the library that has this path or name.
    ///
    /// # Errors
    /// If the library is missing or lacks a function.
    pub fn open_at(path: impl AsRef<OsStr>) -> Result<Library, String> {
        Library::first_of(&[path.as_ref()])
    }

    fn first_of(names: &[&OsStr]) -> Result<Library, String> {
        let mut refusals = Vec::new();
        for &name in names {
            // SAFETY: opening NCCL runs its initialisers, which are made for that.
            match unsafe { libloading::Library::new(name) } {
                Ok(open) => {
                    // SAFETY: the functions live as long as the library, which is never closed.
                    let call = unsafe { Functions::of(&open) };
                    let call = call.map_err(|e| format!("NCCL is too old: {}", reason(&e)))?;
                    // Aborted work may still end on threads and devices.
                    std::mem::forget(open);
                    return Ok(Library { call });
                }
                Err(e) => refusals.push(format!("{} ({})", name.to_string_lossy(), reason(&e))),
            }
        }
        let refusals = refusals.join(", ");
        Err(format!("NCCL is not found: {refusals}; see docs/gpu.md for sources"))
    }

    /// Returns its version, such as `2.30.7`.
    ///
    /// # Errors
    /// If the library does not return it.
    pub fn version(&self) -> Result<String, String> {
        let version = self.number()?;
        Ok(format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100))
    }

    /// Returns true if several ranks may share a GPU.
    ///
    /// # Errors
    /// If the library does not return its version.
    pub fn shares_gpus(&self) -> Result<bool, String> {
        let is_asked = std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").as_deref() == Ok("1");
        Ok(is_asked && self.number()? >= 23_000)
    }

    fn number(&self) -> Result<c_int, String> {
        let mut version = 0;
        // SAFETY: it writes an int.
        let outcome = unsafe { (self.call.get_version)(&raw mut version) };
        self.check(outcome, std::ptr::null_mut())?;
        Ok(version)
    }

    /// Returns an error with NCCL's own text, if a call failed.
    pub(crate) fn check(&self, outcome: Outcome, communicator: Handle) -> Result<(), String> {
        if outcome == Outcome::SUCCESS {
            return Ok(());
        }
        let text = |words: *const c_char| {
            // SAFETY: the library returns null or a text that ends with 0.
            let words = (!words.is_null()).then(|| unsafe { CStr::from_ptr(words) });
            words.map(|words| words.to_string_lossy().trim().to_string()).unwrap_or_default()
        };
        // SAFETY: the communicator is null or alive.
        let (kind, last) = unsafe {
            (text((self.call.error_string)(outcome)), text((self.call.last_error)(communicator)))
        };
        let detail = if last.is_empty() { String::new() } else { format!(" ({last})") };
        let hint = match outcome {
            Outcome::INVALID_USAGE => {
                "; if several ranks share a GPU, NCCL 2.30 or later with \
                 NCCL_MULTI_RANK_GPU_ENABLE=1 is needed"
            }
            _ => "",
        };
        Err(format!("NCCL: {kind}{detail}{hint}"))
    }
}

/// Returns the loader's own text: an error of `libloading` only names the call.
fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}
