//! The answer about a step: the lines that the command prints, their figures, and where a
//! refused schedule goes wrong.

use chimera_schedule::analyze::{IdleTime, Refusal, Timeline, peak_kept, simulate, simulated_idle};
use chimera_schedule::ids::{PipeId, StageId, WorkerId};
use chimera_schedule::interchange::NotARow;
use chimera_schedule::program::Program;
use chimera_schedule::render::report::{by_cause, proven, summary, title};
use chimera_schedule::render::tones;
use chimera_schedule::schedule::Scaling;
use serde_json::{Value, json};

use crate::events;
use crate::plan::{Made, Plan, Refused};

/// Ops of a step whose bubble is split by cause at once. That takes longer than to prove it.
const MAX_OPS_AT_ONCE: usize = 1 << 14;

/// The answer about the step of a plan, and its events.
pub(crate) fn answer(plan: &Plan, made: Result<Made, Refused>) -> (Value, Vec<u8>) {
    let made = match made {
        Ok(made) => made,
        Err(error) => return (json!({"refusal": refusal(&error), "figures": null}), Vec::new()),
    };
    let program = match made.program() {
        Ok(program) => program,
        Err(error) => {
            let mut answer = shape(&made);
            answer["refusal"] = refusal(&error);
            return (answer, events::of_rows(&made.timetable, &made.costs));
        }
    };
    let timeline = simulate(&program, &made.costs);
    let mut answer = shape(&made);
    answer["figures"] = figures(plan, &made, &program, &timeline);
    (answer, events::of_timeline(&made.timetable, &timeline))
}

/// The words of a refusal, and the cell at fault where there is one.
fn refusal(error: &Refused) -> Value {
    let at = match (error.downcast_ref::<Refusal>(), error.downcast_ref::<NotARow>()) {
        (Some(refusal), _) => refusal.at,
        (_, Some(row)) => Some((row.worker, row.cell)),
        _ => None,
    };
    let reason = error.downcast_ref::<Refusal>().map(|refusal| refusal.reason.to_string());
    json!({
        "text": error.to_string(), "reason": reason,
        "worker": at.map(|(worker, _)| worker), "cell": at.map(|(_, cell)| cell),
    })
}

/// The parts of a timetable that do not need its proof.
fn shape(made: &Made) -> Value {
    let timetable = &made.timetable;
    let n_pipes = timetable.placement.n_pipes();
    let scaling = Scaling::ALL.into_iter().find(|(_, scaling)| *scaling == made.scaling);
    let stages = (0..timetable.rows.len() as u16)
        .map(|worker| timetable.placement.stages_of(WorkerId(worker)));
    json!({
        "refusal": null,
        "figures": null,
        "schedule": timetable.schedule,
        "depth": timetable.rows.len(),
        "n_micro_batches": timetable.micro_batches_per_step(),
        "n_stages": timetable.placement.n_stages(),
        "n_pipes": n_pipes,
        "units_per_micro": timetable.units_per_micro,
        "scaling": scaling.map(|(name, _)| name),
        "search": made.search,
        "stages": stages.collect::<Vec<_>>(),
        "tones": (0..n_pipes as u16).map(|p| tones(PipeId(p), n_pipes)).collect::<Vec<_>>(),
    })
}

/// The bubble of a step by cause.
pub(crate) fn causes(made: &Made) -> Result<Value, Refused> {
    let program = made.program()?;
    let timeline = simulate(&program, &made.costs);
    Ok(json!({"idle": idle(made, &program, &timeline)}))
}

fn idle(made: &Made, program: &Program, timeline: &Timeline) -> Value {
    let idle = simulated_idle(program, timeline, &made.costs);
    let bubble = IdleTime::shares(&idle, timeline.makespan());
    let causes = bubble.named().map(|(name, share)| json!({"name": name, "share": share}));
    json!({"line": by_cause("bubble", &bubble), "causes": causes})
}

fn figures(plan: &Plan, made: &Made, program: &Program, timeline: &Timeline) -> Value {
    let makespan = timeline.makespan();
    let unit = plan.times().unit();
    let is_small = made.timetable.n_ops() <= MAX_OPS_AT_ONCE;
    let idle = is_small.then(|| idle(made, program, timeline));
    let versions = program.weight_versions().iter().max().copied().unwrap_or(1);
    let copies = program.placement().replicas(StageId(0)).len() * versions as usize;
    json!({
        "title": title(&made.timetable, unit),
        "proven": proven(program),
        "summary": summary(program, timeline, unit),
        "idle": idle,
        "makespan": makespan,
        "bubble_ratio": timeline.bubble_ratio(),
        "busy": timeline.busy(),
        "peaks": program.peaks(),
        "kept": peak_kept(program),
        "n_messages": program.n_messages(),
        "channel_bound": program.channel_bound(),
        "n_steps": program.window().n_steps(),
        "weight_copies": copies,
    })
}
