//! The processor.

use std::any::Any;

use anyhow::{Context, Result};
use chimera_backend_cpu::Candle;
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
        of(precision, Candle::cpu_bf16()).map(Cpu)
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

/// Returns the processor for products in this precision; not every processor supports bf16.
fn of(precision: Precision, bf16: Option<Candle>) -> Result<Candle> {
    match precision {
        Precision::F32 | Precision::Tf32 => Ok(Candle::cpu()),
        Precision::Bf16 => bf16.with_context(|| {
            format!(
                "precision bf16 on device `cpu` needs AVX-512 BF16 instructions, which this \
                 processor ({}) lacks (AMD's have them since Zen 4): choose precision f32",
                machine()
            )
        }),
    }
}

/// The processor's name, cores and vectors, and the precisions that it multiplies.
fn processor() -> String {
    let precisions = if Candle::cpu_bf16().is_some() { "f32 or bf16" } else { "f32" };
    format!("{}, {}; kernels in {precisions}", machine(), vectors())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_without_the_instructions_refuses_bf16() {
        assert!(of(Precision::F32, None).is_ok());
        let refusal = of(Precision::Bf16, None).expect_err("no instructions").to_string();
        for part in
            ["AVX-512 BF16 instructions, which this processor (", "lacks", "choose precision f32"]
        {
            assert!(refusal.contains(part), "{refusal}");
        }
        let given = of(Precision::Bf16, Some(Candle::cpu()));
        assert!(given.is_ok());
    }
}
