//! The command line: the output for schedules, simulations, settings and data, and the errors for
//! impossible requests.

#[path = "cli/adapters.rs"]
mod adapters;
#[path = "cli/auto.rs"]
mod auto;
#[path = "cli/chat.rs"]
mod chat;
#[path = "cli/compare.rs"]
mod compare;
#[path = "cli/config.rs"]
mod config;
#[path = "cli/costs.rs"]
mod costs;
#[path = "cli/data.rs"]
mod data;
#[path = "cli/docs.rs"]
mod docs;
#[path = "cli/documents.rs"]
mod documents;
#[path = "cli/evaluate.rs"]
mod evaluate;
#[path = "cli/exchange.rs"]
mod exchange;
#[path = "cli/files.rs"]
mod files;
#[path = "cli/first_run.rs"]
mod first_run;
#[path = "cli/frozen_weights.rs"]
mod frozen_weights;
#[path = "cli/gpu.rs"]
mod gpu;
#[path = "cli/hostile.rs"]
mod hostile;
#[path = "cli/layout.rs"]
mod layout;
#[path = "cli/messages.rs"]
mod messages;
#[path = "cli/names.rs"]
mod names;
#[path = "cli/network.rs"]
mod network;
#[path = "cli/out.rs"]
mod out;
#[path = "cli/passes.rs"]
mod passes;
#[path = "cli/plan.rs"]
mod plan;
#[path = "cli/plan_layers.rs"]
mod plan_layers;
#[path = "cli/prepare.rs"]
mod prepare;
#[path = "cli/profile.rs"]
mod profile;
#[path = "cli/program_reader.rs"]
mod program_reader;
#[path = "cli/report.rs"]
mod report;
#[path = "cli/schedule.rs"]
mod schedule;
#[path = "cli/sharding.rs"]
mod sharding;
#[path = "cli/shell.rs"]
mod shell;
#[path = "cli/simulate.rs"]
mod simulate;
#[path = "cli/slurm.rs"]
mod slurm;
#[cfg(unix)]
#[path = "cli/standard_error.rs"]
mod standard_error;
#[path = "cli/tips.rs"]
mod tips;
#[path = "cli/top.rs"]
mod top;
#[path = "cli/topology.rs"]
mod topology;
#[path = "cli/trace.rs"]
mod trace;
#[path = "cli/tutorial.rs"]
mod tutorial;
#[path = "cli/usage.rs"]
mod usage;

mod command;
