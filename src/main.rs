//! The `chimera` command.

use std::ffi::OsString;

/// A training step frees nearly all the memory that it took, and the next step takes it again.
/// jemalloc keeps it in between, so a page faults once.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Settings of jemalloc: huge pages, one arena for all threads, from which large blocks come too, and
/// no memory returned to the system.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "jemalloc reads its settings from a symbol of this name")]
#[unsafe(export_name = "_rjem_malloc_conf")]
static ALLOCATOR_SETTINGS: &[u8; 78] =
    b"thp:always,narenas:1,oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1\0";

fn main() -> std::process::ExitCode {
    if cfg!(feature = "nccl") {
        set_cuda_environment(over_nccl(std::env::args_os().skip(1)));
    }
    #[cfg(unix)]
    catch_file_size_limit();
    chimera::cli::main()
}

/// Turns a file that outgrows `ulimit -f` into a write error, which is reported like any other. The
/// signal would end the process without a message.
#[cfg(unix)]
fn catch_file_size_limit() {
    let caught = std::sync::Arc::default(); // never read: the write fails too
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, caught);
}

/// Sets variables that CUDA and NCCL read when they are opened, unless the environment has them.
///
/// Layers that use NCCL wait on the device for those of other ranks, so nothing that those wait for
/// may be queued after them: neither in a hardware queue that several streams share, nor because a
/// kernel is loaded at its first use. Loading all kernels at once takes seconds and up to a GiB, so
/// it is only done for runs over NCCL. And ranks that are threads must not read each other's
/// memory, because their GPUs may not allow peer access.
#[expect(unsafe_code, reason = "the environment is the one way to say it")]
fn set_cuda_environment(over_nccl: bool) {
    let mut settings =
        vec![("CUDA_DEVICE_MAX_CONNECTIONS", "32"), ("NCCL_P2P_DIRECT_DISABLE", "1")];
    if over_nccl {
        settings.push(("CUDA_MODULE_LOADING", "EAGER"));
    }
    for (name, value) in settings {
        if std::env::var_os(name).is_none() {
            // SAFETY: no other thread has been started.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

/// Returns true if a command line trains over NCCL, by its options or its settings file, or tests
/// NCCL. It is read before the settings are, since reading those starts threads.
fn over_nccl(words: impl IntoIterator<Item = OsString>) -> bool {
    let words: Vec<String> = words.into_iter().map(|word| word.to_string_lossy().into()).collect();
    let values = |option: &str| -> Vec<String> {
        let after = words.iter().zip(words.iter().skip(1)).filter(|(word, _)| *word == option);
        let joined = words.iter().filter_map(|word| word.strip_prefix(option)?.strip_prefix('='));
        after.map(|(_, value)| value.clone()).chain(joined.map(str::to_string)).collect()
    };
    if words.first().is_some_and(|command| command == "selftest") {
        let parts = values("--part");
        return parts.is_empty() || parts.iter().any(|part| part.starts_with("NCCL"));
    }
    let transports = values("--transport");
    if let Some(last) = transports.last() {
        return last == "nccl";
    }
    let is_said = |settings: toml::Table| settings.get("transport")?.as_str().map(|t| t == "nccl");
    let files =
        values("--config").into_iter().filter_map(|path| std::fs::read_to_string(path).ok());
    files.into_iter().any(|text| text.parse().ok().and_then(is_said) == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_loaded_at_once_for_nccl_alone() -> std::io::Result<()> {
        let asked = |line: &str| over_nccl(line.split_whitespace().map(OsString::from));
        for line in ["train --transport nccl", "train --depth 2 --transport=nccl", "selftest"] {
            assert!(asked(line), "{line}");
        }
        for line in ["train", "train --transport mpi", "train --out nccl", "selftest --part steps"]
        {
            assert!(!asked(line), "{line}");
        }
        assert!(!asked("train --transport nccl --transport=mpi"), "the last one wins");
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("run.toml");
        std::fs::write(&file, "depth = 4\ntransport = \"nccl\"\n")?;
        assert!(asked(&format!("train --config {}", file.display())));
        assert!(!asked(&format!("train --config {} --transport mpi", file.display())));
        Ok(())
    }
}
