//! Notation of ops, cells, rows, numbers and named values, for people.

mod near;

use std::collections::BTreeSet;

use crate::ir::ids::{PipeId, StageId, WorkId};
use crate::ir::op::{Cell, Kind, Op};

pub use near::{alike, near, nearest};

/// Labels of the ops of one row.
///
/// A micro-batch id belongs to one pipe, so the label does not name the pipe. The stage is left out
/// too, unless the row has several stages of one pipe. Letters then distinguish them: `a` first,
/// and two letters from the 27th on, `aa` first.
pub(crate) struct Labels {
    stages: BTreeSet<(PipeId, StageId)>,
    lettered: bool,
}

impl Labels {
    pub(crate) fn new(cells: impl Iterator<Item = Cell>) -> Labels {
        let stages: BTreeSet<_> =
            cells.flat_map(|cell| cell.ops()).map(|op| (op.pipe, op.stage)).collect();
        let pipes: BTreeSet<_> = stages.iter().map(|&(pipe, _)| pipe).collect();
        let lettered = stages.len() > pipes.len();
        Labels { stages, lettered }
    }

    /// The stage of a pipe that these letters name; none where a pipe has one stage in the row.
    pub(crate) fn stage(&self, pipe: PipeId, letters: &str) -> Option<StageId> {
        let stages = self.stages.range((pipe, StageId(0))..=(pipe, StageId(u16::MAX)));
        let mut stages = stages.enumerate();
        let is_it =
            |nth| if self.lettered { letters == self::letters(nth) } else { letters.is_empty() };
        stages.find(|(nth, _)| is_it(*nth)).map(|(_, (_, stage))| *stage)
    }

    /// Micro-batches of `op`, after the letter of its stage: `3`, `b3`, `0-1`.
    pub(crate) fn micro_batches(&self, op: Op) -> String {
        if !self.lettered {
            return op.span.to_string();
        }
        let before = (op.pipe, StageId(0))..(op.pipe, op.stage);
        let nth = self.stages.range(before).count();
        format!("{}{}", letters(nth), op.span)
    }

    /// The label of `op` with the mark of its kind: `3` forward, `3'` backward, `3i` and `3w` its
    /// halves, `3r` recompute, `3o` offload, `3l` reload, `3k` keep, `3t` return, and the
    /// [`work_mark`] of a caller's own work.
    pub(crate) fn op(&self, op: Op) -> String {
        let mark = match op.kind {
            Kind::Work(work) => return self.micro_batches(op) + &work_mark(work),
            Kind::Forward => "",
            Kind::Backward => "'",
            Kind::BackwardInput => "i",
            Kind::BackwardWeight => "w",
            Kind::Recompute => "r",
            Kind::Offload => "o",
            Kind::Reload => "l",
            Kind::Keep => "k",
            Kind::Return => "t",
        };
        self.micro_batches(op) + mark
    }

    /// The ops of `cell`; a pair looks like `3+1'`.
    pub(crate) fn cell(&self, cell: Cell) -> String {
        let ops: Vec<String> = cell.ops().map(|op| self.op(op)).collect();
        ops.join("+")
    }
}

/// The n-th of many letters, in the order of spreadsheet columns: `a` to `z`, then `aa`, `ab` and
/// so on.
fn letters(nth: usize) -> String {
    let last = char::from(b'a' + (nth % 26) as u8);
    match nth / 26 {
        0 => last.to_string(),
        before => letters(before - 1) + &last.to_string(),
    }
}

/// The mark of a caller's own work in a drawing: `x`, `y` and `z` for the first three, then `x3`,
/// `x4` and so on.
pub(crate) fn work_mark(WorkId(nth): WorkId) -> String {
    match nth {
        0 => "x".into(),
        1 => "y".into(),
        2 => "z".into(),
        _ => format!("x{nth}"),
    }
}

/// Characters of a row that are shown on each side of a marked cell.
const MARK_CONTEXT: usize = 36;

/// A row of cells with a line of carets below the one at `at`, and only the cells around it if the row
/// is long. `at` may be the row's length: the end of the row is marked.
///
/// ```text
/// … 2 2' 3 3' 0' 1'
///          ^^
/// ```
pub fn marked_row(row: &[Cell], at: usize) -> String {
    let labels = Labels::new(row.iter().copied());
    let labels: Vec<String> = row.iter().map(|&cell| labels.cell(cell)).collect();
    let at = at.min(labels.len());
    let fits = |label: &&String, room: &mut usize| {
        let left = room.checked_sub(label.len() + 1);
        *room = left.unwrap_or(0);
        left.is_some()
    };
    let mut room = MARK_CONTEXT;
    let before = labels[..at].iter().rev().take_while(|l| fits(l, &mut room)).count();
    let mut room = MARK_CONTEXT;
    let after = labels[at..].iter().skip(1).take_while(|l| fits(l, &mut room)).count();

    let (from, to) = (at - before, (at + 1 + after).min(labels.len()));
    let mut line = String::from(if from > 0 { "… " } else { "" });
    let mut mark = String::new();
    for (i, label) in labels.iter().enumerate().take(to).skip(from) {
        if i == at {
            mark = " ".repeat(line.chars().count()) + &"^".repeat(label.len());
        }
        line.push_str(label);
        line.push(' ');
    }
    if at == labels.len() {
        mark = " ".repeat(line.chars().count()) + "^";
    }
    line.push_str(if to < labels.len() { "…" } else { "" });
    format!("{}\n{mark}", line.trim_end())
}

/// The value of `name` in a table such as [`Scaling::ALL`](crate::schedule::Scaling::ALL).
///
/// # Errors
/// A message that the name of `what` is unknown, with the known names.
pub fn by_name<T: Copy>(what: &str, name: &str, all: &[(&'static str, T)]) -> Result<T, String> {
    let known = all.iter().find(|(n, _)| *n == name);
    known.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|(n, _)| *n).collect();
        format!("unknown {what} `{name}`: choose one of {}", names.join(", "))
    })
}

/// Formats `x` with `digits` significant digits and without trailing zeros. Very small numbers are
/// written in powers of ten.
pub fn significant(x: f64, digits: usize) -> String {
    if x == 0.0 || !x.is_finite() {
        return if x == 0.0 { "0".into() } else { x.to_string() };
    }
    let trimmed = |number: &str| {
        if number.contains('.') {
            number.trim_end_matches('0').trim_end_matches('.').to_string()
        } else {
            number.to_string()
        }
    };
    let magnitude = x.abs().log10().floor() as i32;
    if magnitude < -4 {
        let text = format!("{x:.*e}", digits.saturating_sub(1));
        let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{power}", trimmed(mantissa));
    }
    let decimals = usize::try_from(digits as i32 - 1 - magnitude).unwrap_or(0);
    trimmed(&format!("{x:.decimals$}"))
}

/// Writes a number of bytes in the largest unit that fits: KiB, MiB or GiB.
pub fn size(bytes: f64) -> String {
    let units = [("GiB", 1u32 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let fits = |(_, unit): &(&str, u32)| bytes.abs() >= f64::from(*unit);
    match units.into_iter().find(fits) {
        Some((name, unit)) => format!("{} {name}", significant(bytes / f64::from(unit), 3)),
        None => format!("{bytes:.0} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marked_cell_has_carets() {
        let op = |kind, unit| Cell::One(Op::new(kind, PipeId(0), StageId(0), unit));
        let row: Vec<Cell> =
            (0..40).flat_map(|unit| [op(Kind::Forward, unit), op(Kind::Backward, unit)]).collect();
        assert_eq!(marked_row(&row[..4], 1), "0 0' 1 1'\n  ^^");
        assert_eq!(marked_row(&row[..4], 4), "0 0' 1 1'\n          ^");
        assert_eq!(marked_row(&[], 7), "\n^");
        assert_eq!(
            marked_row(&row, 41),
            "… 15' 16 16' 17 17' 18 18' 19 19' 20 20' 21 21' 22 22' 23 23' 24 24' 25 25' …\n\
             \u{20}                                    ^^^"
        );
    }

    #[test]
    fn several_stages_of_a_pipe_get_letters() {
        let op = |stage, unit| Op::new(Kind::Backward, PipeId(0), StageId(stage), unit);
        let label = |ops: &[Op], op: Op| Labels::new(ops.iter().map(|&op| op.into())).op(op);
        assert_eq!(label(&[op(1, 0), op(1, 3)], op(1, 3)), "3'");
        assert_eq!(label(&[op(1, 0), op(5, 3)], op(5, 3)), "b3'");
        let many: Vec<Op> = (0..30).map(|stage| op(stage, 0)).collect();
        assert_eq!([25, 26, 29].map(|stage| label(&many, op(stage, 3))), ["z3'", "aa3'", "ad3'"]);
        assert_eq!([51, 52, 701, 702].map(letters), ["az", "ba", "zz", "aaa"]);
    }

    #[test]
    fn works_have_distinct_names() {
        assert_eq!(
            [0, 1, 2, 3, 254].map(|nth| work_mark(WorkId(nth))),
            ["x", "y", "z", "x3", "x254"]
        );
        let op = |work| Op::new(Kind::Work(WorkId(work)), PipeId(0), StageId(0), 4);
        assert_eq!(
            [0, 1].map(|work| Labels::new([op(work).into()].into_iter()).op(op(work))),
            ["4x", "4y"]
        );
    }

    #[test]
    fn sizes_are_in_the_largest_unit_that_gives_at_least_one() {
        let sizes = [0.0, 1.0, 2048.0, 1e6, 40.0 * 1048576.0, 355.62e9, 25769803776.0].map(size);
        let wanted = ["0 B", "1 B", "2 KiB", "977 KiB", "40 MiB", "331 GiB", "24 GiB"];
        assert_eq!(sizes, wanted);
    }

    #[test]
    fn numbers_are_short() {
        let written = [0.0, 16.0, 12345.0, 1.0 / 3.0, 0.00123456, 0.1 + 0.2, f64::NAN]
            .map(|x| significant(x, 4));
        assert_eq!(written, ["0", "16", "12345", "0.3333", "0.001235", "0.3", "NaN"]);
        let times = [3e-7, 1.23456789e-8, 1e-300, 999_999.6, -2.0 / 3.0];
        let written = times.map(|x| significant(x, 6));
        assert_eq!(written, ["3e-7", "1.23457e-8", "1e-300", "1000000", "-0.666667"]);
    }
}
