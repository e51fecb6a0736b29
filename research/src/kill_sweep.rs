//! One rank of four is killed, stopped or panics at every point of a training over MPI. The study
//! records how the others end, and how the run goes on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use xtask::command::root;
use xtask::mpi_library;
use xtask::strike::points::{PLACES, Point, points};
use xtask::strike::{Blow, Case, Ended, Setting, Site};

const TIMEOUTS: &str = "--timeout 3 --start-timeout 6";
/// Time in which all ranks of a machine learn of a death.
const SOON: Duration = Duration::from_secs(1);

/// Options of the sweep.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this blow: KILL, STOP or PANIC
    #[arg(long, value_name = "NAME")]
    blow: Option<Blow>,
    /// Only points whose row of the table, or whose rank and words, contain this; docs are not
    /// written
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Only every n-th point of each row of the table
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    every: usize,
    /// Runs at a time
    #[arg(long, default_value_t = 1)]
    jobs: usize,
}

/// Strikes every point, and writes docs/reliability.md.
pub(crate) fn run(args: &Args) -> Result<()> {
    let built = mpi_library::build(false)?;
    let setting = Setting { soon: SOON, timeouts: TIMEOUTS, environment: Vec::new() };
    let site = Site::build(&built.launcher, &built.program, setting)?;
    let only = args.only.as_deref().unwrap_or_default();
    let all: Vec<_> = points()?.into_iter().filter(|point| is_of(point, only)).collect();
    let mut seen = [0usize; PLACES.len() + 1];
    let is_taken = |point: &Point| {
        seen[point.nth] += 1;
        (seen[point.nth] - 1).is_multiple_of(args.every.max(1))
    };
    let points: Vec<_> = all.into_iter().filter(is_taken).collect();
    let blows = Blow::ALL.into_iter().filter(|blow| args.blow.is_none_or(|only| only == *blow));
    let cases: Vec<_> =
        blows.flat_map(|b| points.iter().map(move |p| (b, p))).filter(is_case).collect();
    let (n_cases, left) = (cases.len(), Mutex::new(cases.into_iter()));
    let rows: Mutex<BTreeMap<(Blow, usize, &str), Row>> = Mutex::default();
    let failures = Mutex::new(Vec::new());
    let fail = |failure: String| {
        eprintln!("{failure}");
        lock(&failures).push(failure);
    };
    let work = || {
        loop {
            // in a loop's condition, the lock would be held for the whole case
            let next = lock(&left).next();
            let Some((blow, point)) = next else { return };
            let case = Case { rank: point.rank, blow, point: point.words.clone() };
            match site.strike(&case) {
                Ok(None) if point.is_open => {}
                Ok(None) => fail(format!("{case} is never reached")),
                Ok(Some(ended)) => {
                    let key = (blow, point.nth, point.place);
                    lock(&rows).entry(key).or_default().add(&ended);
                }
                Err(error) => fail(format!("{case}: {error:#}")),
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..args.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        let died = |_| fail("a thread died".into());
        workers.into_iter().for_each(|worker| worker.join().unwrap_or_else(died));
    });
    let page = page(&lock(&rows), args.every);
    eprint!("{page}");
    let failures = lock(&failures);
    ensure!(
        failures.is_empty(),
        "{} of {n_cases} cases failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
    if args.only.is_some() || args.blow.is_some() {
        return Ok(());
    }
    let path = root().join("docs/reliability.md");
    fs::write(&path, page).with_context(|| format!("writing {}", path.display()))
}

/// Returns true if a blow at a point is a case. The launcher waits for ever for a rank that is
/// stopped after all have left MPI. Panics only happen at instructions.
fn is_case((blow, point): &(Blow, &Point)) -> bool {
    match blow {
        Blow::Kill => true,
        Blow::Stop => point.words != "left",
        Blow::Panic => point.words.starts_with("at "),
    }
}

/// Returns true if the row of a point, or its rank and words, contain `only`.
fn is_of(point: &Point, only: &str) -> bool {
    let Point { rank, words, .. } = point;
    point.place.contains(only) || format!("rank {rank} {words}").contains(only)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The cases of a row of the table, which all ended correctly.
#[derive(Default)]
struct Row {
    n: usize,
    /// Shortest and longest time from the strike to the error file of a survivor.
    detection: Option<(Duration, Duration)>,
    /// Error files of survivors.
    n_named: usize,
}

impl Row {
    fn add(&mut self, ended: &Ended) {
        self.n += 1;
        self.n_named += ended.detections.len();
        for took in &ended.detections {
            let (least, most) = self.detection.get_or_insert((*took, *took));
            (*least, *most) = ((*least).min(*took), (*most).max(*took));
        }
    }
}

const HEAD: &str = "# When a rank is killed, stopped, or panics

Made by `cargo xtask kill-sweep`. Four ranks train under Open MPI by Chimera (D = 4, N = 4, six
steps, a checkpoint after every two, `--timeout 3`, `--start-timeout 6`). One of them kills or stops
itself:

- at every instruction of the fourth step, where it also panics,
- after every message between stages, and every part of a sum,
- at every change of the file system by a save,
- at every message of the all-gathers of start-up, agreement, saves and shutdown.

Each point is tried on all ranks. In every case:

- The launcher returns within a minute, and not with 0.
- Every other rank that knows the run's folder leaves `error.<rank>.json`, which names the rank, with
  code 5 (killed), 6 (stopped) or 101 (panicked). Within a step it also leaves `ops.<rank>.jsonl`.
- No process, temporary file or shared memory is left.
- The same command continues from the last checkpoint and leaves no part of an interrupted save. Its
  losses and gradient norms are those of an undisturbed run, to the bit.

A case that breaks one of these fails the chore; CI tries some points (`cargo xtask mpi`). \"Found\" is
the time until the others have written their error files, within a second unless the rank is stopped.
Before the folder is known, ranks name it on standard error. A rank that is killed before it starts
MPI ends the job, and one that is stopped there lets the start time out. Nobody misses a rank that is
killed after the shutdown handshake; one that is stopped there is not tried.
";

fn page(rows: &BTreeMap<(Blow, usize, &str), Row>, every: usize) -> String {
    let mut page = HEAD.to_string();
    if every > 1 {
        let _ = writeln!(page, "\nThis table is of every {every}th point (`--every {every}`).");
    }
    for (blow, title) in Blow::ALL.into_iter().zip(["Killed", "Stopped", "Panicked"]) {
        let _ = writeln!(
            page,
            "\n## {title}\n\n| where | cases | found | error files, code {} | restarts equal |\n|---|--:|---|--:|--:|",
            blow.code()
        );
        for ((_, _, place), row) in rows.iter().filter(|((b, _, _), _)| *b == blow) {
            let Row { n, detection, n_named } = row;
            let took = detection.map(|(least, most)| {
                format!("{:.2} to {:.2} s", least.as_secs_f64(), most.as_secs_f64())
            });
            let took = took.unwrap_or_default();
            let _ = writeln!(page, "| {place} | {n} | {took} | {n_named} | {n} |");
        }
    }
    page
}
