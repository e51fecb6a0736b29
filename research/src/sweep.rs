//! The order search over many cases: compared with its lower bound, the schedules of the table, and
//! the oracle.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use chimera_core::analyze::simulate;
use chimera_core::costs::UniformCosts;
use chimera_core::interchange::to_json;
use chimera_core::lower::{Lowering, lower};
use chimera_core::placement::Placement;
use chimera_core::search::{Allowed, Search, shortest, starts};
use chimera_core::timetable::Timetable;
use serde_json::{Value, json};

use crate::oracle::Oracle;
use xtask::command::root;

/// Options of the sweep.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Orders that each search tries
    #[arg(long, default_value_t = 20_000)]
    orders: u64,
    /// Let the oracle try for this many seconds to prove each makespan above the bound
    #[arg(long, value_name = "SECONDS")]
    prove: Option<f64>,
    /// Only cases whose name contains this; nothing is written to docs
    #[arg(long)]
    only: Option<String>,
    /// Print every case as a line of JSON
    #[arg(long)]
    json: bool,
}

/// Searches every case, and writes docs/search.md.
pub(crate) fn run(args: &Args) -> Result<()> {
    let oracle = args.prove.map(Oracle::build).transpose()?;
    let mut proven = Proven::read()?;
    let only = args.only.as_deref().unwrap_or_default();
    let mut outcomes = Vec::new();
    for case in cases().filter(|case| case.to_string().contains(only)) {
        let outcome = case.search(args.orders)?;
        if let Some(oracle) = &oracle
            && !outcome.is_at(outcome.lower_bound.max(proven.at_least(&case)))
        {
            let at_least = case.prove(&outcome, oracle)?;
            if at_least > outcome.lower_bound + 1e-6 {
                proven.raise(&case, at_least)?;
            }
        }
        if args.json {
            println!("{}", outcome.json(&case, &proven));
        }
        outcomes.push((case, outcome));
    }
    let page = page(&outcomes, &proven, args.orders);
    if args.only.is_some() {
        eprint!("{page}");
        return Ok(());
    }
    let path = root().join("docs/search.md");
    fs::write(&path, page).with_context(|| format!("writing {}", path.display()))
}

/// A problem of the search.
struct Case {
    placement: &'static str,
    depth: usize,
    n: u32,
    backward: f64,
    splits: bool,
    max_peak: f64,
}

/// Placements by name: of D workers, or `None` if D is too small.
const PLACEMENTS: [(&str, fn(usize) -> Option<Placement>); 4] = [
    ("line", |d| Some(Placement::line(d))),
    ("V", |d| Some(Placement::wave(d, 2))),
    ("mirrored", |d| Some(Placement::mirrored(d, 1))),
    ("2f=4", |d| d.is_multiple_of(4).then(|| Placement::mirrored(d, 2))),
];

fn cases() -> impl Iterator<Item = Case> {
    let mut cases = Vec::new();
    for (placement, of_depth) in PLACEMENTS {
        for depth in [2, 4, 8].into_iter().filter(|&d| of_depth(d).is_some()) {
            for twice in [1, 2, 4, 8, 16] {
                for backward in [1.0, 1.6, 2.0, 3.0] {
                    for splits in [false, true] {
                        for cap in [1.0, 1.5, 2.0] {
                            let (n, max_peak) = (twice * depth as u32 / 2, cap * depth as f64);
                            cases.push(Case { placement, depth, n, backward, splits, max_peak });
                        }
                    }
                }
            }
        }
    }
    cases.into_iter()
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { placement, depth, n, backward, splits, max_peak } = self;
        let split = if *splits { " split" } else { "" };
        write!(f, "{placement} D={depth} N={n} B={backward}{split} cap={max_peak}")
    }
}

impl Case {
    fn costs(&self) -> UniformCosts {
        UniformCosts::new(1.0, self.backward, 0.0)
    }

    fn placement(&self) -> Result<Placement> {
        let of_depth = PLACEMENTS.iter().find(|(name, _)| *name == self.placement);
        of_depth.and_then(|(_, of_depth)| of_depth(self.depth)).context("no placement")
    }

    /// The makespan of a timetable if it is proven and fits.
    fn makespan(&self, timetable: &Timetable) -> Option<f64> {
        let how = Lowering { max_peak: Some(self.max_peak), ..Lowering::default() };
        Some(simulate(&lower(timetable, &how).ok()?, &self.costs()).makespan())
    }

    /// Searches, and checks the result.
    fn search(&self, n_orders: u64) -> Result<Outcome> {
        let placement = self.placement()?;
        let allowed = Allowed { split_backwards: self.splits, ..Allowed::default() };
        let hand_made = starts(&placement, self.n, allowed)
            .into_iter()
            .filter(|t| !t.schedule.is_empty())
            .filter_map(|t| Some((self.makespan(&t)?, t.schedule)))
            .min_by(|a, b| a.0.total_cmp(&b.0));
        let how = Search {
            max_peak: Some(self.max_peak),
            n_orders,
            // The same on every machine: the clock never decides.
            time_limit: Duration::MAX,
            ..Search::default()
        };
        let costs = |_: &Timetable| anyhow::Ok(self.costs());
        let found = shortest(&placement, self.n, allowed, &how, &costs, &mut |_| ())?;
        let found = found.with_context(|| format!("{self}: nothing fits"))?;
        let makespan = self.makespan(&found.timetable);
        let makespan = makespan.with_context(|| format!("{self}: what was found is refused"))?;
        let lower_bound = found.progress.lower_bound;
        let told = found.progress.makespan;
        ensure!(
            (makespan - told).abs() < 1e-6,
            "{self}: the search reports {told}, the simulation {makespan}"
        );
        ensure!(makespan > lower_bound - 1e-6, "{self}: {makespan} is below {lower_bound}");
        if let Some((best, name)) = &hand_made {
            ensure!(makespan < best + 1e-6, "{self}: {makespan} is worse than {name}, {best}");
        }
        Ok(Outcome { timetable: found.timetable, makespan, lower_bound, hand_made })
    }

    /// Returns a lower bound on the time of all orders, as far as the oracle can prove it.
    fn prove(&self, outcome: &Outcome, oracle: &Oracle) -> Result<f64> {
        let file = tempfile::NamedTempFile::new()?;
        fs::write(file.path(), to_json(&outcome.timetable))?;
        let proof = oracle.prove(file.path(), self.backward, self.max_peak, outcome.lower_bound)?;
        let (at_least, makespan) = (proof.at_least, proof.makespan);
        eprintln!("{self}: {} found, at least {at_least}, at most {makespan}", outcome.makespan);
        ensure!(
            at_least < outcome.makespan + 1e-6,
            "{self}: {} is less than {at_least}",
            outcome.makespan
        );
        Ok(at_least)
    }
}

/// Result of a search.
struct Outcome {
    timetable: Timetable,
    makespan: f64,
    lower_bound: f64,
    /// The best schedule of the table that fits.
    hand_made: Option<(f64, String)>,
}

impl Outcome {
    fn is_near(&self, bound: f64) -> bool {
        self.makespan <= bound * 1.02 + 1e-6
    }

    fn is_at(&self, bound: f64) -> bool {
        self.makespan <= bound + 1e-6
    }

    fn json(&self, case: &Case, proven: &Proven) -> Value {
        json!({
            "case": case.to_string(),
            "makespan": self.makespan,
            "lower_bound": self.lower_bound,
            "proven": proven.0.get(&case.to_string()),
            "hand_made": self.hand_made.as_ref().map(|(makespan, name)| json!({ "schedule": name, "makespan": makespan })),
        })
    }
}

/// Bounds that the oracle has proven, by case: no order is shorter.
struct Proven(BTreeMap<String, f64>);

impl Proven {
    fn path() -> PathBuf {
        root().join("research/oracle/proven.json")
    }

    fn read() -> Result<Proven> {
        let path = Proven::path();
        let text =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        Ok(Proven(serde_json::from_str(&text)?))
    }

    fn at_least(&self, case: &Case) -> f64 {
        self.0.get(&case.to_string()).copied().unwrap_or(0.0)
    }

    /// Records a proven bound at once, since the proof took long.
    fn raise(&mut self, case: &Case, at_least: f64) -> Result<()> {
        let known = self.0.entry(case.to_string()).or_default();
        *known = known.max(at_least);
        fs::write(Proven::path(), serde_json::to_string_pretty(&self.0)? + "\n")?;
        Ok(())
    }
}

fn page(outcomes: &[(Case, Outcome)], proven: &Proven, n_orders: u64) -> String {
    let count = |is: fn(&Outcome, f64) -> bool| {
        outcomes.iter().filter(|(_, outcome)| is(outcome, outcome.lower_bound)).count()
    };
    let (at, near) = (count(Outcome::is_at), count(Outcome::is_near));
    let exceptions = || outcomes.iter().filter(|(_, o)| !o.is_at(o.lower_bound));
    let optimal = exceptions().filter(|(case, o)| o.is_at(proven.at_least(case))).count();
    let beaten = |(_, o): &&(Case, Outcome)| {
        o.hand_made.as_ref().is_some_and(|(best, _)| o.makespan < best - 1e-6)
    };
    let beaten = outcomes.iter().filter(beaten).count();
    let mut page = format!(
        "# The order search against its bound\n\n\
         Made by `cargo xtask sweep`: {} cases, {n_orders} orders each at most. D in 2, 4, 8; N from D/2 to \
         8D; on every stage a forward takes 1, a backward B in 1, 1.6, 2, 3, whole or split into equal \
         halves; memory caps of D, 1.5D and 2D micro-batches; one pipe on a line or in a V (two stages per \
         worker), two mirrored pipes, four pipes (2f=4).\n\n\
         {at} end at the lower bound, which proves them optimal, and {near} within 2 % of it. None is worse \
         than any schedule of the table on the same placement under the same cap; {beaten} are better than \
         all that fit.\n\n\
         A mixed-integer program (`research/oracle`, HiGHS) is asked about the rest by \
         `cargo xtask sweep --prove SECONDS`, and has proven {optimal} of them optimal. `cargo xtask oracle` \
         has it solve small cases: the bound is never above its optimum, and the search ends there \
         wherever a worker may hold D micro-batches.\n\n\
         | case | found | bound | proven | best of the table |\n|---|---|---|---|---|\n",
        outcomes.len(),
    );
    for (case, outcome) in exceptions() {
        let proof = match proven.at_least(case) {
            at_least if outcome.is_at(at_least) => "optimal".to_string(),
            at_least if at_least > outcome.lower_bound + 1e-6 => {
                format!("at least {}", short(at_least))
            }
            _ => String::new(),
        };
        let hand_made = outcome.hand_made.as_ref();
        let hand_made = hand_made.map(|(makespan, name)| format!("{} {name}", short(*makespan)));
        let _ = writeln!(
            page,
            "| {case} | {} | {} | {proof} | {} |",
            short(outcome.makespan),
            short(outcome.lower_bound),
            hand_made.unwrap_or_default(),
        );
    }
    page
}

/// A time without the noise of its last digits.
fn short(time: f64) -> f64 {
    (time * 1e3).round() / 1e3
}
