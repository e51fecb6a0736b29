//! Deaths that runs of the command survive over Open MPI 5, with replacements and with fewer ranks:
//! `cargo xtask mpi --ulfm`.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use tempfile::TempDir;

use xtask::strike::points::named_points;
use xtask::strike::processes;

use super::lab::{Lab, apart, steps as steps_of};

/// Options of a short run in which a rank is killed or stopped at a point.
const SHORT: &str = "--steps 6 --save-every 2 --resume auto";
/// Configurations in which replicas do not hold all state: a pipeline of one direction, and a
/// sharded optimizer.
const HELD_ONCE: [&str; 2] =
    ["--schedule 1f1b --shadow-every 2", "--shard-optimizer true --shadow-every 1"];
/// Options of a run whose ranks are replaced after a while.
const REJOINED: &str = "--steps 800 --save-every 0 --lr 1e-4";
/// Number of steps that measures the steps per minute.
const TRIED: u64 = 2000;
/// One of this many points of the kill sweep is used.
const EVERY: usize = 12;
/// One of this many points is used to stop a rank, for which the others wait twice.
const EVERY_STOP: usize = 30;
/// Options that evict stopped ranks.
const EVICTING: &str = "--evict stalled --timeout 2 --start-timeout 20";
/// Time for which a slow rank is stopped, less than the others wait for it.
const SLOW: Duration = Duration::from_millis(1200);
/// Pairs of ranks with different stages, killed at once.
const PAIRS: [(usize, usize); 4] = [(0, 1), (1, 3), (2, 0), (3, 2)];
/// Largest difference in weights and losses from another order of additions.
pub(crate) const APART: f64 = 1e-5;
/// Number of steps after a rank rejoins in which losses are compared. Later ones differ more, since
/// rounding differences grow in any training.
const AFTERWARDS: usize = 20;
/// Pause between two kills of a long run.
const PAUSE: Duration = Duration::from_secs(20);

/// Kills and stops ranks of runs that `launch` starts from their arguments. With replacements, each
/// run must end successfully with the losses and weights of the undisturbed one. With fewer ranks,
/// they may differ by the rounding of sums.
pub(crate) fn run(launch: impl Fn() -> Command) -> Result<()> {
    let lab = Lab::new(launch)?;
    let undisturbed = lab.train("", SHORT, "respawn")?;
    let mut points = named_points()?;
    let pairs = PAIRS.map(|(a, b)| format!("{a} KILL at 3.5 FILE;{b} KILL at 3.5 FILE"));
    let strikes = |points: &[(usize, String)], pairs: &[String]| -> Vec<String> {
        let single = points.iter().step_by(EVERY).flat_map(|(rank, point)| {
            ["KILL", "PANIC"].map(|blow| format!("{rank} {blow} {point} FILE"))
        });
        single.chain(pairs.iter().cloned()).collect()
    };
    let again = lab.strike(&strikes(&points, &pairs), SHORT, "respawn", &undisturbed, 0.0)?;
    println!("{again} with ranks replaced ended with the undisturbed losses and weights");
    // Before the run has begun, all ranks are needed.
    points.retain(|(_, point)| point.starts_with("at "));
    let fewer = lab.strike(&strikes(&points, &pairs), SHORT, "narrow", &undisturbed, APART)?;
    println!(
        "{fewer} with fewer ranks ended within {APART:e} of the undisturbed losses and weights"
    );
    for way in HELD_ONCE {
        let options = format!("{SHORT} {way}");
        let undisturbed = lab.train("", &options, "respawn")?;
        // If neighbours die at once, state without a replica is lost.
        let again = lab.strike(&strikes(&points, &[]), &options, "respawn", &undisturbed, 0.0)?;
        println!("{again} with {way} ended with the undisturbed losses and weights");
        if way.contains("shard-optimizer") {
            continue; // its parts are for the replacement of a dead rank
        }
        let fewer = lab.strike(&strikes(&points, &[]), &options, "narrow", &undisturbed, APART)?;
        println!("{fewer} with fewer ranks and {way} ended within {APART:e} of them");
    }
    lab.evict(&points, &undisturbed)?;
    lab.rejoin()
}

/// Kills and stops ranks of runs that `launch` starts from their arguments, with `respawn` and with
/// `narrow`. Each must end successfully with the losses and weights of the undisturbed one.
pub(crate) fn strike_survivors(strikes: &[&str], launch: impl Fn() -> Command) -> Result<()> {
    let lab = Lab::new(launch)?;
    let undisturbed = lab.train("", SHORT, "respawn")?;
    let strikes: Vec<String> = strikes.iter().copied().map(String::from).collect();
    for (survive, most) in [("respawn", 0.0), ("narrow", APART)] {
        let struck = lab.strike(&strikes, SHORT, survive, &undisturbed, most)?;
        println!(
            "{struck} with {survive} ended within {most:e} of the undisturbed losses and weights"
        );
    }
    Ok(())
}

/// A long run in which a rank is killed from time to time.
pub(crate) struct Course {
    pub(crate) minutes: u16,
    pub(crate) seed: u64,
}

impl Course {
    /// Runs it. It must end with the losses and weights of the undisturbed one, to the bit.
    pub(crate) fn run(&self, launch: impl Fn(u64) -> Command) -> Result<()> {
        let seconds = u64::from(self.minutes) * 60;
        let lab = Lab::new(|| launch(20 * seconds))?;
        let began = Instant::now();
        lab.train("", &format!("--steps {TRIED} --save-every 500"), "respawn")?;
        let n_steps = (TRIED as f64 * seconds as f64 / began.elapsed().as_secs_f64()) as u64;
        let options = format!("--steps {n_steps} --save-every 500 --keep 2");
        let undisturbed = lab.train("", &options, "respawn")?;
        let disturbed = TempDir::new()?;
        let began = Instant::now();
        let mut running = lab.command("", &options, "respawn", disturbed.path());
        let mut running = running.stdout(Stdio::null()).spawn()?;
        let n_kills = self.kill(&mut running, disturbed.path())?;
        // The launcher may report a replacement that was killed although every rank has ended
        // successfully. The files show the truth.
        let ended = running.wait()?;
        let apart = apart(disturbed.path(), undisturbed.path()).with_context(|| {
            format!("a run with {n_kills} kills, whose launcher ended with {ended}")
        })?;
        ensure!(apart == 0.0, "after {n_kills} kills losses or weights are {apart:e} apart");
        let last = steps_of(disturbed.path())?.pop().context("no steps")?;
        println!(
            "{n_steps} steps in {:.0} s with {n_kills} kills (seed {}) ended with the undisturbed losses and weights; {} recoveries \
             took {:.0} s; the launcher ended with {ended}",
            began.elapsed().as_secs_f64(),
            self.seed,
            last["recoveries"],
            last["recovery_s"].as_f64().unwrap_or(0.0),
        );
        Ok(())
    }

    /// Kills a rank after every pause until the run is over. Returns the number of kills.
    fn kill(&self, running: &mut Child, folder: &Path) -> Result<u32> {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let (mut n_kills, mut next) = (0, Instant::now() + PAUSE);
        while running.try_wait()?.is_none() {
            sleep(Duration::from_millis(100));
            if Instant::now() < next {
                continue;
            }
            next += PAUSE;
            let ranks = ranks(folder, running);
            if !ranks.is_empty() {
                let process = ranks[random.random_range(0..ranks.len())].to_string();
                n_kills +=
                    u32::from(Command::new("kill").args(["-9", &process]).status()?.success());
            }
        }
        Ok(n_kills)
    }
}

/// The processes that train into `folder`, without their launcher.
fn ranks(folder: &Path, launcher: &Child) -> Vec<u32> {
    let mut ranks = processes(folder);
    ranks.retain(|process| *process != launcher.id());
    ranks.sort_unstable();
    ranks
}

impl<L: Fn() -> Command> Lab<L> {
    /// Stops ranks. One that stays stopped is evicted, and one that continues within the timeout is
    /// not.
    fn evict(&self, points: &[(usize, String)], undisturbed: &TempDir) -> Result<()> {
        let options = format!("{SHORT} {EVICTING}");
        let stop = |(rank, point): &(usize, String)| format!("{rank} STOP {point} FILE");
        let mut strikes: Vec<String> = points.iter().step_by(EVERY_STOP).map(stop).collect();
        let (a, b) = PAIRS[0];
        strikes.push(format!("{a} STOP at 3.5 FILE;{b} STOP at 3.5 FILE"));
        let again = self.strike(&strikes, &options, "respawn", undisturbed, 0.0)?;
        println!(
            "{again} with stopped ranks evicted ended with the undisturbed losses and weights"
        );
        for strike in ["1 STOP at 2.5 FILE", "0 STOP at 3.0 FILE"] {
            let folder = TempDir::new()?;
            let mut running = self.start_struck(strike, &options, "respawn", folder.path())?;
            sleep(SLOW);
            for process in ranks(folder.path(), &running) {
                ensure!(
                    Command::new("kill").args(["-CONT", &process.to_string()]).status()?.success()
                );
            }
            ensure!(running.wait()?.success(), "a run with a slow rank failed: {strike}");
            let last = steps_of(folder.path())?.pop().context("no steps")?;
            ensure!(
                last["recoveries"].as_u64().unwrap_or(0) == 0,
                "a slow rank was evicted: {strike}"
            );
            ensure!(apart(folder.path(), undisturbed.path())? == 0.0, "a slow rank: other weights");
        }
        println!("ranks that were stopped for {SLOW:?} were not evicted");
        Ok(())
    }

    /// Kills a rank, lets the others train on for a while, and starts a replacement. This includes
    /// rank 0, which another rank replaced as root.
    fn rejoin(&self) -> Result<()> {
        let undisturbed = self.train("", REJOINED, "narrow")?;
        [1, 0].into_iter().try_for_each(|rank| self.rejoin_as(rank, &undisturbed))
    }

    fn rejoin_as(&self, rank: u32, undisturbed: &TempDir) -> Result<()> {
        let folder = TempDir::new()?;
        let strike = format!("{rank} KILL at 30.5 FILE");
        let mut running = self.start_struck(&strike, REJOINED, "narrow", folder.path())?;
        sleep(Duration::from_millis(500));
        fs::write(folder.path().join("run/rejoin"), "")?;
        ensure!(running.wait()?.success(), "a run that a rank joined again failed");
        let replaced = |step: &Value| step["replaced"].as_array().is_some_and(|of| !of.is_empty());
        let (steps, known) = (steps_of(folder.path())?, steps_of(undisturbed.path())?);
        ensure!(steps.len() == known.len(), "{} steps in place of {}", steps.len(), known.len());
        let joined = steps.iter().position(replaced).context("no rank joined again")?;
        let loss = |step: &Value| step["loss"].as_f64().unwrap_or(f64::NAN);
        let apart = steps.iter().zip(&known).take(joined + AFTERWARDS);
        let apart = apart.map(|(a, b)| (loss(a) - loss(b)).abs()).fold(0.0, f64::max);
        ensure!(apart <= APART, "a rank joined again, and losses are {apart:e} apart");
        println!(
            "rank {rank} died in step 30, and another took its place in step {joined}: losses are within {apart:.1e} of the undisturbed \
             ones until {AFTERWARDS} steps later"
        );
        Ok(())
    }
}
