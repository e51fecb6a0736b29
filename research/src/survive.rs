//! Trainings with deaths drawn from seeds, on the simulated transport.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread::{available_parallelism, scope};
use std::time::Instant;

use anyhow::{Result, bail};
use chimera_testkit::survival::{Ending, Scenario};

/// Cases to draw.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Cases, each of one seed
    #[arg(long, default_value_t = 10_000)]
    cases: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Cases at once; a case runs one rank at a time [default: the cores of the machine]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Dead ranks stay away for a while, and the others train without them
    #[arg(long)]
    narrow: bool,
    /// Ranks stall, and die when the others evict them
    #[arg(long, conflicts_with_all = ["narrow", "shadows"])]
    stalls: bool,
    /// Stages have no replicas; other ranks hold copies
    #[arg(long)]
    shadows: bool,
}

/// Cases between two lines of progress.
const LINE: u64 = 1_000;

/// Endings of the cases so far.
#[derive(Default)]
struct Tally {
    /// Cases that were begun.
    n_begun: u64,
    undisturbed: u64,
    recovered: u64,
    lost: u64,
    /// The first seed with a wrong ending, and the reason.
    failed: Option<(u64, String)>,
}

/// Runs the cases. Stops at the first with a wrong ending, and names its seed.
pub(crate) fn run(args: &Args) -> Result<()> {
    let cores = || available_parallelism().map_or(1, NonZero::get);
    let n_jobs = args.jobs.map_or_else(cores, usize::from);
    let (began, tally) = (Instant::now(), Mutex::new(Tally::default()));
    scope(|scope| {
        for _ in 0..n_jobs {
            scope.spawn(|| args.run_cases(&tally, began));
        }
    });
    match tally.into_inner().unwrap_or_else(PoisonError::into_inner).failed {
        None => Ok(()),
        Some((_, why)) => bail!(why),
    }
}

impl Args {
    /// Runs cases that no other thread has taken, until none is left.
    fn run_cases(&self, tally: &Mutex<Tally>, began: Instant) {
        let tally = || tally.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let nth = {
                let mut tally = tally();
                if tally.failed.is_some() || tally.n_begun == self.cases {
                    return;
                }
                tally.n_begun += 1;
                tally.n_begun - 1
            };
            let seed = self.from.saturating_add(nth);
            let ended = self.run_case(seed);
            let mut tally = tally();
            match ended {
                Ok(Ending::Survived { n_recoveries: 0 }) => tally.undisturbed += 1,
                Ok(Ending::Survived { .. }) => tally.recovered += 1,
                Ok(Ending::Lost) => tally.lost += 1,
                Err(why) if tally.failed.as_ref().is_none_or(|(first, _)| seed < *first) => {
                    tally.failed = Some((seed, why));
                }
                Err(_) => {}
            }
            let Tally { undisturbed, recovered, lost, .. } = *tally;
            let n = undisturbed + recovered + lost;
            if n.is_multiple_of(LINE) && n > 0 || n == self.cases {
                println!(
                    "{n} cases in {:.0} s: {recovered} recovered with the weights of the undisturbed training, {lost} lost a stage with \
                     all its holders and reported it, {undisturbed} met no death",
                    began.elapsed().as_secs_f64()
                );
            }
        }
    }

    /// Returns the ending of a seed's case, or a message if the ending is wrong.
    fn run_case(&self, seed: u64) -> Result<Ending, String> {
        let (scenario, how) = match self {
            Args { narrow: true, shadows: true, .. } => {
                (Scenario::draw_narrow_shadowed(seed), " --narrow --shadows")
            }
            Args { narrow: true, .. } => (Scenario::draw_narrow(seed), " --narrow"),
            Args { shadows: true, .. } => (Scenario::draw_shadowed(seed), " --shadows"),
            Args { stalls: true, .. } => (Scenario::draw_stalled(seed), " --stalls"),
            _ => (Scenario::draw(seed), ""),
        };
        scenario.check().map_err(|why| {
            format!(
                "seed {seed}, {scenario}: {why}\nagain: cargo xtask survive --from {seed} --cases 1{how}"
            )
        })
    }
}
