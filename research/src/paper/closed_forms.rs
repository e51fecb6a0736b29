//! Table 2: bubbles and memory by the paper's formulas, compared with those of the programs here.

use anyhow::Result;
use chimera_core::analyze::simulate;
use chimera_core::costs::UniformCosts;
use chimera_core::ids::WorkerId;
use chimera_core::lower::{Lowering, lower};
use chimera_core::schedule::{Shape, find};

/// Workers and micro-batches of the table.
pub(super) const SHAPE: usize = 8;
/// Steps of the window that measures the bubble of a schedule without a flush.
const WINDOW: u32 = 32;

/// A row of the table: values from the paper's formulas, and from the program here.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// The formulas in the paper's notation.
    pub(super) formulas: [&'static str; 3],
    pub(super) published: Figures,
    pub(super) ours: Figures,
}

/// The bubble ratio if a forward takes as long as a backward, and the least and most memory of any
/// worker: weights in stages, and activations in micro-batches.
pub(super) struct Figures {
    pub(super) bubble: f64,
    pub(super) weights: [f64; 2],
    pub(super) activations: [f64; 2],
}

/// Scheme, its schedule and pipes, its formulas, and their values for D and N.
type Scheme = (&'static str, &'static str, usize, [&'static str; 3], fn(f64, f64) -> Figures);

const SCHEMES: [Scheme; 7] = [
    ("PipeDream", "pipedream", 2, ["~0", "[1, D]", "[1, D]"], |d, _| Figures {
        bubble: 0.0,
        weights: [1.0, d],
        activations: [1.0, d],
    }),
    ("PipeDream-2BW", "pipedream-2bw", 2, ["~0", "2", "[1, D]"], |d, _| Figures {
        bubble: 0.0,
        weights: [2.0, 2.0],
        activations: [1.0, d],
    }),
    ("GPipe", "gpipe", 2, ["(D-1)/(N+D-1)", "1", "N"], |d, n| Figures {
        bubble: (d - 1.0) / (n + d - 1.0),
        weights: [1.0, 1.0],
        activations: [n, n],
    }),
    ("GEMS", "gems", 2, ["~(D-1)/(D+1/2)", "2", "1"], |d, _| Figures {
        bubble: (d - 1.0) / (d + 0.5),
        weights: [2.0, 2.0],
        activations: [1.0, 1.0],
    }),
    ("DAPPLE", "dapple", 2, ["(D-1)/(N+D-1)", "1", "[1, D]"], |d, n| Figures {
        bubble: (d - 1.0) / (n + d - 1.0),
        weights: [1.0, 1.0],
        activations: [1.0, d],
    }),
    ("Chimera", "chimera", 2, ["(D-2)/(2N+D-2)", "2", "[D/2+1, D]"], |d, n| Figures {
        bubble: (d - 2.0) / (2.0 * n + d - 2.0),
        weights: [2.0, 2.0],
        activations: [d / 2.0 + 1.0, d],
    }),
    ("Chimera, 2f = 4", "chimera", 4, ["(D-2f)/(2fN+D-2f)", "2f", "[D-D/(2f)+1, D]"], |d, n| {
        Figures {
            bubble: (d - 4.0) / (4.0 * n + d - 4.0),
            weights: [4.0, 4.0],
            activations: [d - d / 4.0 + 1.0, d],
        }
    }),
];

/// The table for D = N = [`SHAPE`].
pub(super) fn rows() -> Result<Vec<Row>> {
    let row = |(name, schedule, pipes, formulas, figures): Scheme| {
        let published = figures(SHAPE as f64, SHAPE as f64);
        Ok(Row { name, formulas, published, ours: simulated(schedule, pipes)? })
    };
    SCHEMES.into_iter().map(row).collect()
}

fn simulated(schedule: &str, n_pipes: usize) -> Result<Figures> {
    let shape = Shape { n_pipes, window: WINDOW, ..Shape::new(SHAPE, SHAPE as u32) };
    let program = lower(&find(schedule)?.timetable(&shape)?, &Lowering::default())?;
    let workers = || (0..SHAPE).map(|worker| WorkerId(worker as u16));
    let weights = workers().zip(program.weight_versions()).map(|(worker, versions)| {
        f64::from(*versions) * program.placement().stages_of(worker).len() as f64
    });
    Ok(Figures {
        bubble: simulate(&program, &UniformCosts::EQUAL).bubble_ratio(),
        weights: range(weights),
        activations: range(program.peaks().iter().copied()),
    })
}

fn range(values: impl Iterator<Item = f64>) -> [f64; 2] {
    values.fold([f64::INFINITY, 0.0], |[least, most], value| [least.min(value), most.max(value)])
}
