//! What schedules are asked for beside depth and micro-batches.

/// A part of a [`Shape`](super::Shape) that only the schedules read which say so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parameter {
    /// `n_pipes`.
    Pipes,
    /// `n_chunks`.
    Chunks,
    /// `scaling`.
    Scaling,
    /// `n_in_turn`.
    InTurn,
    /// `n_waves`.
    Waves,
    /// `in_flight`.
    InFlight,
    /// `window`.
    Window,
}

impl Parameter {
    /// Every one with its name on the command line.
    pub const ALL: [(&'static str, Parameter); 7] = [
        ("pipes", Parameter::Pipes),
        ("chunks", Parameter::Chunks),
        ("scaling", Parameter::Scaling),
        ("in-turn", Parameter::InTurn),
        ("waves", Parameter::Waves),
        ("in-flight", Parameter::InFlight),
        ("window", Parameter::Window),
    ];

    /// Finds the parameter by its name on the command line.
    pub fn named(name: &str) -> Option<Parameter> {
        Parameter::ALL.into_iter().find(|(n, _)| *n == name).map(|(_, parameter)| parameter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{SCHEDULES, Scaling, Shape};

    /// `shape` with another value.
    fn other(parameter: Parameter, shape: Shape) -> Shape {
        match parameter {
            Parameter::Pipes => Shape { n_pipes: 4, ..shape },
            Parameter::Chunks => Shape { n_chunks: 3, ..shape },
            Parameter::Scaling => Shape { scaling: Scaling::Doubling, ..shape },
            Parameter::InTurn => Shape { n_in_turn: 2, ..shape },
            Parameter::Waves => Shape { n_waves: 3, ..shape },
            Parameter::InFlight => Shape { in_flight: Some(2), ..shape },
            Parameter::Window => Shape { window: 3, ..shape },
        }
    }

    #[test]
    fn schedules_read_what_they_say() {
        let shape = Shape::new(4, 8);
        for schedule in SCHEDULES {
            for (name, parameter) in Parameter::ALL {
                let changed = schedule.timetable(&other(parameter, shape));
                let is_read = schedule.timetable(&shape) != changed;
                let says_so = schedule.reads().contains(&parameter);
                assert_eq!(is_read, says_so, "{} and {name}", schedule.name());
            }
        }
    }
}
