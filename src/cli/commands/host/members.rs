//! Members of a run: their machines, devices and speeds.

use std::fmt::Write;

use anyhow::{Result, ensure};
use chimera_backend_cpu::measured_peak;
use chimera_comm_quic::{Guest, Wish};
use serde::{Deserialize, Serialize};

use crate::cli::parts::terminal::message::shown;
use crate::run::host_name;
use crate::settings::{Config, Layout, Settings, Speeds};

/// The most characters of a member's words that are printed.
const MAX_SHOWN: usize = 40;

/// The description that a machine sends of itself.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct About {
    /// Name of the machine.
    pub(crate) name: String,
    /// System and processor.
    pub(crate) system: String,
    /// CPU threads of its rank.
    pub(crate) threads: usize,
    /// The device of its rank.
    pub(crate) device: String,
    /// FLOP/s of these in f32, if it computes on them.
    pub(crate) flops: Option<f64>,
}

impl About {
    /// Measures this machine, which takes a fraction of a second.
    pub(crate) fn of_this_machine(device: &str, threads: usize) -> About {
        let system = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
        let device = device.split(',').next().unwrap_or_default().to_string();
        let flops = (device == "cpu").then(|| measured_peak() * threads as f64);
        About { name: host_name(), system, threads, device, flops }
    }

    /// Reads what a member says.
    pub(crate) fn read(guest: &Guest) -> About {
        About::of(guest.wish())
    }

    /// Reads the description in a wish.
    pub(crate) fn of(wish: &Wish) -> About {
        serde_json::from_str(&wish.about).unwrap_or_default()
    }
}

/// Draws the members that are there. Their words are not trusted.
pub(super) fn table(guests: &[Guest], n: usize) -> String {
    let mut text = format!("{} of {n} members\n", guests.len());
    let word = |text: &str| shown(text).chars().take(MAX_SHOWN).collect::<String>();
    for (rank, guest) in (1..).zip(guests) {
        let About { name, system, threads, device, flops } = About::read(guest);
        let speed = flops.map_or("-".into(), |flops| format!("{:.1} GFLOP/s", flops / 1e9));
        let latency = guest.latency().as_secs_f64() * 1e3;
        let _ = writeln!(
            text,
            "  rank {rank}  {:<21}  {:<16}  {:<16}  {:<6}  {threads:>3} threads  {speed:>14}  {latency:.2} ms",
            guest.address(),
            word(&name),
            word(&system),
            word(&device),
        );
    }
    text.trim_end().to_string()
}

/// Adds what follows from the members: the devices, and for `layout auto` the speeds.
pub(super) fn settings(
    abouts: &[About],
    config: &Config,
    mut settings: Settings,
) -> Result<Settings> {
    let depth = config.schedule.depth;
    let mut devices: Vec<&str> = abouts.iter().map(|about| about.device.as_str()).collect();
    let groups: Vec<_> = devices.chunks(depth).collect();
    ensure!(
        groups.windows(2).all(|pair| pair[0] == pair[1]),
        "pipeline groups need equal devices in equal order, and these are {}: choose --width 1",
        devices.join(", ")
    );
    devices.truncate(depth);
    if devices.iter().any(|device| *device != devices[0]) || devices[0] != config.devices.device {
        settings = settings.with("device", devices.join(","));
    }
    let is_auto = config.schedule.layout == Layout::Auto && config.schedule.speeds.is_none();
    let flops: Option<Vec<f64>> = abouts.iter().map(|about| about.flops).collect();
    if let Some(flops) = flops.filter(|_| is_auto) {
        settings = settings.with("speeds", Speeds::measured(&flops).to_string());
    }
    Ok(settings)
}
