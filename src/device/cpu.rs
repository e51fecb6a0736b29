//! The processor.

use std::any::Any;

use anyhow::Result;
use chimera_backend_cpu::{Bf16Products, Candle};
use chimera_core::device::Device;
use chimera_device::{Backend, Precision, machine};

/// The processor.
#[derive(Clone, Debug)]
pub struct Cpu(Candle);

impl Backend for Cpu {
    fn list() -> Result<Vec<String>> {
        Ok(vec![format!("cpu: {}", processor())])
    }

    fn number(_: usize) -> Result<Option<usize>> {
        Ok(None)
    }

    fn open(_: usize, precision: Precision) -> Result<Cpu> {
        Ok(Cpu(match precision {
            Precision::F32 | Precision::Tf32 => Candle::cpu(),
            Precision::Bf16 => Candle::cpu_bf16(),
        }))
    }

    fn kernels(&self) -> &dyn Any {
        &self.0
    }

    fn name(&self) -> String {
        Device::name(&self.0)
    }

    fn model(&self) -> String {
        "cpu".into()
    }

    fn open_offload_file(&self) -> std::io::Result<()> {
        self.0.open_offload_file()
    }
}

/// The processor's name, cores and vectors, and how it multiplies in bf16.
fn processor() -> String {
    let bf16 = match Bf16Products::fastest() {
        Bf16Products::Dot => "by vdpbf16ps",
        Bf16Products::Fma => "rounded, then multiplied by FMA",
    };
    format!("{}, {}; kernels in f32 or bf16 ({bf16})", machine(), vectors())
}

/// The widest vectors that kernels use.
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
