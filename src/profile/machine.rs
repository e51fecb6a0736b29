//! What a profile holds for: this machine, and this build of the program.

use std::thread::available_parallelism;

/// The processor's name, and its cores.
pub fn machine() -> String {
    let known = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = known.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let name = named.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    format!("{name}, {} core(s)", n_cores())
}

/// Cores that this process may use.
pub fn n_cores() -> usize {
    available_parallelism().map_or(1, |n| n.get())
}

/// The program's version, and whether it was built for use.
pub fn build() -> String {
    let debug = if cfg!(debug_assertions) { " with debug assertions" } else { "" };
    format!("{}{debug}", env!("CARGO_PKG_VERSION"))
}
