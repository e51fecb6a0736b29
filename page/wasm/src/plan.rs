//! The plan that a question is about: a schedule, its shape, passes, times and edited rows.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use chimera_schedule::analyze::simulate;
use chimera_schedule::costs::{GivenTimes, PerStage, StageCosts};
use chimera_schedule::ids::WorkerId;
use chimera_schedule::interchange::{RowReader, from_csv, from_json};
use chimera_schedule::lower::{Lowering, Moves, Offloading, Passes, lower_at};
use chimera_schedule::program::Program;
use chimera_schedule::request::{Ordered, Request, Source};
use chimera_schedule::schedule::{Parameter, Scaling, Shape, find};
use chimera_schedule::search::{AUTO, Search};
use chimera_schedule::timetable::Timetable;
use serde::{Deserialize, Serialize};

use crate::host;

/// Any refusal, in the words of the command.
pub(crate) type Refused = Box<dyn Error>;

/// A schedule with everything that its step depends on. Names and defaults are those of the
/// command's options; what is left out is not given.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Plan {
    schedule: String,
    depth: usize,
    micro_batches: u32,
    scaling: String,
    placement: String,
    search_time: f64,
    recompute: String,
    split_backward: bool,
    bpipe: bool,
    offload: bool,
    memory_cap: Option<f64>,
    forward: Option<Vec<f64>>,
    backward: Option<Vec<f64>>,
    input: Option<Vec<f64>>,
    weight: Option<Vec<f64>>,
    message: Option<Vec<f64>>,
    transfer: Option<Vec<f64>>,
    /// A timetable in JSON, or in PyTorch's CSV, instead of a schedule by name.
    file: Option<File>,
    /// Rows that replace those of the schedule, by the number of the worker.
    rows: BTreeMap<String, String>,
    /// Parameters that only some schedules read, by name.
    #[serde(flatten)]
    numbers: BTreeMap<String, Option<u32>>,
}

/// A timetable that was opened.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct File {
    name: String,
    text: String,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            schedule: "chimera".into(),
            depth: 4,
            micro_batches: 8,
            scaling: "auto".into(),
            placement: "mirrored".into(),
            search_time: 10.0,
            recompute: "none".into(),
            split_backward: false,
            bpipe: false,
            offload: false,
            memory_cap: None,
            forward: None,
            backward: None,
            input: None,
            weight: None,
            message: None,
            transfer: None,
            file: None,
            rows: BTreeMap::new(),
            numbers: BTreeMap::new(),
        }
    }
}

/// A timetable after its passes, with its costs; not yet proven.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) timetable: Timetable,
    pub(crate) costs: StageCosts,
    pub(crate) how: Lowering,
    /// The scaling that was taken.
    pub(crate) scaling: Scaling,
    /// The report of the search, if there was one.
    pub(crate) search: Option<String>,
    /// The program, if it is proven already.
    proven: Option<Arc<Program>>,
}

impl Made {
    /// Proves it.
    pub(crate) fn program(&self) -> Result<Arc<Program>, Refused> {
        match &self.proven {
            Some(program) => Ok(Arc::clone(program)),
            None => Ok(Arc::new(lower_at(&self.timetable, &self.how, &self.costs)?)),
        }
    }
}

impl Plan {
    /// The plan without edited rows.
    pub(crate) fn unedited(&self) -> Plan {
        Plan { rows: BTreeMap::new(), ..self.clone() }
    }

    /// Times, each for 1/D of the model.
    pub(crate) fn times(&self) -> GivenTimes {
        let given = |times: &Option<Vec<f64>>| times.clone().map(PerStage);
        GivenTimes {
            forward: given(&self.forward),
            backward: given(&self.backward),
            input: given(&self.input),
            weight: given(&self.weight),
            message: given(&self.message),
            transfer: given(&self.transfer),
            ..GivenTimes::default()
        }
    }

    /// Makes the timetable, as the command's `compare` does: every schedule cuts the same model.
    pub(crate) fn make(&self) -> Result<Made, Refused> {
        self.check_numbers()?;
        let how = Lowering { max_peak: self.memory_cap, ..Lowering::default() };
        let costs = |timetable: &Timetable| Ok::<_, Refused>(self.times().of_model(timetable)?);
        let passes = Passes {
            recompute: self.recompute.parse()?,
            split_backward: self.split_backward,
            moves: Moves::of(
                self.bpipe,
                if self.offload { Offloading::Auto } else { Offloading::None },
            ),
            ..Passes::default()
        };
        let mut request = Request { source: self.source()?, shape: self.shape()?, passes };
        let mut proven: Vec<(Timetable, Program)> = Vec::new();
        if self.scaling == "auto" {
            request.take_shorter_scaling_by(&mut |ordered: Ordered| {
                let costs = costs(&ordered.timetable)?;
                let lowered = ordered.passed(&how, &costs).and_then(|timetable| {
                    lower_at(&timetable, &how, &costs).map(|program| (timetable, program))
                });
                let Ok((timetable, program)) = lowered else {
                    return Ok::<_, Refused>(f64::INFINITY);
                };
                let makespan = simulate(&program, &costs).makespan();
                proven.push((timetable, program));
                Ok(makespan)
            })?;
        }
        let scaling = request.shape.scaling;
        let ordered = request.timetable::<_, Refused>(&costs, &mut host::tell)?;
        let search = ordered.search.as_ref().map(ToString::to_string);
        let costs = costs(&ordered.timetable)?;
        let timetable = ordered.passed(&how, &costs)?;
        let proven = proven.into_iter().find(|(other, _)| *other == timetable);
        let proven = proven.map(|(_, program)| Arc::new(program));
        Ok(Made { timetable, costs, how, scaling, search, proven })
    }

    /// Puts the edited rows into the timetable.
    pub(crate) fn edit(&self, made: &mut Made) -> Result<(), Refused> {
        if self.rows.is_empty() {
            return Ok(());
        }
        made.proven = None;
        let timetable = &mut made.timetable;
        let n_workers = timetable.rows.len();
        let mut rows = timetable.rows.clone();
        let reader = RowReader::new(timetable);
        for (worker, text) in &self.rows {
            let id = worker.parse().map(WorkerId).ok();
            let known = id.and_then(|id| Some((id, rows.get_mut(id.index())?)));
            let (id, row) = known.ok_or_else(|| {
                format!("there is no worker {worker} to edit: there are {n_workers}")
            })?;
            *row = reader.read(id, text)?;
        }
        timetable.rows = rows;
        Ok(())
    }

    fn source(&self) -> Result<Source<'static>, Refused> {
        if let Some(File { name, text }) = &self.file {
            let is_csv = name.to_lowercase().ends_with(".csv");
            let name = name.rsplit_once('.').map_or(name.as_str(), |(name, _)| name);
            let read =
                if is_csv { from_csv(text.as_bytes(), name) } else { from_json(text.as_bytes()) };
            return Ok(Source::Timetable(read?));
        }
        if self.schedule == AUTO {
            let search = Search {
                max_peak: self.memory_cap,
                time_limit: Duration::try_from_secs_f64(self.search_time)?,
                clock: host::clock(),
                ..Search::default()
            };
            return Ok(Source::Search(self.placement.parse()?, search));
        }
        Ok(Source::Schedule(find(&self.schedule)?))
    }

    fn shape(&self) -> Result<Shape, Refused> {
        let scaling = match self.scaling.as_str() {
            "auto" => Scaling::Direct,
            name => name.parse()?,
        };
        let mut shape = Shape { scaling, ..Shape::new(self.depth, self.micro_batches) };
        for (name, number) in &self.numbers {
            let parameter = Parameter::named(&name.replace('_', "-"));
            let parameter = parameter.ok_or_else(|| format!("unknown field `{name}`"))?;
            shape = shape.with(parameter, *number);
        }
        Ok(shape)
    }

    /// Refuses times and limits outside of what the command takes.
    fn check_numbers(&self) -> Result<(), Refused> {
        let times = [
            &self.forward,
            &self.backward,
            &self.input,
            &self.weight,
            &self.message,
            &self.transfer,
        ];
        let mut times = times.into_iter().flatten().flatten();
        if let Some(bad) = times.find(|time| !(0.0..=1e12).contains(*time)) {
            return Err(format!("`{bad}` is not a number from 0 to 1e12").into());
        }
        if self.memory_cap.is_some_and(|cap| !(0.0..=1e6).contains(&cap)) {
            return Err("the memory cap is not a number from 0 to 1e6".into());
        }
        Ok(())
    }
}
