//! `chimera profile`: measures the layers of the built-in models on the devices of a machine.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail, ensure};
use chimera_core::model::{Architecture, PRESETS, Preset};
use chimera_core::notation::significant;
use clap::{Args, ValueHint};

use crate::cli::parts::schedule::costs::whole_in;
use crate::cli::parts::terminal::console::{check_writable, print, tell, warn, write_whole};
use crate::cli::parts::terminal::offered::{device_name, offered};
use crate::cli::parts::terminal::output::is_standard_output;
use crate::cli::parts::terminal::progress::bar;
use crate::device::{Device, Precision, n_cores, start_threads};
use crate::observe::calendar_time;
use crate::profile::{self, LEAST_ROUNDS, Measurements, Sample, Workers, measure, samples};
use crate::run::launch::Launch;
use crate::settings::meant;

/// Interval between lines of progress if standard error is not a terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(15);
/// If measuring took more than this times the requested time, the report explains why.
const MUCH: f64 = 1.25;

/// Measures the speed of this machine, for `plan`
///
/// Times the layers of GPT-2 and Llama, forward and backward, over a grid of widths, tokens, sample lengths and heads, and
/// every optimizer: with one worker, and with a worker for each core. The times of other sizes follow from these. Run it
/// once on each machine, not under mpirun or srun.
#[derive(Args)]
pub(crate) struct Profile {
    /// Architecture to measure over a grid of sizes: gpt2, llama or bert; may be repeated [default: gpt2 and llama, unless a
    /// preset is given]
    #[arg(long = "model", value_name = "NAME", value_parser = offered(Architecture::from_str, || Architecture::ALL.map(Architecture::name).to_vec()), hide_possible_values = true)]
    models: Vec<Architecture>,
    /// Models to measure at their own sizes, by name
    #[arg(long = "preset", value_name = "NAME,…", value_delimiter = ',', value_parser = offered(preset, presets), hide_possible_values = true)]
    presets: Vec<String>,
    /// Samples per micro-batch of the presets, e.g. 1,2,4
    #[arg(long, value_name = "B,…", value_delimiter = ',', default_values_t = [1, 4], allow_hyphen_values = true, value_parser = whole_in(1..=1 << 20))]
    micro_batch_size: Vec<u32>,
    /// Device: cpu, cuda, cuda:N, wgpu or wgpu:N
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = device_name(), hide_possible_values = true)]
    device: Device,
    /// Number format of matrix products: f32; on CUDA tf32 or bf16; on CPUs bf16
    #[arg(long, value_name = "FORMAT", default_value = "f32", value_parser = offered(Precision::from_str, || vec!["f32", "tf32", "bf16"]), hide_possible_values = true)]
    precision: Precision,
    /// Threads per worker; may be a list [default: all cores with one worker, and one thread with one worker and with a
    /// worker for each core]
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',', allow_hyphen_values = true, value_parser = whole_in(1..=1 << 10))]
    threads: Vec<u32>,
    /// Approximate seconds to measure for; every size is timed at least three times
    #[arg(long, value_name = "SECONDS", default_value_t = 90.0, allow_negative_numbers = true)]
    time: f64,
    /// File for the profile; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "profile.json", value_hint = ValueHint::FilePath)]
    out: PathBuf,
}

/// Parses the name of a preset.
fn preset(name: &str) -> Result<String, String> {
    let unknown = || match meant("preset", name) {
        Some(tip) => format!("unknown preset `{name}`: {tip}"),
        None => format!("unknown preset `{name}`: choose one of {}", presets().join(", ")),
    };
    Preset::named(name).map(|preset| preset.name.into()).ok_or_else(unknown)
}

fn presets() -> Vec<&'static str> {
    PRESETS.iter().map(|preset| preset.name).collect()
}

/// Refuses to measure as one of several ranks: they would disturb each other and write the same
/// file.
fn check_alone(launch: Option<Launch>) -> Result<()> {
    if let Some(launch) = launch.filter(|launch| launch.n_ranks > 1) {
        let Launch { launcher, n_ranks, .. } = launch;
        bail!(
            "profile measures a machine from one process, with one worker and with one for each core, but {launcher} has \
             started {n_ranks} ranks: start it once on each machine, without mpirun or srun"
        );
    }
    Ok(())
}

/// Describes the machine, and the measurements with each number of workers.
fn summary(profile: &profile::Profile) -> String {
    let mut text = format!("{}, {}, {}", profile.machine, profile.device, profile.precision);
    for measured in &profile.measured {
        let mut spreads: Vec<f64> = measured.parts.iter().map(|part| part.spread).collect();
        spreads.sort_by(f64::total_cmp);
        let spread = spreads.get(spreads.len() / 2).copied().unwrap_or(0.0);
        text.push_str(&format!(
            "\n{} worker(s) of {} thread(s): {} layers and sizes, spread {} %",
            measured.workers,
            measured.threads,
            measured.layers.len(),
            significant(100.0 * spread, 2)
        ));
    }
    text
}

impl Profile {
    pub(crate) fn run(self) -> Result<()> {
        check_alone(Launch::found())?;
        ensure!((0.0..=1e6).contains(&self.time), "--time {} is not in 0..=1e6", self.time);
        check_writable(&self.out)?; // measuring takes minutes
        start_threads()?;
        let (samples, settings) = (self.samples(), self.settings());
        let bar = bar("sizes measured");
        let last_line = Mutex::new(Instant::now());
        let progress = |workers: Workers, n_done: usize, n: usize| {
            let Workers { workers, threads } = workers;
            let who = format!("{workers} worker(s) of {threads} thread(s)");
            if bar.is_hidden() {
                let mut last = last_line.lock().unwrap_or_else(PoisonError::into_inner);
                if last.elapsed() >= BETWEEN_LINES {
                    *last = Instant::now();
                    tell(format_args!("measuring with {who}: {n_done} of {n} sizes in this round"));
                }
            }
            bar.set_message(who);
            bar.set_length(n as u64);
            bar.set_position(n_done as u64);
        };
        let (began, date) =
            (Instant::now(), humantime::format_rfc3339_seconds(calendar_time(SystemTime::now())));
        let time = Duration::try_from_secs_f64(self.time)?;
        let measured = measure(
            self.device,
            self.precision,
            &samples,
            &settings,
            time,
            date.to_string(),
            &progress,
        );
        bar.finish_and_clear();
        let profile = measured?;
        let is_piped = is_standard_output(&self.out);
        if is_piped {
            print(profile.to_json()?)?
        } else {
            write_whole(&self.out, &profile.to_json()?)?
        }
        for doubt in profile.measured.iter().filter_map(Measurements::doubt) {
            warn(&format!("{doubt}; measure again while it does nothing else"));
        }
        let seconds = began.elapsed().as_secs_f64();
        let beyond = if seconds > MUCH * self.time + 1.0 {
            format!(
                ", and not {} s: every size is timed {LEAST_ROUNDS} times, however long that takes",
                self.time
            )
        } else {
            String::new()
        };
        let place =
            if is_piped { "standard output".into() } else { self.out.display().to_string() };
        let text = format!("{}\nprofile: {place} ({seconds:.0} s{beyond})", summary(&profile));
        if is_piped {
            tell(text)
        } else {
            print(text)?
        }
        Ok(())
    }

    fn samples(&self) -> Vec<Sample> {
        let models = match (&self.models[..], &self.presets[..]) {
            ([], [_, ..]) => &[][..],
            ([], []) => &[Architecture::GPT2, Architecture::LLAMA][..],
            (models, _) => models,
        };
        let mut all: Vec<Sample> = models.iter().flat_map(|model| samples(*model)).collect();
        for preset in self.presets.iter().filter_map(|name| Preset::named(name)) {
            let sample = |samples: &u32| Sample {
                model: preset.config.clone(),
                sequence: preset.config.context,
                samples: *samples as usize,
            };
            all.extend(self.micro_batch_size.iter().map(sample));
        }
        all
    }

    /// Lists combinations of threads and workers: one worker, and as many as the cores allow.
    fn settings(&self) -> Vec<Workers> {
        let n_cores = if self.device.is_host() { n_cores() } else { 1 };
        let threads: Vec<usize> = match &self.threads[..] {
            [] => vec![n_cores, 1],
            given => given.iter().map(|n| *n as usize).collect(),
        };
        let mut settings = Vec::new();
        for threads in threads {
            for workers in [1, (n_cores / threads).max(1)] {
                if !settings.contains(&Workers { workers, threads }) {
                    settings.push(Workers { workers, threads });
                }
            }
        }
        settings
    }
}
