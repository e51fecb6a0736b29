//! The compiler's log of kernels, and problems in it that stop or slow them.

use crate::most_threads;

/// Registers per multiprocessor, on every existing chip.
const MOST_REGISTERS: usize = 65_536;
/// A kernel that in bf16 may keep this many bytes per thread in local memory.
const SPILLS: (&str, usize) = ("tiled_attention_dkv", 8);
/// Registers per thread are allocated in multiples of this.
const GRAIN: usize = 8;

/// Returns the lines of a log of [`compile`](super::compile), each with its kernel.
pub fn by_kernel(log: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut kernel = "";
    log.lines().map(move |line| {
        if let Some((_, name)) = line.split_once("entry function '") {
            kernel = name.split('\'').next().unwrap_or_default();
        }
        (kernel, line)
    })
}

/// Describes the first kernel in a log of [`compile`](super::compile) whose threads keep values in
/// local memory, or whose blocks need more registers than a multiprocessor has.
pub fn fault(log: &str) -> Option<String> {
    by_kernel(log).find_map(|(kernel, line)| {
        let allowed = if kernel == SPILLS.0 { SPILLS.1 } else { 0 };
        for what in ["bytes stack frame", "bytes spill stores", "bytes spill loads"] {
            if let Some(bytes) = number(line, what).filter(|bytes| *bytes > allowed) {
                return Some(format!("{kernel} keeps values in local memory: {bytes} {what}"));
            }
        }
        let (registers, threads) = (number(line, "registers")?, most_threads(kernel));
        let needed = registers.next_multiple_of(GRAIN) * threads;
        (needed > MOST_REGISTERS).then(|| {
            format!("{kernel} cannot start: {threads} threads of {registers} registers, of {MOST_REGISTERS}")
        })
    })
}

/// Returns the number before a word.
fn number(line: &str, before: &str) -> Option<usize> {
    let (text, _) = line.split_once(before)?;
    text.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{SPILLS, fault};

    /// Returns the log of ptxas for one kernel.
    fn log(kernel: &str, frame: usize, spilt: usize, registers: usize) -> String {
        format!(
            "ptxas info    : Compiling entry function '{kernel}' for 'sm_90'\n\
             ptxas info    : Function properties for {kernel}\n    \
             {frame} bytes stack frame, {spilt} bytes spill stores, {spilt} bytes spill loads\n\
             ptxas info    : Used {registers} registers, used 1 barriers, 256 bytes smem\n"
        )
    }

    #[test]
    fn kernels_that_cannot_run_are_named() {
        let good =
            log("adamw", 0, 0, 255) + &log(SPILLS.0, 8, 8, 255) + &log("cross_entropy", 0, 0, 64);
        assert_eq!(fault(&good), None);
        for (bad, told) in [
            (log("adamw", 8, 0, 32), "adamw keeps values in local memory: 8 bytes stack frame"),
            (log("sgd", 0, 4, 32), "sgd keeps values in local memory: 4 bytes spill stores"),
            (log(SPILLS.0, 0, 24, 255), "tiled_attention_dkv keeps values in local memory: 24"),
            (log("cross_entropy", 0, 0, 65), "cross_entropy cannot start: 1024 threads"),
        ] {
            let said = fault(&(good.clone() + &bad)).unwrap_or_default();
            assert!(said.starts_with(told), "{said}");
        }
    }
}
