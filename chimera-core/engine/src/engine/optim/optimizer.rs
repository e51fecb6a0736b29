//! Optimizers: named update rules, built in or supplied by a caller.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

use chimera_schedule::notation::by_name;

use crate::device::{Device, Result};
use crate::engine::optim::kfac::Kfac;
use crate::engine::optim::muon::Muon;
use crate::engine::optim::param_group::ParamGroup;
use crate::engine::optim::update_rule::{Repeat, UpdateRule};
use crate::stage::Param;

/// An update rule, built in or a caller's. Optimizers with the same name are equal.
#[derive(Clone)]
pub struct Optimizer(Arc<dyn UpdateRule>);

type Make = fn() -> Optimizer;

const TABLE: [(&str, Make); 5] = [
    ("adamw", Optimizer::adamw),
    ("lamb", Optimizer::lamb),
    ("sgd", Optimizer::sgd),
    ("muon", Optimizer::muon),
    ("kfac", Optimizer::kfac),
];

impl Optimizer {
    /// Names on the command line, in the order of [`all`](Optimizer::all).
    pub const NAMES: [&'static str; 5] = {
        let [(a, _), (b, _), (c, _), (d, _), (e, _)] = TABLE;
        [a, b, c, d, e]
    };

    /// Makes an optimizer from a custom rule.
    pub fn new(rule: impl UpdateRule + 'static) -> Optimizer {
        Optimizer(Arc::new(rule))
    }

    /// Returns every built-in optimizer.
    pub fn all() -> [Optimizer; 5] {
        TABLE.map(|(_, make)| make())
    }

    /// Adam with decoupled weight decay (Loshchilov & Hutter, 2019).
    pub fn adamw() -> Optimizer {
        Optimizer::new(ByDevice {
            name: "adamw",
            state: &["m", "v"],
            repeat: Some(|group, ahead| group.repeat_adamw(ahead)),
            update: |group| group.adamw(),
        })
    }

    /// LAMB: AdamW's direction, with a step proportional to the norm of the tensor (You et al.,
    /// 2020), for large batches.
    pub fn lamb() -> Optimizer {
        Optimizer::new(ByDevice {
            name: "lamb",
            state: &["m", "v"],
            repeat: None,
            update: |group| group.lamb(),
        })
    }

    /// Gradient descent with momentum.
    pub fn sgd() -> Optimizer {
        Optimizer::new(ByDevice {
            name: "sgd",
            state: &["m"],
            repeat: Some(|group, ahead| group.repeat_sgd(ahead)),
            update: |group| group.sgd(),
        })
    }

    /// Orthogonalized momentum for matrices (Jordan et al., 2024), AdamW for the rest.
    pub fn muon() -> Optimizer {
        Optimizer::new(Muon)
    }

    /// K-FAC (Martens & Grosse, 2015) for the linear layers that a stage [shows](Param::shown), AdamW for the rest.
    pub fn kfac() -> Optimizer {
        Optimizer::new(Kfac)
    }

    /// Refuses a device that lacks a function the rule needs.
    ///
    /// # Errors
    /// Names the device and the missing function.
    pub fn check(&self, device: &impl Device) -> std::result::Result<(), String> {
        if !self.needs_products() || device.products().is_some() {
            return Ok(());
        }
        let (rule, device) = (self.name(), device.name());
        Err(format!(
            "optimizer {rule} multiplies matrices, and {device} has no products of matrices for optimizers: choose \
             another optimizer, or a device that has them, such as the CPU"
        ))
    }
}

impl Deref for Optimizer {
    type Target = dyn UpdateRule;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl PartialEq for Optimizer {
    fn eq(&self, other: &Optimizer) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Optimizer {}

impl fmt::Debug for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Optimizer {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Optimizer, String> {
        by_name("optimizer", name, &TABLE).map(|make| make())
    }
}

/// A rule for which every device has a function.
struct ByDevice {
    name: &'static str,
    /// Names of the rule's state tensors, the same for every parameter.
    state: &'static [&'static str],
    repeat: Option<Repeat>,
    update: fn(ParamGroup<'_>) -> Result<()>,
}

impl UpdateRule for ByDevice {
    fn name(&self) -> &str {
        self.name
    }

    fn state(&self, _: &Param) -> &[&'static str] {
        self.state
    }

    fn repeat(&self) -> Option<Repeat> {
        self.repeat
    }

    fn update(&self, group: ParamGroup<'_>) -> Result<()> {
        (self.update)(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::{Init, LinearLayer};

    #[test]
    fn names_are_known() {
        assert_eq!(Optimizer::all().each_ref().map(|optimizer| optimizer.name()), Optimizer::NAMES);
        for name in Optimizer::NAMES {
            assert_eq!(name.parse::<Optimizer>().unwrap().name(), name);
        }
        let refusal = "adam".parse::<Optimizer>().unwrap_err();
        assert_eq!(refusal, "unknown optimizer `adam`: choose one of adamw, lamb, sgd, muon, kfac");
    }

    /// A state tensor that no update reads would waste memory and room in checkpoints.
    #[test]
    fn no_state_is_kept_that_is_not_read() {
        let layer = LinearLayer { bias: None, inputs_first: true };
        let matrix = Param::new("w", [3, 5], Init::Zeros).shown(layer);
        for (optimizer, expected) in [
            (Optimizer::adamw(), &["m", "v"][..]),
            (Optimizer::lamb(), &["m", "v"]),
            (Optimizer::sgd(), &["m"]),
            (Optimizer::muon(), &["m"]),
            (
                Optimizer::kfac(),
                &["m", "input_factor", "output_factor", "input_inverse", "output_inverse"],
            ),
        ] {
            assert_eq!(optimizer.state(&matrix), expected, "{optimizer:?}");
        }
    }
}
