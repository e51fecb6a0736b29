//! `chimera simulate`: predicts the time of a step without running anything.

mod execute;

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::Result;
use chimera_core::analyze::{
    Event, FreeWindow, IdleTime, Timeline, Work, behind_makespan, peak_kept, simulate,
    simulated_idle, slack, windows,
};
use chimera_core::costs::Costs;
use chimera_core::program::Program;
use chimera_core::render::chrome;
use chimera_core::render::report::{by_cause, summary};
use chimera_core::search::Report;
use chimera_core::timetable::Timetable;
use chimera_core::update::Update;
use clap::{Arg, Args, ValueHint};
use serde_json::{Value, json};

use self::execute::{ExecuteArgs, Ran};
use crate::cli::parts::out::{FileFormat, OutArg};
use crate::cli::parts::schedule::closed_form;
use crate::cli::parts::schedule::costs::CostArgs;
use crate::cli::parts::schedule::drawing::title_in;
use crate::cli::parts::schedule::network::NetworkArgs;
use crate::cli::parts::schedule::own_work::WorkArgs;
use crate::cli::parts::schedule::profiled::Profiled;
use crate::cli::parts::schedule::scheduled::{LostArgs, Scheduled};
use crate::cli::parts::schedule::shape::{ProfiledArgs, ScheduleArg, ShapeArgs};
use crate::cli::parts::terminal::console::{figure, write_whole};
use crate::cli::parts::terminal::output::written_path;
use crate::cli::parts::terminal::progress::spin;
use crate::cli::parts::training::bubble::causes;
use crate::plan::StepCosts;

/// Simulates a step of a schedule without the optimizer
///
/// Of an asynchronous schedule, simulates the steps of its window.
#[derive(Args)]
#[command(mut_arg("name", with_default))]
pub(crate) struct Simulate {
    #[command(flatten)]
    schedule: ScheduleArg,
    #[command(flatten)]
    shape: ShapeArgs,
    #[command(flatten)]
    costs: CostArgs,
    #[command(flatten)]
    profiled: ProfiledArgs,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    lost: LostArgs,
    #[command(flatten)]
    execute: ExecuteArgs,
    /// Also print the closed form of the Chimera paper (equation 1), and its error
    #[arg(long)]
    closed_form: bool,
    /// File for a trace of the step, for ui.perfetto.dev and `chimera trace compare`
    #[arg(long, value_name = "FILE", value_parser = written_path(), value_hint = ValueHint::FilePath)]
    trace: Option<PathBuf>,
    #[command(flatten)]
    out: OutArg,
    #[command(flatten)]
    work: WorkArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Names the schedule that is simulated by default.
fn with_default(name: Arg) -> Arg {
    let help = name.get_help().map_or_else(String::new, ToString::to_string);
    name.help(format!("{help} [default: chimera]"))
}

impl Simulate {
    pub(crate) fn run(self) -> Result<()> {
        self.network.warn_of_unread();
        let format = self.out.format()?;
        let name = self.schedule.name();
        let profiled =
            Profiled::open(&self.profiled, name, &self.shape, &self.costs, &self.network)?;
        if profiled.is_none() {
            self.network.check_unit(&self.costs)?;
        }
        let chosen = self.shape.chooses_placement(name);
        let of_stages = |profiled: &Option<Profiled>, timetable: &Timetable| match profiled {
            Some(profiled) => self.costs.with_transfers(profiled.costs(timetable)?, timetable),
            None => self.costs.of(chosen, timetable),
        };
        let plan = Scheduled::on(
            &self.network,
            name,
            &self.shape,
            &self.costs,
            (&|timetable| of_stages(&profiled, timetable), profiled.is_some()),
        )?;
        let (plan, profiled) = match profiled {
            Some(profiled) => {
                let (plan, beside) = profiled.beside_others(plan, &self.network, &self.costs)?;
                (plan, Some(beside))
            }
            None => (plan, None),
        };
        let width = self.network.job()?.schedule.width;
        let network =
            self.network.without(&self.lost.ranks(), plan.timetable.placement.n_workers())?;
        let plan = plan.without(&self.lost, width, &|whole, narrowed| {
            network.of_messages(narrowed, false, of_stages(&profiled, whole)?)
        })?;
        let layout = profiled.as_ref().map(|p| p.layout(&plan.timetable)).transpose()?;
        let unit = if profiled.is_some() { "second" } else { self.costs.unit() };
        let program = plan.prove()?;
        let costs = network.with_sums(plan.costs().clone(), &program)?;
        let costs = match &profiled {
            Some(profiled) => profiled.with_step(costs, &program)?,
            None => StepCosts::free(costs),
        };
        let timeline = spin("simulating the schedule", || simulate(&program, &costs));
        let filled = self.work.fill((&program, &timeline), &plan.how, &costs)?;
        let ran = match &filled {
            Some(filled) => self.execute.measure(&filled.program, &filled.costs)?,
            None => self.execute.measure(&program, &costs)?,
        };
        let measured = match ran {
            Ran::Not => None,
            Ran::Here(measured) => Some(measured),
            Ran::Elsewhere => return Ok(()),
        };
        let sync = Synchronised::of(&program, &timeline, &costs);
        if sync.sums == 0.0 {
            network.warn_of_free_reductions(sync.agreement > 0.0);
        }
        let (makespan, busy) = (timeline.makespan(), timeline.busy());
        let bubble = IdleTime::shares(&simulated_idle(&program, &timeline, &costs), makespan);
        let form = if self.closed_form {
            Some(network.closed_form(&program, plan.costs())?)
        } else {
            None
        };
        if let Some(path) = &self.trace {
            let trace = match &filled {
                Some(filled) => chrome::trace(&filled.program, &filled.timeline),
                None => chrome::trace(&program, &timeline),
            };
            write_whole(path, &trace)?;
        }
        if let Some(format) = format {
            let (drawn, timeline) = match &filled {
                Some(filled) => (&filled.program, &filled.timeline),
                None => (&program, &timeline),
            };
            let title = title_in(&plan.timetable, unit);
            match format {
                FileFormat::Text | FileFormat::Json => {}
                FileFormat::Csv => return self.out.deliver(&workers_csv(drawn, timeline)),
                FileFormat::Html => {
                    return self.out.deliver(&html::page(drawn, timeline, &title));
                }
                _ => return self.out.draw(format, &svg::step(drawn, timeline, &title)),
            }
        }
        let kept = peak_kept(&program);
        let is_recomputed = kept.iter().any(|kept| *kept > 0.0);
        let workers = busy.iter().zip(program.peaks()).zip(kept);
        let windows = windows(&program, &timeline);
        if self.json || format == Some(FileFormat::Json) {
            let free = windows.into_iter().zip(slack(&program, &timeline, &costs)).enumerate();
            let worker =
                |(((busy, peak), kept), (w, (windows, slack))): (((&f64, &f64), f64), _)| {
                    let windows: Vec<FreeWindow> = windows;
                    let slack: Vec<f64> = slack;
                    let mut worker =
                        json!({"busy": busy, "idle": makespan - busy, "peak_micro_batches": peak});
                    worker["windows"] = windows.iter().map(|w| json!([w.from, w.to])).collect();
                    worker["free_micro_batches"] = windows.iter().map(|w| json!(w.free)).collect();
                    worker["slack"] = json!(slack);
                    if is_recomputed {
                        worker["peak_kept_inputs"] = json!(kept);
                    }
                    if let Some(filled) = &filled {
                        worker["work"] = filled.json(w);
                    }
                    worker
                };
            let mut figures = json!({
                "unit": unit,
                "makespan": makespan,
                "bubble_ratio": timeline.bubble_ratio(),
                "bubble_by_cause": causes(&bubble),
                "step": makespan + sync.agreement,
                "sums": sync.sums,
                "sums_exposed": sync.exposed,
                "agreement": sync.agreement,
                "workers": workers.zip(free).map(worker).collect::<Vec<_>>(),
            });
            if let Some(layout) = &layout {
                figures["layout"] = json!(layout.to_string());
            }
            if let Some(recomputed) = &plan.recomputed {
                figures["recompute_stages"] = json!(recomputed);
            }
            if let Some(offloads) = plan.offloads {
                figures["offload"] = json!(if offloads { "auto" } else { "none" });
            }
            if let Some(report) = &plan.search {
                figures["search"] = searched(report);
            }
            if program.window().update() != Update::Flush {
                figures["steps"] = json!(program.window().n_steps());
                figures["weight_versions"] = json!(program.weight_versions());
            }
            if let Some(form) = &form {
                figures["closed_form"] = closed_form::terms(form, makespan);
            }
            if let Some(measured) = &measured {
                measured.add_to(&mut figures);
            }
            return self.out.deliver(&format!("{figures:#}"));
        }
        let mut text = summary(&program, &timeline, unit);
        text.push_str("\nworker      busy      idle  peak micro-batches");
        text.push_str(if is_recomputed { "  checkpointed inputs\n" } else { "\n" });
        for (w, ((busy, peak), kept)) in workers.enumerate() {
            let (busy, idle) = (figure(*busy), figure(makespan - busy));
            write!(text, "{w:>6} {busy:>9} {idle:>9}  {peak:>18}")?;
            if is_recomputed {
                write!(text, "  {kept:>11}")?;
            }
            text.push('\n');
        }
        if let Some(layout) = &layout {
            writeln!(text, "layout: {layout}")?;
        }
        if let Some(recomputed) = &plan.recomputed {
            let beside = match plan.offloads {
                Some(true) => "; the others offload what is over",
                Some(false) => "; nothing is offloaded",
                None => "",
            };
            writeln!(text, "stages that recompute: {recomputed}{beside}")?;
        }
        let path = timeline.critical_path();
        let n_ops = |event: &&Event| match event.work {
            Work::Cell(cell) => cell.ops().count(),
            Work::Move(_) => 1,
            Work::Reduce(_) | Work::Step(_) => 0,
        };
        let on_path: usize = path.iter().map(n_ops).sum();
        write!(text, "critical path: {on_path} of {} ops", plan.timetable.n_ops())?;
        write!(text, "\n{}", by_cause("bubble", &bubble))?;
        if let Some(report) = &plan.search {
            write!(text, "\n{report}")?;
        }
        if sync.sums + sync.agreement > 0.0 {
            let Synchronised { sums, exposed, agreement } = sync;
            let ranks = network.job()?.schedule.width * busy.len();
            let step = makespan + agreement;
            write!(
                text,
                "\n{ranks} ranks: step {step:.6}; gradient reductions of a worker {sums:.6}, the last ends {exposed:.6} after \
                 the last op; step sync {agreement:.6}"
            )?;
        }
        if let Some(form) = &form {
            write!(text, "\n{}", closed_form::line(form, makespan))?;
        }
        if let Some(filled) = &filled {
            text.push_str(&filled.table()?);
        }
        if let Some(measured) = &measured {
            text.push_str(&measured.table()?);
        }
        self.out.deliver(&text)
    }
}

/// The busy and idle time and the peak of each worker as CSV.
fn workers_csv(program: &Program, timeline: &Timeline) -> String {
    let makespan = timeline.makespan();
    let rows = timeline.busy().into_iter().zip(program.peaks()).enumerate();
    let rows =
        rows.map(|(worker, (busy, peak))| format!("{worker},{busy},{},{peak}\n", makespan - busy));
    "worker,busy,idle,peak_micro_batches\n".to_string() + &rows.collect::<String>()
}

/// Time that ranks spend on gradient reductions and the step sync.
struct Synchronised {
    /// Reductions of the worker that spends the most time on them.
    sums: f64,
    /// Time from the end of all compute to the end of the last reduction.
    exposed: f64,
    /// Time of the step sync, unless it lies within the makespan.
    agreement: f64,
}

impl Synchronised {
    fn of(program: &Program, timeline: &Timeline, costs: &impl Costs) -> Synchronised {
        let mut sums = vec![0.0; timeline.n_workers];
        let (mut last_op, mut last) = (0.0f64, 0.0f64);
        for event in &timeline.events {
            match event.work {
                Work::Reduce(_) => {
                    sums[event.worker.index()] += event.end - event.start;
                    last = last.max(event.end);
                }
                Work::Cell(_) => last_op = last_op.max(event.end),
                Work::Step(_) | Work::Move(_) => {}
            }
        }
        let sums = sums.into_iter().fold(0.0, f64::max);
        let agreement = behind_makespan(program, timeline, costs);
        Synchronised { sums, exposed: (last - last_op).max(0.0), agreement }
    }
}

/// The report of a search, for JSON.
fn searched(report: &Report) -> Value {
    let Report { progress, like, across } = report;
    let bound = Some(progress.lower_bound).filter(|_| progress.has_bound());
    let mut search = json!({"lower_bound": bound, "orders": progress.n_orders, "schedule": like});
    if let Some(Across { placement, limits, .. }) = across {
        let limit = |limit: &Limit| {
            let Limit { name, value, relaxed, makespan } = limit;
            json!({"name": name, "value": value, "relaxed": relaxed, "makespan": makespan})
        };
        search["placement"] = json!(placement);
        search["limits"] = limits.iter().map(limit).collect();
    }
    search
}
