//! What stages cost, on the command line.

use std::str::FromStr;

use anyhow::{Result, bail};
use chimera_core::costs::{StageCosts, UniformCosts};
use chimera_core::timetable::Timetable;
use clap::{ArgGroup, Args};

use crate::cli::parts::shape::MemoryArgs;

/// The options that are times. (A group with others in it has no members of its own.)
const TIMES: [&str; 7] =
    ["forward", "backward", "input", "weight", "pair", "recompute_time", "message"];

/// The unit where no time is given.
const UNIT: &str = "a forward of a D-th of the model";
/// The unit of times that are given.
const GIVEN: &str = "as given";

/// The costs of stages, in any unit of time, and the memory there is. Where no time is given, a forward of a D-th of the
/// model takes 1, so that schedules with more stages than workers compare with others.
#[derive(Args, Clone)]
#[command(mut_args(|arg| arg.allow_negative_numbers(true)))]
#[command(group(ArgGroup::new("times").multiple(true).args(TIMES)))]
pub(crate) struct CostArgs {
    /// Time of a forward of one micro-batch on one stage; this and all other times are a number, or a list
    /// with one for each stage, such as 1,1,2,1 [default: 1, or if no time is given, 1 on a D-th of the model]
    #[arg(long, value_name = "F")]
    forward: Option<PerStage>,
    /// Time of a whole backward, half of it for each half [default: 2]
    #[arg(long, value_name = "B", conflicts_with_all = ["input", "weight"])]
    backward: Option<PerStage>,
    /// Time of the input half of a backward [default: 1]
    #[arg(long, value_name = "I")]
    input: Option<PerStage>,
    /// Time of the weight half of a backward [default: 1]
    #[arg(long, value_name = "W")]
    weight: Option<PerStage>,
    /// Time of a forward and a backward as one atomic pair [default: F + I + W]
    #[arg(long, value_name = "P")]
    pair: Option<PerStage>,
    /// Time of a recomputation [default: F]
    #[arg(long, value_name = "R")]
    recompute_time: Option<PerStage>,
    /// Time of a message between workers [default: 0]
    #[arg(long, value_name = "C")]
    message: Option<PerStage>,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
}

impl CostArgs {
    /// Removes the limit of memory.
    pub(crate) fn without_cap(&self) -> CostArgs {
        CostArgs { memory: MemoryArgs::default(), ..self.clone() }
    }

    /// What takes 1 in the times of a report.
    pub(crate) fn unit(&self) -> &'static str {
        let are_given = self.times().into_iter().any(|(_, times)| times.is_some());
        if are_given { GIVEN } else { UNIT }
    }

    /// Costs of the timetable's stages: of each as given, or shares of the model's.
    pub(crate) fn of_stages(&self, timetable: &Timetable) -> Result<StageCosts> {
        if self.unit() == UNIT {
            return self.of_model(timetable);
        }
        let n_stages = timetable.placement.n_stages();
        self.check(n_stages, &format!("{} has {n_stages} stages", timetable.schedule))?;
        Ok(stage_costs(timetable, (0..n_stages).map(|s| self.at(s))))
    }

    /// Costs of the stages of a model, of which each D-th part has the given costs.
    pub(crate) fn of_model(&self, timetable: &Timetable) -> Result<StageCosts> {
        let placement = &timetable.placement;
        let (d, n_stages) = (placement.n_workers(), placement.n_stages());
        self.check(d, &format!("the model is compared in {d} parts, one for each worker"))?;
        Ok(stage_costs(timetable, (0..n_stages).map(|s| self.of_share(s, n_stages, d))))
    }

    /// Costs of stage `s` of `n_stages` that cut a model of `d` parts: of each part as much as lies in the
    /// stage.
    fn of_share(&self, s: usize, n_stages: usize, d: usize) -> UniformCosts {
        // Both in units of which the model has `n_stages * d`.
        let (from, to) = (s * d, (s + 1) * d);
        let share = |part: usize| {
            let overlap = to.min((part + 1) * n_stages) - from.max(part * n_stages);
            self.at(part).share(overlap as f64 / n_stages as f64)
        };
        let first = share(from / n_stages);
        (from / n_stages + 1..to.div_ceil(n_stages)).map(share).fold(first, UniformCosts::and)
    }

    /// Refuses a list that is not as long as there are stages.
    fn check(&self, n_stages: usize, why: &str) -> Result<()> {
        let given =
            self.times().into_iter().filter_map(|(name, list)| Some((name, list.as_ref()?)));
        for (name, list) in given {
            list.check(name, n_stages, why)?;
        }
        Ok(())
    }

    /// The options that are times.
    fn times(&self) -> [(&'static str, &Option<PerStage>); 7] {
        [
            ("--forward", &self.forward),
            ("--backward", &self.backward),
            ("--input", &self.input),
            ("--weight", &self.weight),
            ("--pair", &self.pair),
            ("--recompute-time", &self.recompute_time),
            ("--message", &self.message),
        ]
    }

    fn at(&self, stage: usize) -> UniformCosts {
        let at = |list: &Option<PerStage>| list.as_ref().map(|list| list.at(stage));
        let [forward, backward, message] =
            [(&self.forward, 1.0), (&self.backward, 2.0), (&self.message, 0.0)]
                .map(|(times, default)| at(times).unwrap_or(default));
        let costs = UniformCosts::new(forward, backward, message);
        UniformCosts {
            input: at(&self.input).unwrap_or(costs.input),
            weight: at(&self.weight).unwrap_or(costs.weight),
            pair: at(&self.pair),
            recompute: at(&self.recompute_time).unwrap_or(costs.recompute),
            ..costs
        }
    }
}

/// What a report says of its unit of time.
pub(crate) fn unit_line(unit: &str) -> String {
    format!("unit of time: {unit}")
}

fn stage_costs(timetable: &Timetable, stages: impl Iterator<Item = UniformCosts>) -> StageCosts {
    let units = timetable.units_per_micro;
    StageCosts::new(stages.map(|stage| stage.per_units(units)).collect())
}

/// One number for all stages, or one for each.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PerStage(pub(crate) Vec<f64>);

impl PerStage {
    /// Refuses a list that is not as long as there are stages.
    pub(crate) fn check(&self, option: &str, n_stages: usize, why: &str) -> Result<()> {
        let n = self.0.len();
        if n != 1 && n != n_stages {
            bail!("{option} has {n} numbers, but {why}: give one number or {n_stages}");
        }
        Ok(())
    }

    pub(crate) fn at(&self, stage: usize) -> f64 {
        match self.0[..] {
            [all] => all,
            ref each => each[stage],
        }
    }
}

impl FromStr for PerStage {
    type Err = String;

    fn from_str(list: &str) -> Result<PerStage, String> {
        list.split(',').map(number).collect::<Result<_, _>>().map(PerStage)
    }
}

pub(crate) fn number(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(x) if (0.0..=1e12).contains(&x) => Ok(x),
        _ => Err(format!("`{text}` is not a number from 0 to 1e12")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_numbers_between_commas() {
        assert_eq!("1".parse(), Ok(PerStage(vec![1.0])));
        assert_eq!("1, 0.5,2e3".parse(), Ok(PerStage(vec![1.0, 0.5, 2000.0])));
        for (bad, named) in [
            ("", "``"),
            ("1,", "``"),
            ("1,,2", "``"),
            ("1;2", "`1;2`"),
            ("1,-2", "`-2`"),
            ("nan", "`nan`"),
            ("1,inf", "`inf`"),
        ] {
            let error = bad.parse::<PerStage>().expect_err(bad);
            assert!(error.starts_with(named), "{error}");
        }
    }
}
