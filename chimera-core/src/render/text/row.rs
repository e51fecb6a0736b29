//! One row with a mark, for refusals.

use super::super::Labels;
use crate::op::Cell;

/// How much of a row is shown on each side of a marked cell, in characters.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{PipeId, StageId};
    use crate::op::{Kind, Op};

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
}
