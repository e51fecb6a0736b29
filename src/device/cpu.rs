//! The processor.

use std::any::Any;

use anyhow::{Context, Result};
use chimera_backend_cpu::{Bf16Products, Candle};
use chimera_core::device::Device;
use chimera_device::{Backend, Bf16Products as Way, Numbers, Precision, machine};

/// The processor.
#[derive(Clone, Debug)]
pub struct Cpu {
    kernels: Candle,
    /// The way to multiply bf16, if products are in bf16.
    bf16_products: Option<Bf16Products>,
}

impl Backend for Cpu {
    fn list() -> Result<Vec<String>> {
        Ok(vec![format!("cpu: {}", processor())])
    }

    fn number(_: usize) -> Result<Option<usize>> {
        Ok(None)
    }

    fn open(_: usize, numbers: Numbers) -> Result<Cpu> {
        if numbers.precision != Precision::Bf16 {
            return Ok(Cpu { kernels: Candle::cpu(), bf16_products: None });
        }
        let way = match numbers.bf16_products {
            Way::Auto => Bf16Products::fastest(),
            Way::Amx => Bf16Products::Amx,
            Way::Dot => Bf16Products::Dot,
            Way::Fma => Bf16Products::Fma,
        };
        let kernels = Candle::cpu_bf16_by(way).with_context(|| {
            let lacks = if way == Bf16Products::Amx {
                "amx: this processor has no AMX for bf16, or its system does not let processes use it"
            } else {
                "dot: this processor has no AVX-512 BF16"
            };
            format!(
                "bf16-products {lacks}; choose fma, which rounds the same operands and adds their products in f32"
            )
        })?;
        Ok(Cpu { kernels, bf16_products: Some(way) })
    }

    fn kernels(&self) -> &dyn Any {
        &self.kernels
    }

    fn name(&self) -> String {
        Device::name(&self.kernels)
    }

    fn bf16_products(&self) -> Option<&'static str> {
        self.bf16_products.map(|way| match way {
            Bf16Products::Amx => "amx",
            Bf16Products::Dot => "dot",
            Bf16Products::Fma => "fma",
        })
    }

    fn model(&self) -> String {
        "cpu".into()
    }

    fn open_offload_file(&self) -> std::io::Result<()> {
        self.kernels.open_offload_file()
    }
}

/// The processor's name, cores and vectors, and how it multiplies in bf16.
fn processor() -> String {
    let bf16 = match Bf16Products::fastest() {
        Bf16Products::Amx => "amx: by tiles",
        Bf16Products::Dot => "dot: by vdpbf16ps",
        Bf16Products::Fma => "fma: rounded, then multiplied in f32",
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
