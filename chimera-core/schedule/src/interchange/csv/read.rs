//! A reader of PyTorch's CSV, which is stricter than PyTorch's own: that reads `0F1junk` as `0F1`,
//! and `0BW0` as `0B` without a micro-batch.

use super::entry::{self, Entry};
use super::letters::check_letters;
use super::messages::Messages;
use super::place::Place;
use crate::interchange::form::MAX_COUNT;
use crate::interchange::json::{MAX_BYTES, ReadError, is_unprintable};
use crate::ir::ids::{StageId, WorkerId};
use crate::ir::op::{Cell, Kind, Op};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;

/// Most actions of a file: an action takes less room in a file than in memory.
const MAX_ACTIONS: usize = 1 << 22;

/// The timetable in `bytes`, of one pipe, to be named `schedule`.
///
/// A byte order mark, either end of line, blanks around a cell, quotes around a whole cell and
/// blank lines at the end are accepted, as spreadsheets and editors write them.
///
/// # Errors
/// If the file is too long or is not such a CSV; if a stage is on two ranks or on none; if a
/// micro-batch has not exactly one forward on every stage; if an action occurs twice; if the file
/// has messages (`compute_comms`) that are not those of its ops, or would hang or cross. The checker
/// decides whether the rest is a sound schedule.
pub fn from_csv(bytes: &[u8], schedule: &str) -> Result<Timetable, ReadError> {
    if bytes.len() > MAX_BYTES {
        return Err(ReadError::TooLong);
    }
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let whole = &bytes[..e.valid_up_to()];
        Place::behind(whole).refuse("the file is not UTF-8 from here on: save it as UTF-8")
    })?;
    let mut sheet = Table::default();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for line in text.trim_end().lines() {
        sheet.row(line)?;
    }
    let workers = sheet.workers()?;
    let n_micro_batches = sheet.micro_batches(&workers)?;
    sheet.messages.check(&sheet.rows, &workers)?;
    let n_rows = sheet.rows.len();
    let placement = Placement::new(n_rows, vec![workers])
        .ok_or_else(|| ReadError::Form("the file has no action: write one row per rank".into()))?;
    Ok(Timetable::new(schedule, placement, n_micro_batches, sheet.rows))
}

/// The content read so far.
#[derive(Default)]
struct Table {
    rows: Vec<Vec<Cell>>,
    ends: Vec<Place>,
    /// First place of each stage.
    stages: Vec<Option<Place>>,
    /// Kind, stage, micro-batch and place of every action.
    actions: Vec<(Kind, StageId, u32, Place)>,
    /// The backward with the greatest micro-batch.
    last_backward: Option<(u32, Place)>,
    /// The messages among the actions.
    messages: Messages,
}

impl Table {
    fn row(&mut self, line: &str) -> Result<(), ReadError> {
        let row = self.rows.len();
        let mut place = Place { row, column: 0 };
        if row == MAX_COUNT {
            return Err(place.refuse(format!("more than {MAX_COUNT} rows")));
        }
        let mut cells = Vec::new();
        for (column, text) in line.split(',').enumerate() {
            place.column = column;
            let text = text.trim();
            let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
            let text = quoted.map_or(text, str::trim);
            if text.is_empty() {
                continue;
            }
            let entry = entry::read(text)
                .map_err(|reason| place.refuse(format!("`{}`: {reason}", shown(text))))?;
            match entry {
                Entry::Cell(cell) => {
                    cell.ops().try_for_each(|op| self.op(op, place))?;
                    self.messages.op(place);
                    cells.push(cell);
                }
                Entry::Message(message) => self.messages.message(message, place)?,
                Entry::Following => {}
            }
        }
        if cells.is_empty() {
            return Err(place.refuse("the row has no action: write one row per rank, none empty"));
        }
        self.rows.push(cells);
        self.ends.push(Place { column: place.column + 1, ..place });
        Ok(())
    }

    fn op(&mut self, op: Op, place: Place) -> Result<(), ReadError> {
        if self.actions.len() == MAX_ACTIONS {
            return Err(place.refuse(format!("more than {MAX_ACTIONS} actions")));
        }
        let stage = op.stage.index();
        if stage >= MAX_COUNT {
            return Err(place.refuse(format!("stage {stage} is not below {MAX_COUNT}")));
        }
        if stage >= self.stages.len() {
            self.stages.resize(stage + 1, None);
        }
        let first = *self.stages[stage].get_or_insert(place);
        if first.row != place.row {
            let reason = format!(
                "stage {stage} is on rank {} already, at {first}; a stage is on one rank, and a \
                 bidirectional schedule has one file per direction",
                first.row
            );
            return Err(place.refuse(reason));
        }
        let micro_batch = op.span.start;
        self.actions.push((op.kind, op.stage, micro_batch, place));
        let is_greater = self.last_backward.is_none_or(|(greatest, _)| greatest < micro_batch);
        if op.kind != Kind::Forward && is_greater {
            self.last_backward = Some((micro_batch, place));
        }
        Ok(())
    }

    /// The worker of each stage.
    fn workers(&self) -> Result<Vec<WorkerId>, ReadError> {
        let absent = |stage: usize| {
            let reason = format!("stage {stage} is on no rank, but {} is", self.stages.len() - 1);
            match self.stages.last().copied().flatten() {
                Some(last) => last.refuse(reason),
                None => ReadError::Form(reason),
            }
        };
        let worker = |(stage, place): (usize, &Option<Place>)| match place {
            Some(place) => Ok(WorkerId(place.row as u16)),
            None => Err(absent(stage)),
        };
        self.stages.iter().enumerate().map(worker).collect()
    }

    /// The number of micro-batches, each with one forward on every stage.
    fn micro_batches(&mut self, workers: &[WorkerId]) -> Result<u32, ReadError> {
        self.actions.sort_unstable();
        let n_forwards = self.actions.partition_point(|(kind, ..)| *kind == Kind::Forward);
        let (forwards, others) = self.actions.split_at(n_forwards);
        let last = forwards.iter().map(|(_, _, micro_batch, _)| *micro_batch).max();
        let n = last.map_or(0, |micro_batch| micro_batch + 1);
        if let Some((micro_batch, place)) =
            self.last_backward.filter(|(greatest, _)| *greatest >= n)
        {
            return Err(place.refuse(format!("micro-batch {micro_batch} has no forward")));
        }
        check_once(others)?;
        check_letters(others)?;
        let mut found = forwards.iter().peekable();
        for (stage, worker) in workers.iter().enumerate() {
            let stage = StageId(stage as u16);
            for wanted in 0..n {
                match found.next_if(|(_, s, m, _)| *s == stage && *m <= wanted) {
                    Some((_, _, m, _)) if *m == wanted => {}
                    Some(second) => return Err(refuse_second(second)),
                    None => {
                        let reason = format!(
                            "{}F{wanted} is missing: each of the micro-batches 0 to {} goes forward \
                             through every stage",
                            stage.0,
                            n - 1
                        );
                        return Err(self.ends[worker.index()].refuse(reason));
                    }
                }
            }
            if let Some(second) = found.next_if(|(_, s, ..)| *s == stage) {
                return Err(refuse_second(second));
            }
        }
        Ok(n)
    }
}

/// Refuses repeated actions. `actions` are sorted.
fn check_once(actions: &[(Kind, StageId, u32, Place)]) -> Result<(), ReadError> {
    let name =
        |(kind, stage, micro_batch, _): &(Kind, StageId, u32, Place)| (*kind, *stage, *micro_batch);
    let mut pairs = actions.windows(2);
    match pairs.find(|pair| name(&pair[0]) == name(&pair[1])) {
        Some(pair) => Err(refuse_second(&pair[1])),
        None => Ok(()),
    }
}

fn refuse_second((kind, stage, micro_batch, place): &(Kind, StageId, u32, Place)) -> ReadError {
    place.refuse(format!("a second {}{}{micro_batch}", stage.0, kind.letter()))
}

/// `text` cut short, without characters that could confuse a terminal.
fn shown(text: &str) -> String {
    let most = 40;
    let end = if text.chars().nth(most).is_some() { "…" } else { "" };
    let start = text.chars().take(most).map(|c| if is_unprintable(c) { '\u{fffd}' } else { c });
    start.collect::<String>() + end
}
