//! Trains by a plan: the text, the run over threads or processes, its folder and its records.

pub mod data;
pub mod observe;
#[cfg(test)]
mod processor;
pub mod run;
