//! `chimera join`: brings the devices of this machine into the run of a host.

mod each;

use std::fs::{File, create_dir_all, remove_dir_all, rename, write};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use chimera_comm_quic::{Offer, QuicError, Seat, Ticket, Wish, join};
use clap::Args;

use super::host::members::About;
use super::host::plan::Plan;
use crate::cli::commands::train::ranks::is_relaid;
use crate::cli::commands::train::{Train, ranks};
use crate::cli::parts::terminal::console::{tell, warn};
use crate::cli::parts::terminal::leftover::{leave, remove_at_exit};
use crate::cli::parts::terminal::signals::{STOPPED, on_signal};
use crate::run::launch::Launch;
use crate::run::outside::OnDisk;
use crate::settings::{Layers, Settings};

/// The most time that a member waits for the others.
const TO_WAIT: Duration = Duration::from_secs(7 * 24 * 3600);

/// The most time for the host to answer.
const TO_ANSWER: Duration = Duration::from_secs(30);

/// A rank, and the number of ranks.
type Place = (u32, u32);

/// Joins the run of a host with this machine's devices
///
/// The host sends the settings, the data and the initial weights. They stay in a folder below --cache
/// until this machine's part has ended. Waits for the host for 30 seconds, and then as long as the host
/// waits. With --survive on the host, also joins a run that has begun, as soon as a place is free.
#[derive(Args)]
pub(crate) struct Join {
    /// The ticket that `chimera host` prints
    ticket: String,
    /// Devices that this machine brings; each is a rank and a process
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    devices: u32,
    /// Device of the rank: cpu, cuda, cuda:N, wgpu or wgpu:N; several devices take N, N + 1, …
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,
    /// CPU threads per device [default: the cores of the machine / devices]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Folder for the host's files, until the end of the run [default: chimera in the cache of the user,
    /// which is XDG_CACHE_HOME, LOCALAPPDATA or ~/.cache]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// End with the process that has started this one, which holds its standard input
    #[arg(long, hide = true)]
    of_parent: bool,
    /// Print only warnings and errors
    #[arg(short, long)]
    quiet: bool,
}

impl Join {
    pub(crate) fn run(self) -> Result<()> {
        ensure!(!self.device.contains(','), "--device {}: name one device", self.device);
        let mut ticket: Ticket = self.ticket.parse()?;
        if self.devices > 1 {
            return self.run_each();
        }
        if self.of_parent {
            each::end_with_parent()?;
        }
        let mut place = None;
        while let Some((next, rank)) = self.take_part(&ticket, place)? {
            (ticket, place) = (next, Some(rank));
        }
        Ok(())
    }

    /// Trains as a rank of a run. If the run continues with another layout, returns the ticket to it,
    /// and this machine's place.
    fn take_part(&self, ticket: &Ticket, place: Option<Place>) -> Result<Option<(Ticket, Place)>> {
        let threads = self.threads.map_or_else(cores, |threads| threads as usize);
        let about = serde_json::to_string(&About::of_this_machine(&self.device, threads))?;
        if place.is_none() {
            self.say("joining; the run starts when all members are there");
        }
        let joined = join(ticket, Wish { place, about }, TO_ANSWER, TO_WAIT, warn);
        if let Err(QuicError::NotNeeded) = joined {
            self.say("the run has ended; this machine was not needed");
            return Ok(None);
        }
        let seat = joined?;
        let began = Instant::now();
        let (rank, n_ranks) = (seat.rank.0, seat.n_ranks);
        let cache = self.cache()?.join(format!("{:?}-{rank}", ticket.host));
        remove_at_exit(&cache); // it only takes space, and the data is the host's
        let layers = fetch(&seat, &cache).and_then(|n_bytes| {
            let (layers, again) = self.layers(&seat, &cache)?;
            Ok((layers, again, n_bytes))
        });
        if let Ok((_, _, n_bytes)) = &layers {
            self.say(&format!(
                "rank {rank} of {n_ranks}: {n_bytes} bytes fetched in {:.1} s",
                began.elapsed().as_secs_f64()
            ));
        }
        let (launcher, variable) = ("chimera join", "the ticket");
        let launch = Launch { launcher, variable, n_ranks, rank, n_local: Some(1), local: Some(0) };
        launch.declare();
        let (layers, again, config) = match layers {
            Ok((layers, again, _)) => (layers.clone(), again, layers.resolve(&OnDisk)),
            Err(error) => (Layers::default(), None, Err(error)),
        };
        let train = Train::of(layers, self.quiet, false);
        let ended = ranks::run_member(&train, config, seat, (&cache, again.is_some()));
        if let (Err(error), Some(again)) = (&ended, again)
            && is_relaid(error)
        {
            self.say("the run goes on with another layout");
            on_signal(|| leave(STOPPED))?;
            return Ok(Some((again, (rank, n_ranks))));
        }
        let _ = remove_dir_all(&cache);
        if ended.is_ok() {
            self.say("the run has ended");
        }
        ended.map(|()| None)
    }

    fn say(&self, line: &str) {
        if !self.quiet {
            tell(line);
        }
    }

    fn cache(&self) -> Result<PathBuf> {
        let of_user = || {
            let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
            let base = variable("XDG_CACHE_HOME").or_else(|| variable("LOCALAPPDATA"));
            let home = || Some(PathBuf::from(variable("HOME")?).join(".cache"));
            Some(base.map(PathBuf::from).or_else(home)?.join("chimera"))
        };
        let cache = self.cache.clone().or_else(of_user);
        cache.context("this user has no folder for a cache: name one by --cache")
    }

    /// Returns the settings of the run as this machine has them, and the ticket to come again.
    fn layers(&self, seat: &Seat, cache: &Path) -> Result<(Layers, Option<Ticket>)> {
        let plan = Plan::read(&seat.plan)?;
        let settings = plan.settings_at(|path| ranks::local(cache, path))?;
        let file = cache.join("settings.toml");
        write(&file, settings.to_string()).with_context(|| file.display().to_string())?;
        let mut own = Settings::of_command_line();
        if let Some(threads) = self.threads {
            own = own.with("threads", i64::from(threads));
        }
        let again = plan.again.map(|ticket| ticket.parse()).transpose()?;
        Ok((Layers { config: Some(file), settings: own }, again))
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Fetches the files of the host into the cache, except those that are there already. Returns the bytes
/// that were fetched.
fn fetch(seat: &Seat, cache: &Path) -> Result<u64> {
    let plan = Plan::read(&seat.plan)?;
    let offers = seat.files.offers();
    ensure!(offers.len() == plan.paths.len(), "the host's plan names other files than it offers");
    create_dir_all(cache).with_context(|| cache.display().to_string())?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // the host's data, in a folder that others may share
        std::fs::set_permissions(cache, std::fs::Permissions::from_mode(0o700))?;
    }
    let mut n_bytes = 0;
    for (number, (path, offer)) in plan.paths.iter().zip(offers).enumerate() {
        let path = ranks::local(cache, path);
        if Offer::of(&path).is_ok_and(|own| own == *offer) {
            continue;
        }
        n_bytes += offer.n_bytes;
        let part = cache.join("fetched.part");
        let fetched = || -> Result<()> {
            path.parent().map_or(Ok(()), create_dir_all)?;
            let mut file = BufWriter::new(File::create(&part)?);
            seat.files.fetch(number, &mut file)?;
            file.into_inner()?.sync_all()?;
            Ok(rename(&part, &path)?)
        };
        match fetched() {
            // The host may have replaced an old checkpoint, and a newcomer needs none.
            Err(_) if is_of_checkpoint(&path) => {}
            fetched => fetched.with_context(|| path.display().to_string())?,
        }
    }
    Ok(n_bytes)
}

/// Returns true for a file of a checkpoint. If one is needed and missing, the resume says so.
fn is_of_checkpoint(path: &Path) -> bool {
    let folder = path.parent().and_then(Path::file_name);
    folder.is_some_and(|name| name.to_string_lossy().starts_with("step-"))
}
