//! Checks that need only the settings, not the data.

mod targets;

use std::collections::HashSet;

use anyhow::{Result, bail};
use chimera_core::model::ModelConfig;
use chimera_core::stage::Param;
use chimera_plan::plan::Plan;
use chimera_settings::{Config, DataWeights};

use self::targets::{check_frozen_weights, check_targets};
use crate::data::{DataError, Files};

/// Refuses settings that [`Run::prepare`](super::Run::prepare) would refuse even if all files that they name existed.
pub fn check_unread(plan: &Plan) -> Result<()> {
    let (config, model) = (plan.config(), plan.model());
    config.check_own_model(|_| false)?;
    files(config).check_unread(model, config.model.sequence, config.data.document_mask)?;
    check_names(config, &plan.params())
}

/// Returns the files to train on and to validate with.
pub(super) fn files(config: &Config) -> Files<'_> {
    let weights = config.data.weights.as_ref().map(DataWeights::as_slice);
    Files { data: &config.data.files, weights, validation: &config.data.validation }
}

/// Returns the model, with the token at the end of documents if tokens see only their own document.
pub(super) fn model(config: &Config) -> Result<ModelConfig, DataError> {
    let ends = || files(config).end_of_text();
    let end_of_text = config.data.document_mask.then(ends).transpose()?;
    Ok(ModelConfig { end_of_text, ..config.model() })
}

/// Refuses rules and patterns for parameters that the model does not have.
pub(super) fn check_names(config: &Config, params: &[Vec<Param>]) -> Result<()> {
    let all = params.iter().flatten();
    if let Some(freeze) = &config.model.freeze
        && let Some(pattern) = freeze.unused(all.clone().map(|param| param.name.as_str()))
    {
        bail!(
            "freeze: no parameter is named `{pattern}`; those of the model are {}",
            names(params)
        );
    }
    check_targets(config)?;
    check_frozen_weights(config, params)?;
    let Some(rules) = &config.training.param_groups else { return Ok(()) };
    let Some(pattern) = rules.unused(all) else { return Ok(()) };
    bail!(
        "param-groups: no parameter is left for `{pattern}`; those of the model are {}, and the \
         first matching rule takes each",
        names(params)
    )
}

/// Returns the names of parameters.
fn names(params: &[Vec<Param>]) -> String {
    // Layers differ only by their numbers.
    let of_any_layer = |param: &Param| {
        let parts = param.name.split('.');
        let parts = parts.map(|part| if part.parse::<u32>().is_ok() { "*" } else { part });
        parts.collect::<Vec<_>>().join(".")
    };
    let mut names: Vec<String> = params.iter().flatten().map(of_any_layer).collect();
    let mut known = HashSet::new();
    names.retain(|name| known.insert(name.clone()));
    names.join(", ")
}
