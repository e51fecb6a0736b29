//! `chimera host`: trains with the devices of machines that join. `chimera join` is the other side.

mod balance;
mod door;
mod member_list;
pub(crate) mod members;
pub(crate) mod plan;
mod surviving;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use chimera_comm_quic::{Guest, Host as QuicHost, RelayAddress, addresses};
use clap::Args;

use self::balance::Watched;
use self::door::{Door, is_of, seated};
use self::member_list::MemberList;
use self::members::{About, table};
use self::plan::Plan;
use self::surviving::{Beginning, Tickets};
use crate::cli::commands::train::ranks::is_relaid;
use crate::cli::commands::train::{Train, ranks};
use crate::cli::parts::terminal::args::LayerArgs;
use crate::cli::parts::terminal::console::{print, tell};
use crate::cli::parts::terminal::leftover::leave;
use crate::cli::parts::terminal::signals::{STOPPED, on_signal};
use crate::run::launch::Launch;
use crate::run::outside::OnDisk;
use crate::settings::{Layers, Layout, Survive, Transport};
use crate::transport::choose;

/// The most machines that are waited for.
const MAX_MEMBERS: u32 = 255;
/// Time between two looks for members that have left.
const LOOK: Duration = Duration::from_secs(1);
/// Time for members to come again, before others may take their places.
const TO_RETURN: Duration = Duration::from_secs(30);

/// Trains with the devices of machines that join with a ticket
///
/// Members get the settings, the data and the initial weights or checkpoints of this run, and send back
/// their parts of checkpoints. Whoever has the ticket can join while it is valid. With --survive the
/// run goes on when a member is gone, and a machine that joins later takes its place.
#[derive(Args)]
pub(crate) struct Host {
    #[command(flatten)]
    layers: Box<LayerArgs>,
    /// Devices of other machines to wait for; each is a rank, as is this machine's own
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_MEMBERS)))]
    wait: u32,
    /// Address and UDP port to listen at, instead of a free port of all addresses
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// Relay for machines that cannot reach this one or each other, as `chimera relay` prints it: HOST:PORT/KEY
    #[arg(long, value_name = "RELAY")]
    relay: Option<String>,
    /// Minutes that the ticket is valid, and the longest wait until a free place is taken
    #[arg(long, value_name = "MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    valid: u64,
    /// Redo the layout from measured speeds when a member is slower or faster than assumed
    #[arg(long)]
    rebalance: bool,
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
        let mut layers = self.layers()?;
        let relay = self.relay.as_deref().map(|text| RelayAddress::read(text)?.pass());
        let mut door = Door::first(self.listen, relay.transpose()?)?;
        while let Some(next) = self.train(&mut layers, door)? {
            door = next;
        }
        Ok(())
    }

    /// Returns the settings with those that follow from the number of ranks.
    fn layers(&self) -> Result<Layers> {
        let n_ranks = self.wait + 1;
        let mut layers = self.layers.0.clone();
        let first = layers.resolve_by_recipe(&OnDisk)?;
        ensure!(
            matches!(first.devices.transport, Transport::Auto | Transport::Quic),
            "a host reaches its members over quic: leave --transport out"
        );
        layers.settings = layers.settings.with("transport", "quic");
        let is_said = |key| first.value(key).is_some_and(|(_, origin)| !origin.is_default());
        if !is_said("depth") {
            let width = first.schedule.width as u32;
            ensure!(
                n_ranks.is_multiple_of(width),
                "--wait {}: {n_ranks} ranks are not a multiple of width {width}",
                self.wait
            );
            layers.settings = layers.settings.with("depth", i64::from(n_ranks / width));
        }
        if self.rebalance {
            ensure!(
                first.schedule.layout == Layout::Auto || !is_said("layout"),
                "--rebalance chooses the layout: leave --layout out, or choose auto"
            );
            layers.settings = layers.settings.with("layout", "auto");
        }
        Ok(layers)
    }

    /// Trains with machines that come through the door. Returns the door for the same machines if the
    /// run continues with another layout.
    fn train(&self, layers: &mut Layers, door: Door) -> Result<Option<Door>> {
        let n_ranks = self.wait + 1;
        let mut config = layers.resolve_by_recipe(&OnDisk)?; // errors come before anybody is waited for
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
        let (host, guests, tickets) = self.meet(&door)?;
        let own = About::of_this_machine(&config.devices.device, config.devices.threads);
        let list = Arc::new(MemberList::of(&own, &guests));
        let abouts: Vec<About> = [own].into_iter().chain(guests.iter().map(About::read)).collect();
        if door.is_again && !guests.iter().zip(1..).all(|(guest, rank)| is_of(guest, rank)) {
            layers.settings = layers.settings.clone().without("speeds"); // they are of another machine
            config = layers.resolve_by_recipe(&OnDisk)?;
        }
        let given = layers.settings.clone();
        layers.settings = members::settings(&abouts, &config, given)?;
        let config = layers.resolve_by_recipe(&OnDisk);
        let next = self.rebalance.then(|| door.next(&host)).transpose()?;
        let mut sent = match &config {
            Ok(config) => Plan::of(config)?,
            Err(_) => Plan::default(), // members end with the error of rank 0
        };
        sent.plan.again = next.as_ref().map(|next| tickets.of(&next.join));
        let text = serde_json::to_string(&sent.plan)?;
        let train = Train::of(layers.clone(), self.quiet, self.verbose);
        let names = abouts.iter().map(|about| about.name.clone()).collect();
        let devices = abouts.into_iter().map(|about| about.device).collect();
        let watched = Watched::new(names, Arc::clone(&list), self.rebalance);
        let beginning = Beginning { guests, text, sent, tickets, devices, list };
        match ranks::run_host(&train, config, host, beginning, &watched) {
            Err(error) if is_relaid(&error) => {}
            ended => return ended.map(|()| None),
        }
        on_signal(|| leave(STOPPED))?;
        let (folder, speeds) = watched.decided().context("the run has stopped without a reason")?;
        let out = folder.to_str().context("settings cannot hold the name of the run's folder")?;
        let settings = layers.settings.clone().with("out", out).with("resume", "auto");
        layers.settings = settings.with("speeds", speeds);
        Ok(next)
    }

    /// Waits until as many members as needed are there at once. Prints a ticket, but not for members
    /// that come again.
    fn meet(&self, door: &Door) -> Result<(QuicHost, Vec<Guest>, Tickets)> {
        let mut host = door.open()?;
        let listening = host.address()?;
        let addresses = if listening.ip().is_unspecified() {
            addresses(listening.port())
        } else {
            vec![listening]
        };
        let is_reached = !addresses.is_empty() || door.relay.is_some();
        ensure!(is_reached, "this machine has no network address: name one by --listen");
        let valid = Duration::from_secs(60 * self.valid);
        let (key, join, relay) = (door.key.public()?, door.join.clone(), door.relay);
        let tickets = Tickets::new(key, join, addresses, relay, valid);
        let mut asks_at =
            Some(Instant::now() + if door.is_again { TO_RETURN } else { Duration::ZERO });
        let (mut guests, deadline) = (Vec::<Guest>::new(), tickets.until());
        while guests.len() < self.wait as usize {
            if asks_at.is_some_and(|at| Instant::now() >= at) {
                asks_at = None;
                print(format!("{}\n", tickets.line()))?;
                tell(format!(
                    "listening at UDP port {}; waiting for {} of {} members, for {} min",
                    listening.port(),
                    self.wait as usize - guests.len(),
                    self.wait,
                    self.valid
                ));
            }
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
            if has_changed && asks_at.is_none() {
                tell(table(&guests, self.wait as usize));
            }
        }
        Ok((host, seated(guests), tickets))
    }
}

impl Plan {
    /// Reads the plan of a host.
    pub(crate) fn read(text: &str) -> Result<plan::Sent> {
        serde_json::from_str(text).context("the host's plan cannot be read: use equal versions")
    }
}
