//! The figures of a simulated step, as text and as JSON.

use std::fmt::Write;

use anyhow::Result;
use chimera_core::analyze::{
    ClosedForm, Event, FreeWindow, IdleTime, Timeline, Work, behind_makespan, peak_kept, slack,
    windows,
};
use chimera_core::costs::Costs;
use chimera_core::model::Partition;
use chimera_core::program::Program;
use chimera_core::render::report::{by_cause, summary};
use chimera_core::search::{Across, Limit, Report};
use chimera_core::update::Update;
use serde_json::{Value, json};

use super::execute::Measured;
use super::links::{Links, write_links};
use super::sharded::PeakGradients;
use super::weights::WholeWeights;
use crate::cli::parts::schedule::closed_form;
use crate::cli::parts::schedule::own_work::FilledStep;
use crate::cli::parts::schedule::rank_map::write_mapping;
use crate::cli::parts::schedule::scheduled::Scheduled;
use crate::cli::parts::terminal::console::figure;
use crate::cli::parts::training::bubble::causes;

/// A simulated step.
pub(super) struct Simulated<'a, C, K> {
    pub(super) plan: &'a Scheduled<C>,
    pub(super) program: &'a Program,
    pub(super) timeline: &'a Timeline,
    pub(super) links: Links<'a>,
    pub(super) unit: &'a str,
    pub(super) layout: Option<Partition>,
    /// The step with other work in its idle time.
    pub(super) filled: Option<FilledStep<'a, K>>,
    pub(super) measured: Option<Measured>,
    pub(super) sync: Synchronised,
    pub(super) bubble: IdleTime,
    pub(super) closed_form: Option<ClosedForm>,
    pub(super) n_ranks: usize,
    pub(super) gradients: PeakGradients,
    pub(super) weights: Option<WholeWeights>,
}

impl<C, K: Costs> Simulated<'_, C, K> {
    /// Returns the step as it is drawn: with other work, if there is any.
    pub(super) fn drawn(&self) -> (&Program, &Timeline) {
        match &self.filled {
            Some(filled) => (&filled.program, &filled.timeline),
            None => (self.program, self.timeline),
        }
    }

    /// Returns all figures as JSON.
    pub(super) fn json(&self, costs: &K) -> Value {
        let Simulated { plan, program, timeline, sync, .. } = self;
        let makespan = timeline.makespan();
        let mut figures = json!({
            "unit": self.unit,
            "makespan": makespan,
            "bubble_ratio": timeline.bubble_ratio(),
            "bubble_by_cause": causes(&self.bubble),
            "step": makespan + sync.agreement,
            "sums": sync.sums,
            "sums_exposed": sync.exposed,
            "agreement": sync.agreement,
            "workers": self.workers_json(costs),
        });
        self.links.add_to(&mut figures, makespan);
        self.gradients.add_to(&mut figures);
        self.weights.iter().for_each(|weights| weights.add_to(&mut figures));
        if let Some(layout) = &self.layout {
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
        if let Some(form) = &self.closed_form {
            figures["closed_form"] = closed_form::terms(form, makespan);
        }
        if let Some(measured) = &self.measured {
            measured.add_to(&mut figures);
        }
        figures
    }

    fn workers_json(&self, costs: &K) -> Vec<Value> {
        let Simulated { program, timeline, .. } = self;
        let (makespan, busy, peaks) = (timeline.makespan(), timeline.busy(), program.peaks());
        let kept = peak_kept(program);
        let is_recomputed = kept.iter().any(|kept| *kept > 0.0);
        let free = windows(program, timeline).into_iter().zip(slack(program, timeline, costs));
        let worker = |(w, (windows, slack)): (usize, (Vec<FreeWindow>, Vec<f64>))| {
            let mut worker = json!({
                "busy": busy[w], "idle": makespan - busy[w], "peak_micro_batches": peaks[w],
            });
            worker["windows"] = windows.iter().map(|w| json!([w.from, w.to])).collect();
            worker["free_micro_batches"] = windows.iter().map(|w| json!(w.free)).collect();
            worker["slack"] = json!(slack);
            if is_recomputed {
                worker["peak_kept_inputs"] = json!(kept[w]);
            }
            if let Some(filled) = &self.filled {
                worker["work"] = filled.json(w);
            }
            worker
        };
        free.enumerate().map(worker).collect()
    }

    /// Returns the figures for people.
    pub(super) fn text(&self) -> Result<String> {
        let Simulated { plan, program, timeline, .. } = self;
        let makespan = timeline.makespan();
        let mut text = summary(program, timeline, self.unit);
        self.write_workers(&mut text)?;
        if let Some(layout) = &self.layout {
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
        write!(text, "\n{}", by_cause("bubble", &self.bubble))?;
        if let Some(report) = &plan.search {
            write!(text, "\n{report}")?;
        }
        self.write_sums(&mut text)?;
        self.gradients.write(&mut text, program)?;
        self.weights.iter().try_for_each(|weights| weights.write(&mut text, program))?;
        write_links(&mut text, self.links.loads, makespan)?;
        if let Some(mapping) = self.links.mapping {
            write_mapping(&mut text, mapping)?;
        }
        if let Some(form) = &self.closed_form {
            write!(text, "\n{}", closed_form::line(form, makespan))?;
        }
        if let Some(filled) = &self.filled {
            text.push_str(&filled.table()?);
        }
        if let Some(measured) = &self.measured {
            text.push_str(&measured.table()?);
        }
        Ok(text)
    }

    fn write_workers(&self, text: &mut String) -> Result<()> {
        let Simulated { program, timeline, .. } = self;
        let makespan = timeline.makespan();
        let kept = peak_kept(program);
        let is_recomputed = kept.iter().any(|kept| *kept > 0.0);
        text.push_str("\nworker      busy      idle  peak micro-batches");
        text.push_str(if is_recomputed { "  checkpointed inputs\n" } else { "\n" });
        let workers = timeline.busy().into_iter().zip(program.peaks()).zip(kept);
        for (w, ((busy, peak), kept)) in workers.enumerate() {
            let (busy, idle) = (figure(busy), figure(makespan - busy));
            write!(text, "{w:>6} {busy:>9} {idle:>9}  {peak:>18}")?;
            if is_recomputed {
                write!(text, "  {kept:>11}")?;
            }
            text.push('\n');
        }
        Ok(())
    }

    fn write_sums(&self, text: &mut String) -> Result<()> {
        let Synchronised { sums, exposed, agreement } = self.sync;
        if sums + agreement > 0.0 {
            let (ranks, step) = (self.n_ranks, self.timeline.makespan() + agreement);
            write!(
                text,
                "\n{ranks} ranks: step {step:.6}; gradient reductions of a worker {sums:.6}, the last ends {exposed:.6} after \
                 the last op; step sync {agreement:.6}"
            )?;
        }
        Ok(())
    }
}

/// Time that ranks spend on gradient reductions and the step sync.
pub(super) struct Synchronised {
    /// Reductions of the worker that spends the most time on them.
    pub(super) sums: f64,
    /// Time from the end of all compute to the end of the last reduction.
    exposed: f64,
    /// Time of the step sync, unless it lies within the makespan.
    pub(super) agreement: f64,
}

impl Synchronised {
    pub(super) fn of(program: &Program, timeline: &Timeline, costs: &impl Costs) -> Synchronised {
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
