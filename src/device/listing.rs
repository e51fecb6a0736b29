//! What `chimera devices` lists.

use super::Device;
#[cfg(feature = "cuda")]
use super::cuda;
#[cfg(feature = "wgpu")]
use super::wgpu;

/// What `--device` can name on this machine, in words, and what it would take for the others.
pub fn available() -> Vec<String> {
    let mut devices = vec![format!("cpu: {}", processor())];
    #[cfg(feature = "cuda")]
    match cuda::devices() {
        Ok(gpus) => {
            devices.extend(gpus.iter().map(|gpu| format!("cuda:{}: {gpu}", gpu.ordinal)));
            devices.push(format!("cuda: {}", cuda::libraries()));
        }
        Err(none) => devices.push(format!("cuda: {none}")),
    }
    #[cfg(feature = "wgpu")]
    match wgpu::adapters() {
        Ok(adapters) => devices.extend(adapters.iter().enumerate().map(|(number, adapter)| {
            format!("wgpu:{number}: {adapter}\n{}", wgpu::products(adapter))
        })),
        Err(none) => devices.push(format!("wgpu: {none}")),
    }
    let others = [Device::Cuda(None), Device::Wgpu(None)];
    let missing = others.iter().filter_map(|device| device.is_built().err());
    devices.extend(missing.map(|refusal| refusal.to_string()));
    devices
}

/// The processor's name, cores and vectors.
fn processor() -> String {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let known = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = known.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let name = named.map_or(std::env::consts::ARCH, |(_, name)| name);
    format!("{name}, {cores} core(s), {}; kernels in f32", vectors())
}

/// The widest vectors that kernels make use of.
fn vectors() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::is_x86_feature_detected!("avx512f") {
            "AVX-512"
        } else if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
            "AVX2"
        } else {
            "SSE2"
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        "NEON"
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        "no vectors"
    }
}
