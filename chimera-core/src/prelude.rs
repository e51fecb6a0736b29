//! The names that most programs need: `use chimera_core::prelude::*;`.
//!
//! ```
//! use chimera_core::prelude::*;
//!
//! let timetable = find("chimera")?.timetable(&Shape::new(4, 8))?; // four workers, eight micro-batches
//! let program = lower(&timetable, &Lowering::default())?;         // proven
//! assert_eq!(simulate(&program, &UniformCosts::new(1.0, 2.0, 0.0)).makespan(), 30.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use crate::analyze::simulate;
pub use crate::costs::UniformCosts;
pub use crate::device::Device;
pub use crate::engine::{Optimizer, Patience, StepReport, Training};
pub use crate::fault::{Class, Fault};
pub use crate::graph::StageGraph;
pub use crate::ids::{Rank, StageId, WorkerId};
pub use crate::lower::{Lowering, Passes, Recompute, lower};
pub use crate::placement::Placement;
pub use crate::program::Program;
pub use crate::schedule::{Schedule, Schedules, Shape, find};
pub use crate::stage::{Autograd, Data, Differentiable, Init, Micro, Output, Param, Stage};
pub use crate::timetable::Timetable;
pub use crate::trainer::Trainer;
