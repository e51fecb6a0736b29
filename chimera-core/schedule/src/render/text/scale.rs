//! Rows of a drawing as characters.

use super::look::last_op;
use crate::analyze::Event;
use crate::ir::ids::PipeId;
use crate::ir::notation::Labels;
use crate::render::screen::Line;
use crate::render::{WorkerRow, work_label};

/// The scale from time to characters.
pub(super) struct Scale {
    /// Time of a column.
    pub(super) unit: f64,
    pub(super) n_columns: usize,
    /// Characters of a column, including the gap after it if there is one.
    pub(super) column: usize,
}

impl Scale {
    /// The columns of `events`, in order, without overlap and none beyond the last. Events that
    /// round to nothing are left out.
    pub(super) fn blocks<'a>(&self, events: &[&'a Event]) -> Vec<Block<'a>> {
        let column = |time: f64| ((time / self.unit).round() as usize).min(self.n_columns);
        let mut at = 0;
        let mut blocks = Vec::new();
        for &event in events {
            let (from, to) = (column(event.start).max(at), column(event.end));
            if from < to {
                blocks.push(Block { event, from, to });
                at = to;
            }
        }
        blocks
    }

    /// A row of cells.
    pub(super) fn compute(&self, row: &WorkerRow<'_>, labels: &Labels) -> Line {
        let idle = format!("{:width$}", '.', width = self.column);
        let idle_to = |line: &mut Line, column: usize| {
            while line.0.len() < column * self.column {
                line.push(None, &idle);
            }
        };
        let mut line = Line::default();
        for block in self.blocks(&row.compute) {
            idle_to(&mut line, block.from);
            let with = if block.to - block.from == 1 { ' ' } else { '-' };
            let label = work_label(labels, block.event.work);
            line.work(block.pipe(), &label, with, block.to * self.column - 1);
            line.push(None, " ");
        }
        idle_to(&mut line, self.n_columns);
        line
    }

    /// The moves of a worker.
    pub(super) fn moves(&self, row: &WorkerRow<'_>, labels: &Labels) -> Line {
        self.beside(row.moves.clone(), labels, '-')
    }

    /// The reductions of a worker, which may overlap.
    pub(super) fn reductions(&self, row: &WorkerRow<'_>, labels: &Labels) -> Line {
        self.beside(row.reductions.iter().flatten().copied().collect(), labels, '+')
    }

    /// The line of the work that runs in parallel to a row.
    fn beside(&self, mut events: Vec<&Event>, labels: &Labels, with: char) -> Line {
        let mut line = vec![' '; self.n_columns * self.column];
        events.sort_by(|a, b| a.start.total_cmp(&b.start));
        let gap = usize::from(self.column > 1);
        let span = |b: &Block<'_>| b.from * self.column..b.to * self.column - gap;
        let blocks: Vec<_> = events.iter().flat_map(|event| self.blocks(&[*event])).collect();
        for block in &blocks {
            line[span(block)].fill(with);
        }
        let mut free = 0;
        for block in &blocks {
            let label = work_label(labels, block.event.work);
            let span = span(block);
            let from = span.start.max(free);
            if from + label.len() <= span.end {
                for (at, letter) in line[from..].iter_mut().zip(label.chars()) {
                    *at = letter;
                }
                free = from + label.len() + 1;
            }
        }
        Line(line.into_iter().map(|letter| (letter, None)).collect())
    }
}

/// An event in columns, `from..to`.
pub(super) struct Block<'a> {
    pub(super) event: &'a Event,
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Block<'_> {
    /// The pipe that its work belongs to.
    pub(super) fn pipe(&self) -> Option<PipeId> {
        last_op(self.event.work).map(|op| op.pipe)
    }
}
