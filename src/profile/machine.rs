//! What a profile holds for beside this machine: this build of the program.

/// The program's version, and whether it was built for use.
pub fn build() -> String {
    let debug = if cfg!(debug_assertions) { " with debug assertions" } else { "" };
    format!("{}{debug}", env!("CARGO_PKG_VERSION"))
}
