//! The mixed-integer program of a horizon: decides whether an order ends by then.

use std::time::{Duration, Instant};

use anyhow::Result;
use good_lp::solvers::highs::highs;
use good_lp::{
    Expression, ProblemVariables, ResolutionError, Solution, SolverModel, Variable, constraint,
    variable,
};

use crate::problem::Problem;

/// The answer to the question of whether an order that ends by a horizon exists.
pub enum Answer {
    /// Start times by job.
    Starts(Vec<i64>),
    No,
    /// Time ran out.
    Unknown,
}

/// Decides whether the jobs of `problem` can end by `horizon`, in units.
///
/// A variable for each job and time tells whether the job has started by then. It is 0 before the
/// longest path to the job, and 1 from the time when the longest path from it just fits. In these
/// variables a precedence has two terms. The jobs that run at a time, and the activations held, are
/// sums.
pub fn solve(problem: &Problem, horizon: i64, time_limit: Duration) -> Result<Answer> {
    let began = Instant::now();
    let mut variables = ProblemVariables::new();
    let Some(started) = Started::new(problem, horizon, &mut variables) else {
        return Ok(Answer::No);
    };
    if started.windows.iter().map(|w| (w.end - w.start) as usize).sum::<usize>() > MAX_VARIABLES {
        return Ok(Answer::Unknown);
    }
    let mut constraints = Vec::new();
    for edge in &problem.edges {
        for t in started.windows[edge.second].clone() {
            let before = started.by(edge.first, t - edge.lag);
            constraints.push(constraint!(started.by(edge.second, t) <= before));
        }
    }
    for w in 0..problem.n_workers {
        for t in 0..horizon {
            constraints.push(constraint!(started.running(problem, w, t) <= 1.0));
            if let Some((held, most)) = started.held(problem, w, t) {
                constraints.push(constraint!(held <= most));
            }
        }
    }
    for job in 0..problem.jobs.len() {
        for t in started.windows[job].clone().skip(1) {
            constraints.push(constraint!(started.by(job, t - 1) <= started.by(job, t)));
        }
    }
    for (first, second) in &problem.mirrored {
        constraints.push(constraint!(started.start(*first) <= started.start(*second)));
    }
    let Some(left) = time_limit.checked_sub(began.elapsed()) else {
        return Ok(Answer::Unknown);
    };
    // HiGHS accepts no program without variables.
    let nothing = variables.add(variable().min(0.0));
    let mut model = variables.minimise(nothing).using(highs);
    for constraint in constraints {
        model.add_constraint(constraint);
    }
    Ok(match model.set_time_limit(left.as_secs_f64()).solve() {
        Ok(solution) => Answer::Starts(
            (0..problem.jobs.len())
                .map(|job| solution.eval(started.start(job)).round() as i64)
                .collect(),
        ),
        Err(ResolutionError::Infeasible) => Answer::No,
        // good_lp reports a timeout as this error.
        Err(ResolutionError::Other("NoSolutionFound")) => Answer::Unknown,
        Err(error) => return Err(error.into()),
    })
}

/// Limit on the size: HiGHS does not solve larger programs within an hour.
const MAX_VARIABLES: usize = 100_000;

/// The variables.
struct Started {
    /// By job: the times at which it may have started or not.
    windows: Vec<std::ops::Range<i64>>,
    variables: Vec<Vec<Variable>>,
}

impl Started {
    /// Returns `None` if a path is longer than the horizon.
    fn new(problem: &Problem, horizon: i64, variables: &mut ProblemVariables) -> Option<Started> {
        let heads = problem.heads().into_iter();
        let windows: Vec<_> =
            heads.zip(problem.tails()).map(|(head, tail)| head..horizon - tail).collect();
        if windows.iter().any(|window| window.start > window.end) {
            return None;
        }
        let binaries = |window: &std::ops::Range<i64>| {
            window.clone().map(|_| variables.add(variable().binary())).collect()
        };
        Some(Started { variables: windows.iter().map(binaries).collect(), windows })
    }

    /// An expression that is 1 if `job` has started by `t`.
    fn by(&self, job: usize, t: i64) -> Expression {
        let window = &self.windows[job];
        if t < window.start {
            Expression::from(0.0)
        } else if t >= window.end {
            Expression::from(1.0)
        } else {
            self.variables[job][(t - window.start) as usize].into()
        }
    }

    fn start(&self, job: usize) -> Expression {
        let late: Expression = self.variables[job].iter().sum();
        self.windows[job].end as f64 - late
    }

    /// Number of a worker's jobs that run from `t` to `t + 1`.
    fn running(&self, problem: &Problem, worker: usize, t: i64) -> Expression {
        let here = problem.jobs.iter().enumerate().filter(|(_, job)| job.worker == worker);
        here.map(|(i, job)| self.by(i, t) - self.by(i, t - job.takes)).sum()
    }

    /// The saved activations that a worker holds from `t` to `t + 1`, and its limit.
    fn held(&self, problem: &Problem, worker: usize, t: i64) -> Option<(Expression, f64)> {
        let here = || problem.jobs.iter().enumerate().filter(|(_, job)| job.worker == worker);
        let least = here().map(|(_, job)| job.holds.abs()).filter(|h| *h > 0.0);
        let least = least.min_by(f64::total_cmp)?;
        let held = here().filter(|(_, job)| job.holds != 0.0).map(|(i, job)| {
            let since = if job.holds > 0.0 { t } else { t - job.takes };
            self.by(i, since) * (job.holds / least).round()
        });
        Some((held.sum(), (problem.max_peak / least + 1e-6).floor()))
    }
}
