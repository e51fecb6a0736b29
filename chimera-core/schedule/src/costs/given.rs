//! Times from the user: one number for all stages, one for each, or none. Without any times, a
//! stage costs its share of the model.

use super::{StageCosts, UniformCosts};
use crate::ir::timetable::Timetable;

/// Times of ops and messages, in any unit. If no op has a time, a forward of a micro-batch through
/// 1/D of the model takes 1, so that schedules with more stages than workers can be compared with
/// others.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GivenTimes {
    /// A forward of one micro-batch; 1 by default.
    pub forward: Option<PerStage>,
    /// A whole backward, each half of which takes half of it; 2 by default.
    pub backward: Option<PerStage>,
    /// The input half of a backward.
    pub input: Option<PerStage>,
    /// The weight half of a backward.
    pub weight: Option<PerStage>,
    /// A forward and a backward as one atomic pair.
    pub pair: Option<PerStage>,
    /// A recomputation; by default the time of a forward.
    pub recompute: Option<PerStage>,
    /// A message between workers; 0 by default.
    pub message: Option<PerStage>,
    /// A move of saved activations; 0 by default.
    pub transfer: Option<PerStage>,
}

/// One number for all stages, or one for each.
#[derive(Clone, PartialEq, Debug)]
pub struct PerStage(pub Vec<f64>);

/// A list of times whose length is not the number of stages.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{option} has {n} numbers, but {why}: give one number or {n_stages}")]
pub struct Miscounted {
    /// The option that gave the list.
    pub option: &'static str,
    /// Length of the list.
    pub n: usize,
    /// The reason for the number of stages.
    pub why: String,
    /// The length that it should have.
    pub n_stages: usize,
}

impl PerStage {
    /// Refuses a list that is not as long as there are stages.
    ///
    /// # Errors
    /// [`Miscounted`].
    pub fn check(
        &self,
        option: &'static str,
        n_stages: usize,
        why: &str,
    ) -> Result<(), Miscounted> {
        let n = self.0.len();
        if n != 1 && n != n_stages {
            return Err(Miscounted { option, n, why: why.to_string(), n_stages });
        }
        Ok(())
    }

    /// The time for a stage.
    ///
    /// # Panics
    /// If a list of several numbers has none for the stage.
    pub fn at(&self, stage: usize) -> f64 {
        match self.0[..] {
            [all] => all,
            ref each => each[stage],
        }
    }
}

impl GivenTimes {
    /// The unit of time, for reports.
    pub fn unit(&self) -> &'static str {
        if self.has_ops() {
            "as given"
        } else {
            "a forward of a micro-batch through 1/D of the model"
        }
    }

    /// Returns true if the time of any op is given; messages and moves do not count.
    pub fn has_ops(&self) -> bool {
        GivenTimes { message: None, transfer: None, ..self.clone() } != GivenTimes::default()
    }

    /// Costs of the timetable's stages: as given for each, or as shares of the model's if no op has
    /// a time.
    ///
    /// # Errors
    /// [`Miscounted`].
    pub fn of_stages(&self, timetable: &Timetable) -> Result<StageCosts, Miscounted> {
        let d = timetable.placement.n_workers();
        let n_stages = timetable.placement.n_stages();
        self.check(n_stages, &format!("{} has {n_stages} stages", timetable.schedule))?;
        let has_ops = self.has_ops();
        let at = |stage| {
            let given = self.at(stage);
            if has_ops {
                given
            } else {
                UniformCosts {
                    message: given.message,
                    transfer: given.transfer,
                    ..GivenTimes::default().of_share(stage, n_stages, d)
                }
            }
        };
        Ok(stage_costs(timetable, (0..n_stages).map(at)))
    }

    /// Costs of the stages of a model in which each D-th part has the given costs.
    ///
    /// # Errors
    /// [`Miscounted`].
    pub fn of_model(&self, timetable: &Timetable) -> Result<StageCosts, Miscounted> {
        let placement = &timetable.placement;
        let d = placement.n_workers();
        let n_stages = placement.n_stages();
        self.check(d, &format!("the model is compared in {d} parts, one for each worker"))?;
        Ok(stage_costs(timetable, (0..n_stages).map(|s| self.of_share(s, n_stages, d))))
    }

    /// Costs of stage `s` of `n_stages`, for a model of `d` parts: from each part as much as lies
    /// in the stage.
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
    fn check(&self, n_stages: usize, why: &str) -> Result<(), Miscounted> {
        let given = self.all().into_iter().filter_map(|(name, list)| Some((name, list.as_ref()?)));
        for (name, list) in given {
            list.check(name, n_stages, why)?;
        }
        Ok(())
    }

    /// All times with their command-line options.
    fn all(&self) -> [(&'static str, &Option<PerStage>); 8] {
        [
            ("--forward", &self.forward),
            ("--backward", &self.backward),
            ("--input", &self.input),
            ("--weight", &self.weight),
            ("--pair", &self.pair),
            ("--recompute-time", &self.recompute),
            ("--message", &self.message),
            ("--transfer", &self.transfer),
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
            recompute: at(&self.recompute).unwrap_or(costs.recompute),
            transfer: at(&self.transfer).unwrap_or(0.0),
            ..costs
        }
    }
}

fn stage_costs(timetable: &Timetable, stages: impl Iterator<Item = UniformCosts>) -> StageCosts {
    let units = timetable.units_per_micro;
    StageCosts::new(stages.map(|stage| stage.per_units(units)).collect())
}
