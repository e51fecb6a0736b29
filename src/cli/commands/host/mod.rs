//! `chimera host`: trains with the devices of machines that join. `chimera join` is the other side.

pub(crate) mod members;
pub(crate) mod plan;
mod surviving;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use chimera_comm_quic::{Guest, Host as QuicHost, Key, addresses};
use clap::Args;

use self::members::{About, table};
use self::plan::Plan;
use self::surviving::{Beginning, Tickets};
use crate::cli::commands::train::{Train, ranks};
use crate::cli::parts::terminal::args::LayerArgs;
use crate::cli::parts::terminal::console::{print, tell, warn};
use crate::run::launch::Launch;
use crate::run::outside::OnDisk;
use crate::settings::{Survive, Transport};
use crate::transport::choose;

/// The most machines that are waited for.
const MAX_MEMBERS: u32 = 255;
/// Time between two looks for members that have left.
const LOOK: Duration = Duration::from_secs(1);

/// Trains with the devices of machines that join with a ticket
///
/// Members get the settings, the data and the initial weights or checkpoints of this run, and send back
/// their parts of checkpoints. Whoever has the ticket can join while it is valid. With --survive the
/// run goes on when a member is gone, and a machine that joins later takes its place.
#[derive(Args)]
pub(crate) struct Host {
    #[command(flatten)]
    layers: Box<LayerArgs>,
    /// Devices of other machines to wait for; with this machine's they are the ranks
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_MEMBERS)))]
    wait: u32,
    /// Address and UDP port to listen at, instead of a free port of all addresses
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// Minutes that the ticket is valid, and that all wait at most for a place to be taken
    #[arg(long, value_name = "MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    valid: u64,
    /// Print only warnings and errors, and the ticket
    #[arg(short, long)]
    quiet: bool,
    /// Print a line for every step
    #[arg(short, long, conflicts_with = "quiet")]
    verbose: bool,
}

impl Host {
    pub(crate) fn run(self) -> Result<()> {
        let n_ranks = self.wait + 1;
        let (launcher, variable) = ("chimera host", "--wait");
        let launch =
            Launch { launcher, variable, n_ranks, rank: 0, n_local: Some(1), local: Some(0) };
        launch.declare();
        let mut layers = self.layers.0.clone();
        let first = layers.resolve_by_recipe(&OnDisk)?;
        ensure!(
            matches!(first.devices.transport, Transport::Auto | Transport::Quic),
            "a host reaches its members over quic: leave --transport out"
        );
        layers.settings = layers.settings.with("transport", "quic");
        let is_said = first.value("depth").is_some_and(|(_, origin)| !origin.is_default());
        if !is_said {
            let width = first.schedule.width as u32;
            ensure!(
                n_ranks.is_multiple_of(width),
                "--wait {}: {n_ranks} ranks are not a multiple of width {width}",
                self.wait
            );
            layers.settings = layers.settings.with("depth", i64::from(n_ranks / width));
        }
        let config = layers.resolve_by_recipe(&OnDisk)?; // errors come before anybody is waited for
        let needed = config.schedule.width.saturating_mul(config.schedule.depth);
        ensure!(
            needed == n_ranks as usize,
            "width {} x depth {} needs {needed} ranks, and --wait {} makes {n_ranks}: choose --wait {}",
            config.schedule.width,
            config.schedule.depth,
            self.wait,
            needed.saturating_sub(1)
        );
        choose(config.devices.transport, Survive::Off)?;
        Plan::of(&config)?;
        let (host, guests, tickets) = self.meet()?;
        let own = About::of_this_machine(&config.devices.device, config.devices.threads);
        let abouts: Vec<About> = [own].into_iter().chain(guests.iter().map(About::read)).collect();
        layers.settings = members::settings(&abouts, &config, layers.settings)?;
        let config = layers.resolve_by_recipe(&OnDisk);
        let sent = match &config {
            Ok(config) => Plan::of(config)?,
            Err(_) => Plan::default(), // members end with the error of rank 0
        };
        let text = serde_json::to_string(&sent.plan)?;
        let train = Train::of(layers, self.quiet, self.verbose);
        let devices = abouts.into_iter().map(|about| about.device).collect();
        ranks::run_host(&train, config, host, Beginning { guests, text, sent, tickets, devices })
    }

    /// Prints a ticket, and waits until as many members as needed are there at once.
    fn meet(&self) -> Result<(QuicHost, Vec<Guest>, Tickets)> {
        let (key, join) = (Key::random()?, Key::random()?);
        let at = self.listen.unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into());
        let public = key.public()?;
        let mut host = QuicHost::open(at, key, &join, warn)?;
        let listening = host.address()?;
        let addresses = if listening.ip().is_unspecified() {
            addresses(listening.port())
        } else {
            vec![listening]
        };
        ensure!(!addresses.is_empty(), "this machine has no network address: name one by --listen");
        let valid = Duration::from_secs(60 * self.valid);
        let tickets = Tickets::new(public, join, addresses, valid);
        print(format!("{}\n", tickets.line()))?;
        tell(format!(
            "listening at UDP port {}; waiting for {} of {} members, for {} min",
            listening.port(),
            self.wait,
            self.wait,
            self.valid
        ));
        let (mut guests, deadline) = (Vec::<Guest>::new(), tickets.until());
        while guests.len() < self.wait as usize {
            if Instant::now() >= deadline {
                bail!(
                    "the ticket has expired, and {} of {} members are there",
                    guests.len(),
                    self.wait
                );
            }
            let next = host.next(LOOK)?;
            let n_before = guests.len();
            guests.retain(|guest| !guest.has_left());
            let has_changed = guests.len() < n_before || next.is_some();
            guests.extend(next);
            if has_changed {
                tell(table(&guests, self.wait as usize));
            }
        }
        Ok((host, guests, tickets))
    }
}

impl Plan {
    /// Reads the plan of a host.
    pub(crate) fn read(text: &str) -> Result<plan::Sent> {
        serde_json::from_str(text).context("the host's plan cannot be read: use equal versions")
    }
}
