//! Ranks over QUIC, on machines that any network connects.

use std::fs::create_dir_all;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{env, io};

use anyhow::{Context, Result, ensure};
use chimera_comm_quic::{
    Cluster, Host, PlaceOf, Quic, QuicError, QuicRendezvous, Seat as MemberSeat,
};
use chimera_core::ids::Rank as CoreRank;

use super::places::{Rejoins, tell_of};
use super::relaid::{Balance, Relaying};
use super::{Rank, Train};
use crate::cli::commands::train::cluster::ClusterArgs;
use crate::cli::parts::terminal::args::LayerArgs;
use crate::formats::checkpoint::{Disk, Store};
use crate::formats::files::text_at_most;
use crate::run::launch::Launch;
use crate::run::{check_ranks, run_rank, run_surviving_rank};
use crate::settings::{Config, Layers, Survive};

/// The name of the transport.
const QUIC: &str = "QUIC";
/// Ranks that do not meet say why, before they are stopped for being late.
const TO_SAY: Duration = Duration::from_secs(2);

/// The variable with the secret, for those who want no file.
const SECRET: &str = "CHIMERA_TICKET";
/// The least length of a secret in bytes.
const MIN_SECRET: usize = 16;
/// The most bytes of a file with a secret.
const MAX_SECRET: u64 = 1 << 12;

/// Trains as the rank of this process, until the end of the rank.
pub(super) fn run(train: &Train, config: Result<Config>, why: &str) -> Result<()> {
    let cluster = train.cluster.found()?;
    if let Ok(config) = &config {
        check_ranks(config, cluster.n_ranks as usize)?; // before anybody is waited for
    }
    #[cfg(all(unix, debug_assertions))]
    super::fault_injection::this_is(CoreRank(cluster.rank), false);
    let mut rank = Rank::new(train, QUIC, format!("rank 0 at {}; {why}", cluster.rendezvous));
    let config = match config {
        Ok(config) if config.devices.survive != Survive::Off => {
            let replaces = config.devices.survive == Survive::Respawn;
            let rejoins = Rejoins::default();
            rank.files.store = Box::new(rejoins.store());
            let tell = rejoins.told(|event| tell_of(event, || "the command of that rank".into()));
            return run_surviving_rank(&rank, &config, |patience, warn| {
                let patience = patience.saturating_sub(TO_SAY);
                Ok(Some(cluster.meetings(patience, replaces, tell, warn)?))
            });
        }
        config => config,
    };
    run_rank(&rank, config, |patience, warn| {
        Ok(cluster.start(patience.saturating_sub(TO_SAY), warn)?)
    })
}

/// Trains as rank 0, with the machines that have joined.
pub(crate) fn run_host(
    train: &Train,
    config: Result<Config>,
    host: Host,
    begin: impl Begin,
    balance: &dyn Balance,
) -> Result<()> {
    let rejoins = Rejoins::default();
    let mut rank = Rank::new(train, QUIC, format!("rank 0 at {}", host.address()?));
    rank.relaying = Relaying::by(balance);
    rank.files.store = Box::new(rejoins.store());
    let folder = Arc::clone(&rejoins.folder);
    let place_of: PlaceOf = Arc::new(move |rank, name| {
        let run = folder.get().ok_or("the run has not begun")?;
        part_of_checkpoint(name, rank)
            .map(|path| run.join(path))
            .ok_or_else(|| format!("{name} is not {rank}'s part of a checkpoint"))
    });
    match config {
        Ok(config) if config.devices.survive != Survive::Off => {
            let replaces = config.devices.survive == Survive::Respawn;
            run_surviving_rank(&rank, &config, |_, _| {
                Ok(Some(begin.meetings(host, place_of, replaces, rejoins)?))
            })
        }
        config => run_rank(&rank, config, |patience, _| {
            Ok(begin.start(host, place_of, patience.saturating_sub(TO_SAY))?)
        }),
    }
}

/// The two ways to begin as a host.
pub(crate) trait Begin {
    /// Begins a run that ends when a member has died.
    fn start(self, host: Host, place_of: PlaceOf, patience: Duration) -> Result<Quic, QuicError>;

    /// Begins a run that goes on.
    fn meetings(
        self,
        host: Host,
        place_of: PlaceOf,
        replaces: bool,
        rejoins: Rejoins,
    ) -> Result<QuicRendezvous, QuicError>;
}

/// Trains as a rank on another machine than the host. It has the host's files below `cache`, and sends
/// its parts of checkpoints to the host. If it `goes_on` after the run has stopped for another layout,
/// it returns that error.
pub(crate) fn run_member(
    train: &Train,
    config: Result<Config>,
    seat: MemberSeat,
    (cache, goes_on): (&Path, bool),
) -> Result<()> {
    let mut rank = Rank::new(train, QUIC, String::new());
    rank.relaying = Relaying::member(goes_on);
    let files = seat.files.clone();
    rank.files.local = Box::new(|path| local(cache, path));
    rank.files.store = Box::new(move |run| {
        let _ = create_dir_all(run); // a failure is found when it is written to
        let (files, folder) = (files.clone(), run.to_path_buf());
        Store::of(run).on(Disk::passing_on(move |path| {
            let name = path.strip_prefix(&folder).unwrap_or(path).to_string_lossy();
            let name = name.replace(std::path::MAIN_SEPARATOR, "/");
            files.put(&name, path).map_err(io::Error::other)
        }))
    });
    match config {
        Ok(config) if config.devices.survive != Survive::Off => {
            run_surviving_rank(&rank, &config, |_, _| Ok(Some(seat.meetings())))
        }
        // Whoever lacks what it needs frees its place.
        Err(error) if seat.has_meetings() => Err(error),
        config => {
            run_rank(
                &rank,
                config,
                |patience, _| Ok(seat.connect(patience.saturating_sub(TO_SAY))?),
            )
        }
    }
}

/// Returns where a member has a file of the host, below its cache.
pub(crate) fn local(cache: &Path, path: &Path) -> PathBuf {
    let names = path.components().filter(|name| matches!(name, Component::Normal(_)));
    cache.join("host").join(names.collect::<PathBuf>())
}

/// Returns the place of a rank's file in the folder of a run, if it is its part of a checkpoint.
fn part_of_checkpoint(name: &str, rank: CoreRank) -> Option<PathBuf> {
    let (folder, file) = name.strip_prefix("checkpoints/")?.split_once('/')?;
    let step = folder.strip_prefix("step-")?;
    let is_step = !step.is_empty() && step.bytes().all(|digit| digit.is_ascii_digit());
    let is_own = file == format!("shard-{:04}.safetensors", rank.0);
    (is_step && is_own).then(|| Path::new("checkpoints").join(folder).join(file))
}

impl Train {
    /// Returns training with these settings, for commands that reach other ranks in their own way.
    pub(crate) fn of(layers: Layers, quiet: bool, verbose: bool) -> Train {
        let (layers, cluster) = (Box::new(LayerArgs(layers)), ClusterArgs::default());
        Train { layers, cluster, quiet, verbose, json: false, open: false }
    }
}

impl ClusterArgs {
    /// Returns the place of this process.
    fn found(&self) -> Result<Cluster> {
        let Launch { rank, n_ranks, .. } = self.launch()?;
        Ok(Cluster { rank, n_ranks, rendezvous: self.rendezvous()?, secret: self.secret()? })
    }

    /// Returns the host and port of rank 0.
    fn rendezvous(&self) -> Result<String> {
        if let Some(said) = &self.rendezvous {
            ensure!(said.contains(':'), "--rendezvous {said}: add a port, such as {said}:7000");
            return Ok(said.clone());
        }
        let variable = |name| {
            let missing = || {
                format!(
                    "--transport quic needs the place of rank 0: give --rendezvous HOST:PORT, or set {name}"
                )
            };
            env::var(name).ok().filter(|value| !value.trim().is_empty()).with_context(missing)
        };
        let (host, port) = (variable("MASTER_ADDR")?, variable("MASTER_PORT")?);
        let host = host.trim();
        let is_v6 = host.contains(':') && !host.starts_with('[');
        Ok(if is_v6 {
            format!("[{host}]:{}", port.trim())
        } else {
            format!("{host}:{}", port.trim())
        })
    }

    /// Returns the secret that all ranks share.
    fn secret(&self) -> Result<String> {
        if let Some(file) = &self.ticket {
            return secret_in(file, "--ticket");
        }
        let secret = env::var(SECRET).ok().with_context(|| {
            format!(
                "--transport quic needs a secret that all ranks share: write one into a file \
                 (`head -c 24 /dev/urandom | base64 > ticket`), copy it to all machines and give \
                 --ticket FILE, or set {SECRET}"
            )
        })?;
        long_enough(&secret, SECRET)
    }
}

/// Reads a secret from a file, which an option names.
pub(crate) fn secret_in(file: &Path, option: &str) -> Result<String> {
    let name = || format!("{option} {}", file.display());
    let text = text_at_most(file, MAX_SECRET).with_context(name)?;
    long_enough(&text.with_context(|| format!("{}: it is too long", name()))?, &name())
}

fn long_enough(secret: &str, of: &str) -> Result<String> {
    let secret = secret.trim();
    ensure!(
        secret.len() >= MIN_SECRET,
        "the secret of {of} has {} bytes, and needs {MIN_SECRET} at random",
        secret.len()
    );
    Ok(secret.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_sends_only_its_own_part_of_a_checkpoint() {
        let placed = |name: &str| part_of_checkpoint(name, CoreRank(3));
        let whole = "checkpoints/step-00000008/shard-0003.safetensors";
        assert_eq!(placed(whole), Some(PathBuf::from(whole)));
        for name in [
            "checkpoints/step-00000008/shard-0002.safetensors",
            "checkpoints/step-00000008/manifest.json",
            "checkpoints/step-/shard-0003.safetensors",
            "checkpoints/step-8/../shard-0003.safetensors",
            "checkpoints/../shard-0003.safetensors",
            "/etc/step-8/shard-0003.safetensors",
            "config.toml",
        ] {
            assert_eq!(placed(name), None, "{name}");
        }
    }

    #[test]
    fn files_of_the_host_stay_below_the_cache() {
        for (path, place) in [
            ("runs/x", "c/host/runs/x"),
            ("/home/a/runs", "c/host/home/a/runs"),
            ("../../etc/passwd", "c/host/etc/passwd"),
        ] {
            assert_eq!(local(Path::new("c"), Path::new(path)), PathBuf::from(place));
        }
    }
}
