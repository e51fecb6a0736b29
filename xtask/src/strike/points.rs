//! The points of a training at which a rank is struck.

use anyhow::{Result, bail};
use chimera_core::lower::{Lowering, Sync, lower};
use chimera_core::op::{Cell, Kind};
use chimera_core::program::{Instr, Program};
use chimera_core::schedule::{Shape, find};

use super::N_ROUNDS;

/// Number of workers, and of micro-batches.
const N: usize = 4;
/// The step of the strike, from 0. The run has saved after two steps, and saves again after four
/// and six.
const STEP: u64 = 3;
const LAST: u64 = 5;

/// A point at which a rank is struck.
pub struct Point {
    /// The rank.
    pub rank: usize,
    /// Index of its row in the table.
    pub nth: usize,
    /// The row's name.
    pub place: &'static str,
    /// The point, as the command takes it.
    pub words: String,
    /// Whether runs may end before it.
    pub is_open: bool,
}

/// The rows of the table, in the order of a run.
pub const PLACES: [&str; 16] = [
    "start-up, before MPI",
    "start-up, an all-gather",
    "before a forward",
    "before a backward",
    "before a message is sent",
    "while a message is sent",
    "before a message is taken",
    "before a gradient reduction is begun",
    "while parts of a gradient reduction are sent",
    "before a gradient reduction is taken",
    "before the agreement",
    "in the agreement",
    "before the optimizer",
    "between two steps",
    "while a checkpoint is written",
    "shutdown",
];

/// All points at which a rank that has started MPI is struck, with the rank.
pub fn named_points() -> Result<Vec<(usize, String)>> {
    let named = points()?.into_iter().map(|point| (point.rank, point.words));
    Ok(named.filter(|(_, words)| words != "start").collect())
}

/// All points at which a rank is struck.
pub fn points() -> Result<Vec<Point>> {
    let program = program()?;
    let mut points = Vec::new();
    for (rank, row) in program.rows().iter().enumerate() {
        let mut add = |place: &'static str, words: String, is_open| {
            let nth = PLACES.iter().position(|known| *known == place).unwrap_or(PLACES.len());
            points.push(Point { rank, nth, place, words, is_open });
        };
        add("start-up, before MPI", "start".into(), false);
        add("start-up, an all-gather", "met".into(), false);
        for n in 0..16 * N_ROUNDS {
            add("start-up, an all-gather", format!("gather start {n}"), true);
        }
        for (i, instr) in row.iter().enumerate() {
            let (before, within) = match instr {
                Instr::Run(Cell::One(op)) if op.kind == Kind::Forward => ("before a forward", None),
                Instr::Run(_) => ("before a backward", None),
                Instr::Send(..) => ("before a message is sent", Some("while a message is sent")),
                Instr::Recv(..) => ("before a message is taken", None),
                Instr::Reduce(_) => (
                    "before a gradient reduction is begun",
                    Some("while parts of a gradient reduction are sent"),
                ),
                Instr::Await(_) => ("before a gradient reduction is taken", None),
                Instr::Agree => ("before the agreement", None),
                Instr::Step(_) => ("before the optimizer", None),
                unknown => bail!("the sweep has no place for {unknown:?}"),
            };
            add(before, format!("at {STEP}.{i}"), false);
            if let Some(within) = within {
                add(within, format!("sent {STEP}.{i} 0"), false);
            }
            // The number of parts of sums that a rank sends at an instruction depends on timing.
            let more = match instr {
                Instr::Reduce(_) => 1..3,
                Instr::Await(_) => 0..3,
                _ => 0..0,
            };
            for n in more {
                add(
                    "while parts of a gradient reduction are sent",
                    format!("sent {STEP}.{i} {n}"),
                    true,
                );
            }
            if *instr == Instr::Agree {
                for n in 0..N_ROUNDS {
                    add("in the agreement", format!("gather {STEP}.{i} {n}"), false);
                }
            }
        }
        let end = row.len();
        add("between two steps", format!("at {STEP}.{end}"), false);
        for n in 0..4 * N_ROUNDS {
            add("while a checkpoint is written", format!("gather {STEP}.{end} {n}"), true);
        }
        for n in 0..if rank == 0 { 32 } else { 12 } {
            add("while a checkpoint is written", format!("disk {n}"), true);
        }
        for n in 0..10 * N_ROUNDS {
            add("shutdown", format!("gather {LAST}.{end} {n}"), true);
        }
        add("shutdown", "leave".into(), false);
        add("shutdown", "left".into(), false);
    }
    Ok(points)
}

/// The program that the command trains.
fn program() -> Result<Program> {
    let timetable = find("chimera")?.timetable(&Shape::new(N, N as u32))?;
    let how = Lowering { sync: Sync::EagerOpt, barrier: true, ..Lowering::default() };
    Ok(lower(&timetable, &how)?)
}
