//! The permission to use tiles, which the system gives to a process.

use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// Returns true if the processor has AMX for bf16 and the system lets this process use it.
pub(in super::super) fn is_permitted() -> bool {
    static IS_PERMITTED: OnceLock<bool> = OnceLock::new();
    *IS_PERMITTED.get_or_init(|| has_amx() && asked())
}

fn has_amx() -> bool {
    const BF16: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    let wanted = BF16 | TILES;
    __cpuid_count(7, 0).edx & wanted == wanted
        && std::is_x86_feature_detected!("avx512bw")
        && std::is_x86_feature_detected!("avx512bf16")
}

/// Asks Linux for the permission, which holds for all threads of the process. It is refused by a
/// kernel without AMX, and if a thread's stack for signals has no room for tiles.
#[cfg(target_os = "linux")]
fn asked() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and touches no memory of this process.
    let answer =
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) };
    answer == 0
}

/// Other systems are never asked: nobody has tried their ways here.
#[cfg(not(target_os = "linux"))]
fn asked() -> bool {
    false
}
