//! Trainings by the engine, in one program: each test file of its own would compile the engine again.

mod equivalence;
mod faults;
mod graph;
mod graphs;
mod kfac;
mod moves;
mod mutations;
mod narrow;
mod one_order;
mod outset;
mod own_work;
mod replacements;
mod staleness;
mod stop;
mod training;
