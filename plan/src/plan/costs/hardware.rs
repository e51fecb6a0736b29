//! Hardware by its data sheets, for plans of machines that were not measured.

use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use chimera_core::analyze::{Link, ReductionAlgorithm};
use chimera_device::{Device, Precision};
use chimera_formats::files::text_at_most;
use serde::Deserialize;

/// Shares of peak that training reaches on unmeasured hardware: a low, a middle and a high estimate.
pub const EFFICIENCIES: [f64; 3] = [0.3, 0.45, 0.6];

/// The share of a device's memory that a training can take; drivers and libraries use the rest.
pub const USABLE: f64 = 0.92;

/// Longer files are refused before they are read.
const MAX_BYTES: u64 = 1 << 16;

/// Defines the table of built-in data sheets from their names.
macro_rules! sheets {
    ($($name:literal),+ $(,)?) => {
        /// Built-in data sheets, by name.
        const BUILT_IN: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("hardware/", $name, ".toml")))),+];
    };
}

sheets! {
    "a100-40gb",
    "a100-80gb",
    "b200",
    "h100-pcie",
    "h100-sxm",
    "h200-sxm",
    "l4",
    "l40s",
    "mi300x",
    "p100-piz-daint",
    "rtx-a6000",
    "rtx3090",
    "rtx4090",
    "rtx5090",
    "v100-sxm2-16gb",
    "v100-sxm2-32gb",
}

/// Short names of data sheets.
const SHORT: [(&str, &str); 4] =
    [("a100", "a100-80gb"), ("h100", "h100-sxm"), ("h200", "h200-sxm"), ("v100", "v100-sxm2-32gb")];

/// Data sheets of a cluster's devices and links.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Hardware {
    /// Sources of the figures.
    pub sources: Vec<String>,
    /// The default device to train on.
    pub device: String,
    /// The default precision to train in.
    pub precision: String,
    memory_bytes: f64,
    /// The default number of ranks per node.
    pub ranks_per_node: u32,
    peak_flops: PeakFlops,
    inside: LinkRates,
    between: LinkRates,
    /// Whether sending a message occupies the worker.
    #[serde(default)]
    pub blocking: bool,
    /// The algorithm of gradient reductions.
    #[serde(default)]
    pub reductions: ReductionAlgorithm,
    /// Latency of a message of a reduction, if it is not that of the link.
    pub round_latency_s: Option<f64>,
    /// Tokens of a micro-batch with which training reaches half of its rate, see [`Rate`](super::rate::Rate).
    #[serde(default)]
    pub half_rate_tokens: f64,
    /// The share of its workers' compute and messages that a reduction takes while it runs.
    #[serde(default)]
    pub reduction_share: f64,
}

/// Floating-point operations per second of dense matrix products.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PeakFlops {
    f32: f64,
    bf16: Option<f64>,
}

/// A link of one rank.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct LinkRates {
    latency_s: f64,
    bytes_per_s: f64,
}

impl Hardware {
    /// Returns the names of the built-in data sheets.
    pub fn names() -> Vec<&'static str> {
        let short = SHORT.iter().map(|(name, _)| *name);
        let mut names: Vec<_> = BUILT_IN.iter().map(|(name, _)| *name).chain(short).collect();
        names.sort_unstable();
        names
    }

    /// Returns the built-in data sheet with this name, or the one in this file.
    ///
    /// # Errors
    /// If there is no such name or file, or its values make no sense.
    pub fn find(name: &str) -> Result<Hardware> {
        let lower = name.to_ascii_lowercase();
        let long =
            SHORT.iter().find(|(short, _)| *short == lower).map_or(&*lower, |(_, long)| long);
        if let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == long) {
            return Hardware::of(text).with_context(|| name.to_string());
        }
        let text = match text_at_most(Path::new(name), MAX_BYTES) {
            Err(error) if error.kind() == ErrorKind::NotFound => bail!(
                "there is no hardware `{name}` and no such file: choose one of {}, or give --flops, --memory and links",
                Hardware::names().join(", ")
            ),
            text => text.with_context(|| format!("cannot read {name}"))?,
        };
        let text = text.with_context(|| format!("{name} is longer than {MAX_BYTES} bytes"))?;
        Hardware::of(&text).with_context(|| format!("{name} is not a description of hardware"))
    }

    fn of(text: &str) -> Result<Hardware> {
        let hardware: Hardware = toml::from_str(text)?;
        hardware.check()?;
        Ok(hardware)
    }

    /// Refuses values that make no sense, by their keys.
    fn check(&self) -> Result<()> {
        let Hardware { device, precision, memory_bytes, ranks_per_node, peak_flops, .. } = self;
        if let Err(why) = device.parse::<Device>() {
            bail!("`device` is {device:?}: {why}")
        }
        if let Err(why) = precision.parse::<Precision>() {
            bail!("`precision` is {precision:?}: {why}")
        }
        let size = 1.0..=1e30;
        within("memory-bytes", *memory_bytes, &size)?;
        within("peak-flops.f32", peak_flops.f32, &size)?;
        within("peak-flops.bf16", peak_flops.bf16.unwrap_or(1.0), &size)?;
        for (latency, rate, link) in [
            ("inside.latency-s", "inside.bytes-per-s", &self.inside),
            ("between.latency-s", "between.bytes-per-s", &self.between),
        ] {
            within(latency, link.latency_s, &(0.0..=1e6))?;
            within(rate, link.bytes_per_s, &size)?;
        }
        within("round-latency-s", self.round_latency_s.unwrap_or(0.0), &(0.0..=1e6))?;
        within("half-rate-tokens", self.half_rate_tokens, &(0.0..=1e9))?;
        within("reduction-share", self.reduction_share, &(0.0..=0.99))?;
        ensure!(
            (1..=65_535).contains(ranks_per_node),
            "`ranks-per-node` is {ranks_per_node}; it must be a whole number from 1 to 65535"
        );
        Ok(())
    }

    /// Returns the peak floating-point operations per second.
    ///
    /// # Errors
    /// If the data sheet has none for the precision.
    pub fn peak_flops(&self, precision: Precision) -> Result<f64> {
        let peak = match precision {
            Precision::F32 => Some(self.peak_flops.f32),
            Precision::Tf32 => None,
            Precision::Bf16 => self.peak_flops.bf16,
        };
        peak.with_context(|| {
            format!(
                "the hardware has no rate for {precision}: choose --precision f32, or give --flops"
            )
        })
    }

    /// Returns the bytes that a rank can use.
    pub fn memory(&self) -> f64 {
        self.memory_bytes * USABLE
    }

    /// Returns the links of a rank within its node, and to other nodes. Each rank has an adapter of
    /// its own for the latter.
    pub fn links(&self) -> [Link; 2] {
        [self.inside, self.between]
            .map(|wire| Link { alpha: wire.latency_s, beta: 1.0 / wire.bytes_per_s })
    }
}

/// Refuses a number that is outside of its key's range.
fn within(key: &str, number: f64, range: &RangeInclusive<f64>) -> Result<()> {
    let (least, most) = (range.start(), range.end());
    ensure!(
        range.contains(&number),
        "`{key}` is {number:?}; it must be a number from {least} to {most:e}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_sheets_can_be_read_and_name_their_sources() {
        for name in Hardware::names() {
            let hardware = Hardware::find(name).expect(name);
            assert!(hardware.sources.iter().all(|source| source.starts_with("https://")), "{name}");
            assert!(!hardware.sources.is_empty() && hardware.memory() > 1e10, "{name}");
            let [inside, between] = hardware.links();
            assert!(inside.alpha <= between.alpha, "{name}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good = BUILT_IN[0].1;
        for (from, to, reason) in [
            ("40e9", "-1", "`memory-bytes` is -1.0; it must be a number from 1 to 1e30"),
            ("f32 = 19.5e12", "f32 = 0", "`peak-flops.f32` is 0.0; "),
            ("312e12", "inf", "`peak-flops.bf16` is inf; "),
            ("25e9", "nan", "`between.bytes-per-s` is NaN; "),
            ("5e-6", "-5e-6", "`inside.latency-s` is -5e-6; it must be a number from 0 to 1e6"),
            (
                "ranks-per-node = 8",
                "ranks-per-node = 0",
                "`ranks-per-node` is 0; it must be a whole number from 1 to 65535",
            ),
            ("\"bf16\"", "\"fp8\"", "`precision` is \"fp8\": "),
            ("\"cuda\"", "\"tpu\"", "`device` is \"tpu\": unknown device `tpu`: choose "),
            ("[inside]", "x = 1\n[inside]", "unknown field `x`"),
            (
                "ranks-per-node = 8",
                "ranks-per-node = 8\nround-latency-s = -1.0",
                "`round-latency-s` is -1.0; it must be a number from 0 to 1e6",
            ),
            (
                "ranks-per-node = 8",
                "ranks-per-node = 8\nhalf-rate-tokens = -1",
                "`half-rate-tokens` is -1.0; it must be a number from 0 to 1e9",
            ),
            (
                "ranks-per-node = 8",
                "ranks-per-node = 8\nreduction-share = 1",
                "`reduction-share` is 1.0; it must be a number from 0 to 9.9e-1",
            ),
        ] {
            assert!(good.contains(from), "{from}");
            let refused = Hardware::of(&good.replacen(from, to, 1)).expect_err(to).to_string();
            assert!(refused.contains(reason), "{to}: {refused}");
        }
        let refused = Hardware::find("abacus").expect_err("unknown").to_string();
        assert!(refused.contains("choose one of a100, a100-40gb, "), "{refused}");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_said_to_be_missing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sheet.toml");
        std::fs::write(&file, b"\xff\xfe").unwrap();
        for path in [folder.path(), &file] {
            let name = path.display().to_string();
            let refused = format!("{:#}", Hardware::find(&name).expect_err(&name));
            assert!(refused.starts_with(&format!("cannot read {name}: ")), "{refused}");
        }
    }
}
