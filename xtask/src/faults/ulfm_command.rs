//! Deaths that runs of the command survive over Open MPI 5, with new ranks and with fewer: `cargo xtask mpi --ulfm`.

use std::fs::{self, read_dir, read_to_string};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use tempfile::TempDir;

use xtask::strike::points::named_points;

/// Four ranks of Chimera, of which each stage has two replicas.
const OPTIONS: &str = "train --depth 4 --micro-batches 4 --layers 4 --hidden 32 --heads 2 --context 64 \
     --micro-batch-size 2 --threads 1";
/// Steps of a run that is struck at a point.
const SHORT: &str = "--steps 6 --save-every 2 --resume auto";
/// Ways in which replicas do not hold all: a pipeline of one direction, and a sharded optimizer.
const HELD_ONCE: [&str; 2] =
    ["--schedule 1f1b --shadow-every 2", "--shard-optimizer true --shadow-every 1"];
/// Steps of a run whose ranks are replaced after a while.
const REJOINED: &str = "--steps 800 --save-every 0 --lr 1e-4";
/// Steps by which it is seen how many a minute has.
const TRIED: u64 = 2000;
/// Every so manyth point of the kill sweep is struck.
const EVERY: usize = 12;
/// Every so manyth point at which a rank is stopped, for which the others wait twice.
const EVERY_STOP: usize = 30;
/// How ranks that are stopped are evicted.
const EVICTING: &str = "--evict stalled --timeout 2 --start-timeout 20";
/// For how long a slow rank is stopped, less than others wait for it.
const SLOW: Duration = Duration::from_millis(1200);
/// Two ranks that hold different stages, struck at once.
const PAIRS: [(usize, usize); 4] = [(0, 1), (1, 3), (2, 0), (3, 2)];
/// The file with what a run says.
const SAID: &str = "said";
/// The last lines of it that an error shows.
const N_LINES: usize = 25;
/// What the launcher says whose daemon has died, and how often a run is tried in which that happens.
const DAEMON_LOST: &str = "lost communication with a remote daemon";
const N_TRIES: usize = 6;
/// By how much sums in another order may change weights and losses.
pub(crate) const APART: f64 = 1e-5;
/// Steps behind that of a rank that has joined again, in which losses are compared: later ones differ more, since what is rounded
/// otherwise grows in any training.
const AFTERWARDS: usize = 20;
/// Between two kills of a long run.
const PAUSE: Duration = Duration::from_secs(20);

/// Strikes ranks of runs that `launch` starts by their arguments. Where ranks are replaced, each run must end well, with the
/// losses and weights of the undisturbed one; where the others train on, with those up to the rounding of sums.
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
        // Of neighbours that die at once, what is held once is lost.
        let again = lab.strike(&strikes(&points, &[]), &options, "respawn", &undisturbed, 0.0)?;
        println!("{again} with {way} ended with the undisturbed losses and weights");
        if way.contains("shard-optimizer") {
            continue; // its parts are for who takes a dead rank's place
        }
        let fewer = lab.strike(&strikes(&points, &[]), &options, "narrow", &undisturbed, APART)?;
        println!("{fewer} with fewer ranks and {way} ended within {APART:e} of them");
    }
    lab.evict(&points, &undisturbed)?;
    lab.rejoin()
}

/// Strikes ranks of runs that `launch` starts by their arguments, with `respawn` and with `narrow`: each must end well, with the
/// losses and weights of the undisturbed one.
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

/// A long run with ranks killed now and then.
pub(crate) struct Course {
    pub(crate) minutes: u16,
    pub(crate) seed: u64,
}

impl Course {
    /// It must end with the losses and weights of the undisturbed one, to the bit.
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
        // The launcher may tell of a replacement that was killed, although every rank has ended well: the files say.
        let ended = running.wait()?;
        let apart = apart(disturbed.path(), undisturbed.path()).with_context(|| {
            format!("a run with {n_kills} kills, whose launcher ended with {ended}")
        })?;
        ensure!(apart == 0.0, "after {n_kills} kills losses or weights are {apart:e} apart");
        let last = metrics(disturbed.path())?.pop().context("no steps")?;
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

    /// Kills a rank at every pause until the run is over; how many.
    fn kill(&self, running: &mut Child, folder: &Path) -> Result<u32> {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let (mut n_kills, mut next) = (0, Instant::now() + PAUSE);
        while running.try_wait()?.is_none() {
            sleep(Duration::from_millis(100));
            if Instant::now() < next {
                continue;
            }
            next += PAUSE;
            let ranks = processes_in(folder, running.id())?;
            if !ranks.is_empty() {
                let process = ranks[random.random_range(0..ranks.len())].to_string();
                n_kills +=
                    u32::from(Command::new("kill").args(["-9", &process]).status()?.success());
            }
        }
        Ok(n_kills)
    }
}

/// The processes that train into `folder`, but for their launcher.
fn processes_in(folder: &Path, launcher: u32) -> Result<Vec<u32>> {
    let folder = folder.display().to_string();
    let mut found = Vec::new();
    for entry in read_dir("/proc")? {
        let entry = entry?;
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if id != launcher && String::from_utf8_lossy(&line).contains(&folder) {
            found.push(id);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// How runs are started, and what they are trained on.
struct Lab<L> {
    launch: L,
    data: TempDir,
}

impl<L: Fn() -> Command> Lab<L> {
    fn new(launch: L) -> Result<Self> {
        let data = TempDir::new()?;
        let text: String =
            (0..2000u32).map(|i| format!("{} ", i.wrapping_mul(2654435761) >> 20)).collect();
        fs::write(data.path().join("text"), text)?;
        Ok(Lab { launch, data })
    }

    fn command(&self, strike: &str, options: &str, survive: &str, folder: &Path) -> Command {
        let strike = strike.replace("FILE", &folder.join("struck").display().to_string());
        let mut command = (self.launch)();
        command.args(OPTIONS.split_whitespace()).args(options.split_whitespace());
        command.args(["--survive", survive, "--data"]).arg(self.data.path().join("text"));
        command.arg("--out").arg(folder.join("run")).env("CHIMERA_STRIKE", strike);
        command
    }

    fn train(&self, strike: &str, options: &str, survive: &str) -> Result<TempDir> {
        let folder = TempDir::new()?;
        let (path, said) = (folder.path(), folder.path().join(SAID));
        let mut command = self.command(strike, options, survive, path);
        let output = fs::File::create(&said)?;
        let ended = command.stderr(output.try_clone()?).stdout(output).status()?;
        ensure!(ended.success(), "it ended with {ended}:\n{}", last_lines(&said)?);
        Ok(folder)
    }

    /// As [`train`](Self::train), again if the launcher's own daemon on the rank's host has died of that death: the run is
    /// over then, which is not ours to survive.
    fn survived(&self, strike: &str, options: &str, survive: &str) -> Result<TempDir> {
        for _ in 0..N_TRIES {
            let struck = self.train(strike, options, survive)?;
            let said = fs::read(struck.path().join(SAID))?;
            if !String::from_utf8_lossy(&said).contains(DAEMON_LOST) {
                return Ok(struck);
            }
            println!("{strike}: Open MPI's daemon died, too");
        }
        bail!("Open MPI's daemon died {N_TRIES} times in a row")
    }

    /// Strikes a run by each; in words, how many of them were struck.
    fn strike(
        &self,
        strikes: &[String],
        options: &str,
        survive: &str,
        undisturbed: &TempDir,
        most: f64,
    ) -> Result<String> {
        let (mut n_struck, mut n_missed) = (0, 0);
        for strike in strikes {
            let place = || format!("survive {survive}, struck: {strike}");
            let struck = self.survived(strike, options, survive).with_context(place)?;
            let is_struck = struck.path().join("struck").exists();
            *(if is_struck { &mut n_struck } else { &mut n_missed }) += 1;
            let apart = apart(struck.path(), undisturbed.path());
            let said = || last_lines(&struck.path().join(SAID)).unwrap_or_default();
            let apart = apart.with_context(said).with_context(place)?;
            ensure!(apart <= most, "{}: losses or weights are {apart:e} apart", place());
        }
        Ok(format!("{n_struck} runs of the command ({n_missed} more ended before the point)"))
    }

    /// Stops ranks: one that stays so is evicted, and one that goes on within the timeout is not.
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
            let command = &mut self.command(strike, &options, "respawn", folder.path());
            let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            while running.try_wait()?.is_none() && !folder.path().join("struck").exists() {
                sleep(Duration::from_millis(20));
            }
            sleep(SLOW);
            for process in processes_in(folder.path(), running.id())? {
                ensure!(
                    Command::new("kill").args(["-CONT", &process.to_string()]).status()?.success()
                );
            }
            ensure!(running.wait()?.success(), "a run with a slow rank failed: {strike}");
            let last = metrics(folder.path())?.pop().context("no steps")?;
            ensure!(
                last["recoveries"].as_u64().unwrap_or(0) == 0,
                "a slow rank was evicted: {strike}"
            );
            ensure!(apart(folder.path(), undisturbed.path())? == 0.0, "a slow rank: other weights");
        }
        println!("ranks that were stopped for {SLOW:?} were not evicted");
        Ok(())
    }

    /// Kills a rank, lets the others train on for a while, and has a process take its place: also that of rank 0, in whose
    /// place another one led.
    fn rejoin(&self) -> Result<()> {
        let undisturbed = self.train("", REJOINED, "narrow")?;
        [1, 0].into_iter().try_for_each(|rank| self.rejoin_as(rank, &undisturbed))
    }

    fn rejoin_as(&self, rank: u32, undisturbed: &TempDir) -> Result<()> {
        let folder = TempDir::new()?;
        let strike = format!("{rank} KILL at 30.5 FILE");
        let command = &mut self.command(&strike, REJOINED, "narrow", folder.path());
        let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        while running.try_wait()?.is_none() && !folder.path().join("struck").exists() {
            sleep(Duration::from_millis(20));
        }
        sleep(Duration::from_millis(500));
        fs::write(folder.path().join("run/rejoin"), "")?;
        ensure!(running.wait()?.success(), "a run that a rank joined again failed");
        let replaced = |step: &Value| step["replaced"].as_array().is_some_and(|of| !of.is_empty());
        let (steps, known) = (metrics(folder.path())?, metrics(undisturbed.path())?);
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

/// The furthest that losses, norms and weights of two runs are apart.
fn apart(struck: &Path, undisturbed: &Path) -> Result<f64> {
    let (ours, theirs) = (metrics(struck)?, metrics(undisturbed)?);
    ensure!(ours.len() == theirs.len(), "{} steps in place of {}", ours.len(), theirs.len());
    let mut most = 0.0f64;
    for (a, b) in ours.iter().zip(&theirs) {
        ensure!(a["step"] == b["step"], "step {} in place of {}", a["step"], b["step"]);
        for key in ["loss", "grad_norm"] {
            let value = |step: &Value| step[key].as_f64().context("a step without its figures");
            most = most.max((value(a)? - value(b)?).abs());
        }
    }
    let (a, b) = (weights(struck)?, weights(undisturbed)?);
    ensure!(a.len() == b.len(), "another number of weights");
    Ok(a.iter().zip(&b).map(|(a, b)| f64::from((a - b).abs())).fold(most, f64::max))
}

fn last_lines(file: &Path) -> Result<String> {
    let bytes = fs::read(file)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(N_LINES)..].join("\n"))
}

/// The steps of a run.
fn metrics(folder: &Path) -> Result<Vec<Value>> {
    let text = read_to_string(folder.join("run/metrics.jsonl"))?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// All weights of a run, in the order of their file.
fn weights(folder: &Path) -> Result<Vec<f32>> {
    let bytes = fs::read(folder.join("run/model/model.safetensors"))?;
    let (length, rest) = bytes.split_first_chunk::<8>().context("no length of a header")?;
    let values = rest.get(u64::from_le_bytes(*length) as usize..).context("no weights")?;
    Ok(values.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect())
}
