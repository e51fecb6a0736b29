//! `auto` over drawn cases: against every listed schedule with every pass, and its lower bound.

use std::fmt;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use chimera_core::analyze::simulate;
use chimera_core::costs::{GivenTimes, PerStage};
use chimera_core::lower::{Hoist, Lowering, Moves, Passes, Recompute, lower};
use chimera_core::request::{Request, Source};
use chimera_core::schedule::{SCHEDULES, Schedule, Shape};
use chimera_core::search::{Clock, Progress, Search, Where};
use chimera_core::timetable::Timetable;
use chimera_core::update::Update;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Options of the sweep.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of cases
    #[arg(long, default_value_t = 300)]
    cases: u64,
    /// Seed of the first case
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Time limit of each search in seconds, of processor time where Linux counts it
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Skip the comparison with the listed schedules, which takes most of the time
    #[arg(long)]
    bounds_only: bool,
}

/// Searches every case and prints it, then how many end at their bound and the gaps of the others.
///
/// # Errors
/// If a search failed, broke a limit, or found a longer order than a listed schedule has.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut gaps = [Vec::new(), Vec::new()];
    let mut n_failed = 0;
    for seed in args.first..args.first + args.cases {
        let case = Case::drawn(seed);
        let progress = match case.search(args) {
            Ok(progress) => progress,
            Err(error) => {
                println!("failed: {error:#}");
                n_failed += 1;
                continue;
            }
        };
        let gap = (progress.makespan / progress.lower_bound - 1.0).max(0.0);
        let Progress { makespan, lower_bound, n_orders } = progress;
        let percent = gap * 100.0;
        println!(
            "{case}: {makespan:.3}, bound {lower_bound:.3}, {percent:.1} %, {n_orders} orders"
        );
        gaps[usize::from(case.is_tight())].push(gap);
    }
    for (gaps, name) in gaps.iter_mut().zip(["no cap or at least D", "cap below D"]) {
        gaps.sort_by(f64::total_cmp);
        let n_at = gaps.iter().filter(|gap| **gap < 1e-6).count();
        let at = |part: usize| gaps.get(gaps.len() * part / 10).map_or(0.0, |gap| gap * 100.0);
        println!(
            "{name}: {n_at} of {} at the bound; gaps: median {:.1} %, 9 of 10 within {:.1} %",
            gaps.len(),
            at(5),
            at(9)
        );
    }
    ensure!(n_failed == 0, "{n_failed} of {} cases failed", args.cases);
    Ok(())
}

/// Returns the processor time of this thread, so that other programs do not shorten a search; the
/// time of the system elsewhere.
fn clock() -> Clock {
    /// The file in which Linux counts it in nanoseconds.
    const SPENT: &str = "/proc/thread-self/schedstat";
    fn spent() -> Duration {
        let text = fs::read_to_string(SPENT).unwrap_or_default();
        let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
        Duration::from_nanos(nanos.unwrap_or(0))
    }
    if spent().is_zero() { Clock::default() } else { Clock::new(spent) }
}

/// A shape with costs and a memory limit.
struct Case {
    seed: u64,
    depth: usize,
    n: u32,
    times: GivenTimes,
    transfer: f64,
    cap: Option<f64>,
    /// The costs in words.
    drawn: String,
}

impl Case {
    /// D up to 16, N up to 64; stages alike or up to three times as slow as others, backwards of 1,
    /// 1.6, 2 or 3 forwards, messages of up to half a forward; no cap, one from D to 2D, or one
    /// below D.
    fn drawn(seed: u64) -> Case {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let depth = rng.random_range(2..=16usize);
        let n = rng.random_range(1..=64u32);
        let cap = match rng.random_range(0..3) {
            0 => None,
            1 => Some(rng.random_range(1.0..2.0)),
            _ => Some(rng.random_range(0.15..1.0)),
        };
        let halves = |cap: f64| ((cap * depth as f64).max(1.0) * 2.0).floor() / 2.0;
        let cap = cap.map(halves);
        let is_even = rng.random_bool(0.4);
        let backward = [1.0, 1.6, 2.0, 3.0][rng.random_range(0..4)];
        let tenths = |rng: &mut ChaCha8Rng, most: u32| f64::from(rng.random_range(1..=most)) / 10.0;
        let forward = |_| if is_even { 1.0 } else { 0.4 + tenths(&mut rng, 11) };
        let forward: Vec<f64> = (0..depth).map(forward).collect();
        let message = [0.0, 0.0, 0.1, 0.5][rng.random_range(0..4)];
        let transfer = if rng.random_bool(0.25) { tenths(&mut rng, 20) } else { 0.0 };
        let stages = if is_even { "even" } else { "uneven" };
        let drawn = format!("{stages} B={backward} message={message} transfer={transfer}");
        let backward = forward.iter().map(|f| f * backward).collect();
        let times = GivenTimes {
            forward: Some(PerStage(forward)),
            backward: Some(PerStage(backward)),
            message: Some(PerStage(vec![message])),
            transfer: Some(PerStage(vec![transfer])),
            ..GivenTimes::default()
        };
        Case { seed, depth, n, times, transfer, cap, drawn }
    }

    fn is_tight(&self) -> bool {
        self.cap.is_some_and(|cap| cap < self.depth as f64)
    }

    /// Searches, and checks the result against the limits and the listed schedules.
    fn search(&self, args: &Args) -> Result<Progress> {
        let how = Search {
            max_peak: self.cap,
            time_limit: Duration::from_secs_f64(args.seconds),
            clock: clock(),
            ..Search::default()
        };
        let (source, shape) = (Source::Search(Where::Any, how), Shape::new(self.depth, self.n));
        let request = Request { source, shape, passes: Passes::default() };
        let costs = |timetable: &Timetable| anyhow::Ok(self.times.of_model(timetable)?);
        let ordered = request.timetable(&costs, &mut |_| ())?;
        let report = ordered.search.context("no report")?;
        let makespan = self.makespan(&ordered.timetable).context("what was found is refused")?;
        ensure!((makespan - report.progress.makespan).abs() < 1e-6, "{self}: it takes {makespan}");
        if !args.bounds_only {
            self.check_listed(makespan)?;
        }
        Ok(report.progress)
    }

    fn check_listed(&self, makespan: f64) -> Result<()> {
        let how = Lowering { max_peak: self.cap, ..Lowering::default() };
        for listed in self.listed() {
            let costs = self.times.of_model(&listed)?;
            for passes in self.passes() {
                let passed = passes.apply(listed.clone(), &how, &costs);
                let Some(other) = passed.ok().and_then(|passed| self.makespan(&passed)) else {
                    continue;
                };
                let name = &listed.schedule;
                ensure!(makespan < other + 1e-6, "{self}: {name} with {passes:?} takes {other}");
            }
        }
        Ok(())
    }

    /// Every listed schedule within two copies and two chunks, with every parameter.
    fn listed(&self) -> Vec<Timetable> {
        let plain = Shape { n_waves: 1, ..Shape::new(self.depth, self.n) };
        let of = |schedule: &&dyn Schedule| {
            let others = schedule.parameters(plain).into_iter().map(|(shape, _)| shape);
            let made = std::iter::once(plain).chain(others).map(|shape| schedule.timetable(&shape));
            made.filter_map(Result::ok).collect::<Vec<_>>()
        };
        let all = SCHEDULES.iter().flat_map(of);
        all.filter(|t| t.update == Update::Flush && !t.is_sliced).collect()
    }

    /// Every choice of passes; those that save memory only under a cap, and where they take time.
    fn passes(&self) -> Vec<Passes> {
        let is_capped = self.cap.is_some();
        let mut all = Vec::new();
        for split_backward in [false, true] {
            for (recompute, hoist) in [
                (Recompute::None, Hoist::By(0)),
                (Recompute::Full, Hoist::By(0)),
                (Recompute::Full, Hoist::Auto),
            ] {
                for moves in [Moves::None, Moves::Offload, Moves::Bpipe] {
                    let moves_freely = moves != Moves::None && self.transfer == 0.0;
                    let saves = recompute != Recompute::None || moves != Moves::None;
                    if !moves_freely && (is_capped || !saves) {
                        let free_border = None;
                        all.push(Passes { recompute, hoist, split_backward, moves, free_border });
                    }
                }
            }
        }
        all
    }

    fn makespan(&self, timetable: &Timetable) -> Option<f64> {
        let how = Lowering { max_peak: self.cap, ..Lowering::default() };
        let costs = self.times.of_model(timetable).ok()?;
        Some(simulate(&lower(timetable, &how).ok()?, &costs).makespan())
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { seed, depth, n, cap, drawn, .. } = self;
        write!(f, "{seed}: D={depth} N={n} {drawn}")?;
        cap.map_or(Ok(()), |cap| write!(f, " cap={cap}"))
    }
}
