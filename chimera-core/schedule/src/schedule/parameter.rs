//! The table of parameters that only some schedules read. [`Shape`], the options of the command,
//! the keywords of Python, the form of the page and their refusals follow from it.

use super::Scaling;

/// A parameter that is a number: its row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Number {
    /// The parameter.
    pub parameter: Parameter,
    /// Name of the parameter on the command line.
    pub name: &'static str,
    /// Field of the parameter in [`Shape`].
    pub field: &'static str,
    /// Description of the parameter in help.
    pub help: &'static str,
    /// Placeholder of a value in help.
    pub value: &'static str,
    /// Name of the parameter in other programs and papers.
    pub also: &'static str,
    /// The default in [`Shape::new`]; `None` leaves it to the schedule.
    pub default: Option<u32>,
    /// The default of a training, if it is another one.
    pub trained: Option<u32>,
    /// The schedule's choice in words, if there is no default.
    pub follows: &'static str,
    /// The most in a training.
    pub most: u32,
    /// The largest value in commands that draw; a schedule may refuse smaller ones.
    pub most_drawn: u32,
    /// The step between the values that make sense.
    pub step: u32,
}

/// The usual values of a row.
const NUMBER: Number = Number {
    parameter: Parameter::Scaling,
    name: "",
    field: "",
    help: "",
    value: "k",
    also: "",
    default: None,
    trained: None,
    follows: "",
    most: 1 << 13,
    most_drawn: 1 << 13,
    step: 1,
};

/// A field of [`Shape`] that is a number.
trait Field: Default {
    fn set(&mut self, number: Option<u32>);
}

impl Field for u32 {
    fn set(&mut self, number: Option<u32>) {
        *self = number.unwrap_or(*self);
    }
}

impl Field for usize {
    fn set(&mut self, number: Option<u32>) {
        *self = number.map_or(*self, |number| number as usize);
    }
}

impl Field for Option<u32> {
    fn set(&mut self, number: Option<u32>) {
        *self = number;
    }
}

/// Defines [`Parameter`], [`NUMBERS`] and [`Shape`] from rows.
macro_rules! parameters {
    ($(
        $(#[doc = $help:literal])+
        $name:literal $Parameter:ident $field:ident: $type:ty = { $($row:tt)* };
    )+) => {
        /// A part of a [`Shape`] that only some schedules read.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Parameter {
            $( $(#[doc = $help])+ $Parameter, )+
            /// `scaling`.
            Scaling,
        }

        /// All parameters that are numbers, in the order of the help text.
        pub const NUMBERS: &[Number] = &[$( Number {
            parameter: Parameter::$Parameter,
            name: $name,
            field: stringify!($field),
            help: concat!($($help),+),
            $($row)*
            ..NUMBER
        } ),+];

        /// The shape of a requested timetable. [`Schedule::reads`](super::Schedule::reads) lists the
        /// parameters that a schedule reads.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct Shape {
            /// Workers of the pipeline group, D.
            pub depth: usize,
            /// Micro-batches per step, N.
            pub n_micro_batches: u32,
            /// Scaling beyond D micro-batches.
            pub scaling: Scaling,
            $( $(#[doc = $help])+ pub $field: $type, )+
        }

        impl Shape {
            /// D workers and N micro-batches, direct scaling, and the defaults of the numbers.
            pub fn new(depth: usize, n_micro_batches: u32) -> Shape {
                let scaling = Scaling::Direct;
                let shape = Shape { depth, n_micro_batches, scaling, $( $field: Default::default() ),+ };
                NUMBERS.iter().fold(shape, |shape, row| shape.with(row.parameter, row.default))
            }

            /// The shape with another number; `None` leaves an optional one to the schedule.
            pub fn with(mut self, parameter: Parameter, number: Option<u32>) -> Shape {
                match parameter {
                    $( Parameter::$Parameter => self.$field.set(number), )+
                    Parameter::Scaling => {}
                }
                self
            }
        }

        impl Parameter {
            /// All parameters with their names on the command line.
            pub const ALL: &[(&'static str, Parameter)] =
                &[$( ($name, Parameter::$Parameter), )+ ("scaling", Parameter::Scaling)];
        }
    };
}

parameters! {
    /// Pipes of `chimera`, or of `auto` on mirrored pipes, 2f
    "pipes" Pipes n_pipes: usize = { value: "2f", default: Some(2), step: 2, };
    /// Stages per worker of `interleaved`, or of `auto` on interleaved stages, v
    "chunks" Chunks n_chunks: usize =
        { value: "v", also: "virtual pipeline stages", default: Some(2), most_drawn: 65_535, };
    /// Forwards in a row, then as many backwards, in `1f1b`, k
    "in-turn" InTurn n_in_turn: u32 =
        { also: "kFkB", default: Some(1), most: 1 << 20, most_drawn: u32::MAX, };
    /// Waves of `hanayo`, or of `auto` on waves
    "waves" Waves n_waves: usize = { value: "WAVES", default: Some(2), most_drawn: 32_767, };
    /// Maximum micro-batches in flight in each direction of `mixpipe`, K
    "in-flight" InFlight in_flight: Option<u32> =
        { value: "K", follows: "D/2 + 1", most: 1 << 20, most_drawn: u32::MAX, };
    /// Steps between flushes of an asynchronous schedule, or of any schedule with `border`
    /// free, T
    "window" Window window: u32 =
        { value: "T", default: Some(2), trained: Some(4), most: 1 << 20, most_drawn: 1 << 23, };
    /// Slices of the sequence in `seq1f1b`, k
    "slices" Slices n_slices: u32 = { default: Some(4), most: 1 << 16, most_drawn: 1 << 23, };
}

impl Parameter {
    /// Name of the parameter on the command line.
    pub fn name(self) -> &'static str {
        Parameter::ALL.iter().find(|(_, parameter)| *parameter == self).map_or("", |(name, _)| name)
    }

    /// Finds the parameter by its name on the command line.
    pub fn named(name: &str) -> Option<Parameter> {
        Parameter::ALL.iter().find(|(n, _)| *n == name).map(|(_, parameter)| *parameter)
    }
}
