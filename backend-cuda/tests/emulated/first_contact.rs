//! The backend on unfamiliar machines: a driver without memory pools, GPUs that do not reach each
//! other. It also frees all that it allocates.

use std::env;
use std::process::Command;

use chimera_backend_cuda::Format;
use chimera_core::device::Device;
use libloading::os::unix::Library;

use super::emulated;

/// Returns true if a test passes with these settings of the driver. It runs in a process of its
/// own, since settings are read once, and other tests open GPUs.
fn passes(test: &str, settings: &[(&str, &str)]) {
    let mut alone = Command::new(env::current_exe().expect("this program"));
    alone.args(["--exact", "--include-ignored", test]).envs(settings.iter().copied());
    let output = alone.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{test} with {settings:?}:\n{said}");
    assert!(said.contains("1 passed"), "{test} is not there");
}

#[test]
fn memory_is_given_back() {
    for pools in ["0", "1"] {
        passes("first_contact::all_is_free_again", &[("EMULATED_POOLS", pools)]);
    }
}

#[test]
fn gpus_train_without_pools_and_apart() {
    let training = "mistakes::two_gpus_train_as_the_reference";
    for seed in ["0", "1", "2"] {
        passes(training, &[("EMULATED_POOLS", "0"), ("EMULATED_SEED", seed)]);
    }
    passes(training, &[("EMULATED_PEERS", "0")]);
}

#[test]
#[ignore = "it counts the memory of the whole process: memory_is_given_back starts it alone"]
fn all_is_free_again() {
    const ELEMENTS: usize = 1 << 20;
    let opened = || {
        let gpu = emulated::gpu(0, Format::F32);
        let free = gpu.driver().free_bytes().expect("it says so");
        (gpu, free)
    };
    let (gpu, before) = opened();
    let other = emulated::gpu(0, Format::F32); // on the same memory
    let free = || gpu.driver().free_bytes().expect("it says so");
    let zeros = gpu.zeros(&[ELEMENTS]).expect("room");
    assert!(free() + 4 * ELEMENTS as u64 <= before, "{} of {before}", free());
    assert_eq!(other.download(&zeros).expect("zeros").len(), ELEMENTS);
    drop(zeros);
    let usage = gpu.driver().usage().expect("it counts");
    assert!(usage.reserved_bytes >= 4 * ELEMENTS as u64 && usage.used_bytes == 0, "{usage:?}");
    drop(other);
    assert_eq!(free(), before, "what is kept for later counts as free");
    let again = gpu.zeros(&[ELEMENTS]).expect("room");
    let reserved = gpu.driver().usage().expect("it counts").reserved_bytes;
    assert_eq!(reserved, usage.reserved_bytes, "it takes what it has");
    drop((again, gpu));
    assert_eq!(n_pools(), 0);
    let (_gpu, after) = opened();
    assert_eq!(after, before);
}

/// Number of pools that the program has made and not destroyed.
fn n_pools() -> i32 {
    // SAFETY: the emulated driver is open for all, and the function takes no arguments.
    unsafe {
        let count = Library::this().get::<unsafe extern "C" fn() -> i32>(b"emulated_n_pools\0");
        count.expect("the emulated driver counts")()
    }
}
