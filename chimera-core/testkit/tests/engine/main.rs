//! Trainings with the engine, in one program: otherwise each test file would compile the engine
//! again.

mod equivalence;
mod faults;
mod frozen;
mod graph;
mod graphs;
mod kfac;
mod models;
mod moves;
mod mutations;
mod narrow;
mod one_order;
mod outset;
mod own_work;
mod replacements;
mod sharded_weights;
mod sharding;
mod staleness;
mod stop;
mod training;
