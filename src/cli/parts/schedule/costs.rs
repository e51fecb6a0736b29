//! Command-line options for the costs of stages.

use std::ops::RangeInclusive;
use std::str::FromStr;

use anyhow::Result;
use chimera_core::costs::{GivenTimes, PerStage, StageCosts};
use chimera_core::lower::{Offloading, Recompute};
use chimera_core::op::{Cell, Kind};
use chimera_core::timetable::Timetable;
use clap::{Arg, ArgGroup, Args};

use crate::cli::parts::schedule::shape::MemoryArgs;
use crate::cli::parts::schedule::topology::SharedLinks;
use crate::cli::parts::terminal::console::warn;
use crate::settings::{Config, RecomputedStages};

/// The options that are times. (A group that contains other groups has no members of its own.)
const TIMES: [&str; 8] =
    ["forward", "backward", "input", "weight", "pair", "recompute_time", "message", "transfer"];

/// Lets a value begin with a minus, so that its own check refuses it; values of `lists` may
/// continue after a number.
pub(crate) fn may_be_negative(arg: Arg, lists: &[&str]) -> Arg {
    match lists.contains(&arg.get_id().as_str()) {
        _ if !arg.get_action().takes_values() => arg,
        true => arg.allow_hyphen_values(true),
        false => arg.allow_negative_numbers(true),
    }
}

/// The costs of stages, in any unit of time, and the memory there is. Where no time of an op is given, a forward of a D-th of
/// the model takes 1, so that schedules with more stages than workers compare with others.
#[derive(Args, Clone, Default)]
#[command(mut_args(|arg| may_be_negative(arg, &TIMES)))]
#[command(group(ArgGroup::new("times").multiple(true).args(TIMES)))]
pub(crate) struct CostArgs {
    /// Time of one micro-batch's forward on a stage (in `compare`, on 1/D of the model). Each time is a number, or a list
    /// with one for each stage, e.g. 1,1,2,1 [default: 1, or if no time of an op is given, 1 on 1/D of the model]
    #[arg(long, value_name = "F")]
    forward: Option<Times>,
    /// Time of a whole backward; each half takes half of it [default: 2]
    #[arg(long, value_name = "B", conflicts_with_all = ["input", "weight"])]
    backward: Option<Times>,
    /// Time of the input half of a backward [default: 1]
    #[arg(long, value_name = "I")]
    input: Option<Times>,
    /// Time of the weight half of a backward [default: 1]
    #[arg(long, value_name = "W")]
    weight: Option<Times>,
    /// Time of a forward and a backward as one atomic pair [default: F + I + W of their stages]
    #[arg(long, value_name = "P")]
    pair: Option<Times>,
    /// Time of a recomputation [default: F]
    #[arg(long, value_name = "R")]
    recompute_time: Option<Times>,
    /// Time of a message between workers [default: 0]
    #[arg(long, value_name = "C")]
    message: Option<Times>,
    /// Time to move a stage's activations of one micro-batch to another memory, or back [default: from the profile and
    /// links, or 0]
    #[arg(long, value_name = "T")]
    transfer: Option<Times>,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    /// The topology of compared schedules.
    #[arg(skip)]
    pub(crate) links: SharedLinks,
}

impl CostArgs {
    /// Removes the memory limit.
    pub(crate) fn without_cap(&self) -> CostArgs {
        CostArgs { memory: MemoryArgs::default(), ..self.clone() }
    }

    /// Warns of given times that the timetable has no use for and that `config` did not weigh, and
    /// of requested moves that it does not have.
    pub(crate) fn warn_of_unread(&self, timetable: &Timetable, config: &Config) {
        let has_pairs = timetable.rows.iter().flatten().any(|cell| matches!(cell, Cell::Pair(..)));
        let has_moves = timetable.has(Kind::Offload) || config.passes.offload != Offloading::None;
        let recomputes = timetable.has(Kind::Recompute)
            || config.passes.recompute != Recompute::None
            || config.passes.recompute_stages == RecomputedStages::Auto;
        let unread = [
            ("pair", self.pair.is_some() && !has_pairs, "has no atomic pairs"),
            ("recompute-time", self.recompute_time.is_some() && !recomputes, "recomputes nothing"),
            ("transfer", self.transfer.is_some() && !has_moves, "moves no activations"),
            (
                "bpipe",
                config.passes.bpipe && !timetable.has(Kind::Offload),
                "moves no activations, since its workers hold as many as their partners, up to one",
            ),
        ];
        for (option, _, why) in unread.into_iter().filter(|(_, is_unread, _)| *is_unread) {
            warn(&format!("`{option}` has no effect: {} {why}", timetable.schedule));
        }
    }

    /// Returns true if any time is given other than that of a move.
    pub(crate) fn are_given(&self) -> bool {
        GivenTimes { transfer: None, ..self.given() } != GivenTimes::default()
    }

    /// Returns true if moves of activations take time.
    pub(crate) fn has_transfers(&self) -> bool {
        self.transfer.as_ref().is_some_and(Times::has_any)
    }

    /// Returns true if the time of any op is given.
    pub(crate) fn has_ops(&self) -> bool {
        self.given().has_ops()
    }

    /// Sets the given time of a move, if there is one, in the costs of a timetable's stages.
    pub(crate) fn with_transfers(
        &self,
        costs: StageCosts,
        timetable: &Timetable,
    ) -> Result<StageCosts> {
        let Some(Times(each)) = &self.transfer else { return Ok(costs) };
        let n_stages = timetable.placement.n_stages();
        each.check(
            "--transfer",
            n_stages,
            &format!("{} has {n_stages} stages", timetable.schedule),
        )?;
        Ok(costs.with_transfers(|stage| each.at(stage)))
    }

    /// The unit of the times in a report.
    pub(crate) fn unit(&self) -> &'static str {
        self.given().unit()
    }

    /// Returns the costs of the timetable's stages: as given for each, or as shares of the model's.
    pub(crate) fn of_stages(&self, timetable: &Timetable) -> Result<StageCosts> {
        Ok(self.given().of_stages(timetable)?)
    }

    /// Returns the costs of the stages of a schedule: those of a model if its placement is
    /// `chosen`, since placements cut it into different numbers of stages.
    pub(crate) fn of(&self, chosen: bool, timetable: &Timetable) -> Result<StageCosts> {
        if chosen { self.of_model(timetable) } else { self.of_stages(timetable) }
    }

    /// Returns the costs of the stages of a model, of which each D-th part has the given costs.
    pub(crate) fn of_model(&self, timetable: &Timetable) -> Result<StageCosts> {
        Ok(self.given().of_model(timetable)?)
    }

    fn given(&self) -> GivenTimes {
        let given = |times: &Option<Times>| times.clone().map(|Times(list)| list);
        GivenTimes {
            forward: given(&self.forward),
            backward: given(&self.backward),
            input: given(&self.input),
            weight: given(&self.weight),
            pair: given(&self.pair),
            recompute: given(&self.recompute_time),
            message: given(&self.message),
            transfer: given(&self.transfer),
        }
    }
}

/// One number for all stages, or one per stage, separated by commas.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Times(pub(crate) PerStage);

impl Times {
    /// Returns true if any of them is positive.
    pub(crate) fn has_any(&self) -> bool {
        self.0.0.iter().any(|time| *time > 0.0)
    }
}

impl FromStr for Times {
    type Err = String;

    fn from_str(list: &str) -> Result<Times, String> {
        let numbers = list.split(',').map(number).collect::<Result<_, _>>()?;
        Ok(Times(PerStage(numbers)))
    }
}

/// Reads a count of at least one.
pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| "it must be a whole number of at least 1".to_owned())
}

/// Parses a whole number, 0 or more.
pub(crate) fn whole<N: FromStr>(text: &str) -> Result<N, String> {
    let number = text.trim().parse();
    number.map_err(|_| format!("`{text}` is not a whole number from 0 to 2^64 - 1"))
}

/// Parses a whole number in a range.
pub(crate) fn whole_in(
    range: RangeInclusive<u32>,
) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.trim().parse().ok().filter(|number| range.contains(number));
        let (least, most) = (range.start(), range.end());
        number.ok_or_else(|| format!("`{text}` is not a whole number from {least} to {most}"))
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
        assert_eq!("1".parse(), Ok(Times(PerStage(vec![1.0]))));
        assert_eq!("1, 0.5,2e3".parse(), Ok(Times(PerStage(vec![1.0, 0.5, 2000.0]))));
        for (bad, named) in [
            ("", "``"),
            ("1,", "``"),
            ("1,,2", "``"),
            ("1;2", "`1;2`"),
            ("1,-2", "`-2`"),
            ("nan", "`nan`"),
            ("1,inf", "`inf`"),
        ] {
            let error = bad.parse::<Times>().expect_err(bad);
            assert!(error.starts_with(named), "{error}");
        }
    }
}
