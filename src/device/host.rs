//! The machine that this process runs on.

/// The processor's name, and its cores.
pub(crate) fn machine() -> String {
    let known = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = known.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let name = named.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    format!("{name}, {} core(s)", n_cores())
}

/// Cores that this process may use.
pub(crate) fn n_cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}
