//! The processor.

use anyhow::Result;
use chimera_backend_candle::Candle;
use chimera_core::device::Device;

use super::backend::Backend;
use super::host::machine;
use super::precision::Precision;

impl Backend for Candle {
    fn list() -> Result<Vec<String>> {
        Ok(vec![format!("cpu: {}", processor())])
    }

    fn number(_: usize) -> Result<Option<usize>> {
        Ok(None)
    }

    fn open(_: usize, _: Precision) -> Result<Candle> {
        Ok(Candle::cpu())
    }

    fn name(&self) -> String {
        Device::name(self)
    }

    fn model(&self) -> String {
        "cpu".into()
    }
}

/// The processor's name, cores and vectors.
fn processor() -> String {
    format!("{}, {}; kernels in f32", machine(), vectors())
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
