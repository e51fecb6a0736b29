//! `chimera selftest`: tests whether a device computes correctly, and measures its speed.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use clap::{Args, ValueEnum};

use crate::cli::parts::terminal::console::{check_writable, print};
use crate::cli::parts::terminal::offered::device_name;
use crate::cli::parts::terminal::output::written_path;
use crate::device::selftest::{Options, Size, run};
use crate::device::{Device, start_threads};

/// Tests kernels and training on a device, and measures their speed
///
/// Compares layers with a reference in f64 (within 1e-5 in f32, 1e-2 in bf16), and losses of pipelines with those of one
/// worker on the CPU (1e-4, 1e-2). Needs only this program and the device.
#[derive(Args)]
pub(crate) struct Selftest {
    /// Device: cpu, cuda, cuda:N, wgpu or wgpu:N
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    #[arg(value_parser = device_name(), hide_possible_values = true)]
    device: Device,
    /// Size of the measurements [default: full on CUDA, otherwise small]
    #[arg(long, value_name = "SIZE")]
    size: Option<Measured>,
    /// Run only this part, e.g. `kernels` or `steps bf16`; may be repeated
    #[arg(long = "part", value_name = "NAME")]
    parts: Vec<String>,
    /// Time limit in seconds; unfinished parts fail
    #[arg(long, value_name = "SECONDS", default_value_t = 540.0, allow_negative_numbers = true)]
    time: f64,
    /// File for all findings, updated after each part
    #[arg(long, value_name = "FILE", value_parser = written_path())]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Measured {
    /// Seconds on any processor
    Small,
    /// GPT-2 with 124 million parameters
    Full,
}

impl Selftest {
    pub(crate) fn run(self) -> Result<()> {
        let size = match self.size {
            Some(Measured::Full) => Size::Full,
            Some(Measured::Small) => Size::Small,
            None => Size::of(self.device),
        };
        self.json.as_deref().map_or(Ok(()), check_writable)?; // the tests take minutes
        start_threads()?;
        let mut written = Ok(());
        ensure!((0.0..=1e6).contains(&self.time), "--time {} is not in 0..=1e6", self.time);
        let time = Duration::try_from_secs_f64(self.time)?;
        let options = Options { parts: self.parts, device: self.device, size, time };
        let say = |line: &str| {
            if written.is_ok() {
                written = print(format!("{line}\n"));
            }
        };
        let report = run(&options, say, |report| match &self.json {
            None => Ok(()),
            Some(file) => {
                let json = serde_json::to_string_pretty(report)? + "\n";
                fs::write(file, json).with_context(|| format!("cannot write {}", file.display()))
            }
        })?;
        written?;
        let n = report.checks.len();
        let failed = report.checks.iter().filter(|check| !check.passed);
        let failed: Vec<&str> = failed.map(|check| &*check.what).collect();
        if !failed.is_empty() {
            let message = format!("{} of {n} checks failed: {}", failed.len(), failed.join("; "));
            return Err(anyhow!(Fault::new(Class::Internal, Rank(0), message)));
        }
        print(format!("{}: all {n} checks passed\n", report.device))
    }
}
