//! The scaling `auto` if each scaling has its own best stages to recompute: the one with the shorter whole plan.

use anyhow::Result;
use chimera_core::costs::is_shorter;
use chimera_core::schedule::{Parameter, Scaling as ShapeScaling};
use chimera_settings::{Config, RecomputedStages, Scaling};

use crate::plan::Plan;
use crate::plan::step::course::can_be_halved;
use crate::plan::step::unfit::is_refused;

/// Returns the plan of the scaling with the shorter step if each scaling has its own best stages to
/// recompute; otherwise the plan that settings lead to.
pub(crate) fn shorter(
    config: Config,
    plan: &mut dyn FnMut(Config) -> Result<Plan>,
) -> Result<Plan> {
    let reads = config.schedule.name.reads().contains(&Parameter::Scaling);
    let is_open = config.schedule.scaling == Scaling::Auto
        && config.passes.recompute_stages == RecomputedStages::Auto;
    let has_several =
        config.schedule.depth > 1 && config.schedule.micro_batches > config.schedule.depth;
    if !(is_open && reads && has_several && can_be_halved(&config)) {
        return plan(config);
    }
    let mut with = |scaling| {
        let mut config = config.clone();
        config.schedule.scaling = Scaling::Is(scaling);
        plan(config)
    };
    let takes = |plan: &Plan| {
        let Plan { course, priced, cuts, .. } = plan;
        priced.makespan(&course.config, cuts, &course.program)
    };
    match (with(ShapeScaling::Direct), with(ShapeScaling::Halving)) {
        (Ok(direct), Ok(halving)) => {
            Ok(if is_shorter(takes(&halving)?, takes(&direct)?) { halving } else { direct })
        }
        (Err(error), Ok(halving)) if is_refused(&error) => Ok(halving),
        (Ok(_), Err(error)) if !is_refused(&error) => Err(error),
        (direct, _) => direct,
    }
}

#[cfg(test)]
mod tests {
    use chimera_core::costs::{StageCosts, UniformCosts};
    use chimera_core::ids::StageId;
    use chimera_core::timetable::Timetable;
    use chimera_settings::{Layers, Nothing};

    use super::*;
    use crate::plan::step::chain::Chain;
    use crate::plan::step::course::with_scaling;

    /// Stages of equal time.
    struct Even;

    impl Chain for Even {
        fn costs(&self, _: &Config, timetable: &Timetable) -> Result<StageCosts> {
            let stage = UniformCosts::new(1.0, 2.0, 0.0).per_units(timetable.units_per_micro);
            Ok(StageCosts::new(vec![stage; timetable.placement.n_stages()]))
        }

        fn tied(&self, _: usize) -> Vec<Vec<StageId>> {
            Vec::new()
        }
    }

    fn config(options: &str) -> Config {
        let options =
            format!("--schedule chimera --depth 2 --micro-batch-size 2 --threads 1 {options}");
        Layers::parse(&options).unwrap().resolve(&Nothing).unwrap()
    }

    /// Both take 69 without a cap, and 70 and 69.5 with it.
    #[test]
    fn a_cap_decides_which_scaling_is_shorter() {
        let of = |cap: &str| {
            let options = format!("--scaling auto --micro-batches 23 --split-backward true {cap}");
            with_scaling(config(&options), &Even).unwrap().schedule.scaling
        };
        assert_eq!(of(""), Scaling::Is(ShapeScaling::Direct));
        assert_eq!(of("--memory-cap 2"), Scaling::Is(ShapeScaling::Halving));
    }

    #[test]
    fn each_scaling_has_stages_of_its_own_that_recompute() {
        let of = |scaling: &str| {
            let model = "--layers 2 --hidden 8 --heads 2 --context 8";
            let memory = "--micro-batches 7 --recompute auto --memory-cap 1";
            let config = config(&format!("{model} {memory} --scaling {scaling}"));
            let Plan { course, priced, cuts, .. } = Plan::make(config).unwrap();
            priced.makespan(&course.config, &cuts, &course.program).unwrap()
        };
        assert!(of("auto") <= of("direct").min(of("halving")) * (1.0 + 1e-9));
    }
}
