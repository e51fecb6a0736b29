//! Pipeline schedules: one description from which the same code proves an order safe, predicts its
//! time and memory, searches for shorter ones, exchanges it with other systems and draws it. No
//! tensors, no threads, no files.
//!
//! Start at [`schedule`] (how schedules are made), [`effects`] (the one rule that everything
//! follows from) and [`lower`] (the only way to a [`Program`](program::Program)).

/// Defines an enum whose values have names on the command line, with `ALL` of them and [`FromStr`].
/// The text after the enum's name is what an error calls an unknown value.
///
/// ```
/// chimera_schedule::named_values! {
///     /// The colour of a lamp.
///     pub enum Colour: "colour" {
///         /// Stop.
///         Red = "red",
///         /// Go.
///         Green = "green",
///     }
/// }
/// assert_eq!("red".parse(), Ok(Colour::Red));
/// let refusal = "unknown colour `blue`: choose one of red, green".to_string();
/// assert_eq!("blue".parse::<Colour>(), Err(refusal));
/// ```
///
/// [`FromStr`]: std::str::FromStr
#[macro_export]
macro_rules! named_values {
    (
        $(#[$about:meta])*
        pub enum $Name:ident: $what:literal {
            $($(#[$meaning:meta])* $Value:ident = $name:literal,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $Name {
            $($(#[$meaning])* $Value,)+
        }

        impl $Name {
            /// All values with their names on the command line.
            pub const ALL: [(&'static str, $Name); [$($name),+].len()] =
                [$(($name, $Name::$Value)),+];
        }

        impl std::str::FromStr for $Name {
            type Err = String;

            fn from_str(name: &str) -> Result<$Name, String> {
                $crate::notation::by_name($what, name, &$Name::ALL)
            }
        }
    };
}

mod activation_memory;
pub mod analyze;
pub mod collective;
pub mod costs;
pub mod effects;
pub mod interchange;
pub mod interp;
mod ir;
pub mod ledger;
pub mod lower;
mod order;
pub mod partition;
pub mod program;
pub mod render;
pub mod request;
pub mod schedule;
pub mod search;
pub mod shards;

pub use ir::{compression, few, graph, ids, notation, op, placement, timetable, update};
