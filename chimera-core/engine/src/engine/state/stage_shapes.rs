//! Requirements on a stage's parameters.

use chimera_schedule::ids::{PipeId, StageId};
use rustc_hash::FxHashMap;

use crate::engine::optim::update_rule::UpdateRule;
use crate::stage::{Init, Param, Stage};

/// Shapes of inputs, by pipe, stage and unit.
pub(crate) type InputShapes = FxHashMap<(PipeId, StageId, u32), Vec<Vec<usize>>>;

/// Returns why a stage's parameters can have no initial values or state; `None` if they can.
pub(crate) fn unfit_params<S: Stage>(
    stage: &S,
    id: StageId,
    rule: &dyn UpdateRule,
) -> Option<String> {
    if rule.preconditions()
        && let Some(frozen) = stage.params().iter().find(|param| param.frozen)
    {
        let (rule, name) = (rule.name(), &frozen.name);
        return Some(format!(
            "optimizer {rule} needs the gradients of all parameters, and `{name}` of {id} is frozen: train it, or choose \
             another optimizer"
        ));
    }
    let unfit = stage.params().iter().find_map(|param| {
        let Param { name, shape, init, .. } = param;
        let n_elements = shape.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent));
        let Some(n_elements) = n_elements else {
            return Some(format!(
                "`{name}` of {id} has more elements than memory can have: {shape:?}"
            ));
        };
        if let Init::Values(values) = init
            && values.len() != n_elements
        {
            let n_values = values.len();
            return Some(format!(
                "Init::Values gives {n_values} values to `{name}` of {id}, whose shape {shape:?} has {n_elements} elements: \
                 give one for each"
            ));
        }
        let kept = rule.state(param);
        let twice = kept.iter().enumerate().find(|(n, name)| kept[..*n].contains(name));
        twice.map(|(_, twice)| {
            format!(
                "optimizer {} keeps two state tensors `{twice}` of `{name}`, and checkpoints know them by their names: give each \
                 a name of its own in UpdateRule::state",
                rule.name()
            )
        })
    });
    unfit.or_else(|| unfit_layers(stage.params(), id))
}

/// Returns why a stage's linear layers do not match its parameters; `None` if they do.
fn unfit_layers(params: &[Param], id: StageId) -> Option<String> {
    params.iter().find_map(|param| {
        let Param { name, shape, shown: Some(layer), .. } = param else { return None };
        let Some((_, outputs)) = param.features() else {
            return Some(format!(
                "`{name}` of {id} is shown as the matrix of a linear layer, and its shape {shape:?} is that of none: leave \
                 Param::shown out"
            ));
        };
        let bias = layer.bias.as_ref()?;
        match params.iter().find(|param| param.name == *bias) {
            Some(bias) if bias.n_elements() == outputs => None,
            Some(Param { shape, .. }) => Some(format!(
                "`{bias}` of {id} has shape {shape:?}, and is the bias of `{name}`, which has {outputs} outputs"
            )),
            None => Some(format!(
                "`{name}` of {id} says that its bias is `{bias}`, which is not a parameter of the stage: \
                name one in LinearLayer::bias, or none"
            )),
        }
    })
}
