//! Optimizers: update rules, their hyperparameters, and K-FAC.

pub(crate) mod kfac;
pub(crate) mod muon;
pub(crate) mod optimizer;
pub(crate) mod param_group;
pub(crate) mod param_rules;
pub(crate) mod training;
pub(crate) mod training_values;
pub(crate) mod update_rule;
pub(crate) mod updating;
