//! Optimizers: update rules, their hyperparameters, and K-FAC.

mod host_products;
pub(crate) mod kfac;
pub(crate) mod muon;
pub(crate) mod optimizer;
pub(crate) mod param_group;
pub(crate) mod param_rules;
mod repeat;
pub(crate) mod training;
pub(crate) mod training_values;
pub(crate) mod update_rule;
pub(crate) mod updating;
