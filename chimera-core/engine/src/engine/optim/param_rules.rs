//! Rules that give some parameters, selected by name, hyperparameters of their own.

use std::fmt;
use std::str::FromStr;

use crate::stage::{Param, matches_name};

/// An example of rules, for errors.
const EXAMPLE: &str = "rules are written as in `*.bias: lr=2; wte.*: lr=0.1, weight-decay=0`";

/// Rules that override hyperparameters by parameter name; the first rule that matches wins. As
/// text: `*.bias: lr=2; wte.*: lr=0.1, weight-decay=0`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ParamRules(pub Vec<ParamRule>);

/// The hyperparameters of parameters with matching names.
#[derive(Clone, PartialEq, Debug)]
pub struct ParamRule {
    /// Pattern of names: `*` stands for any characters, `?` for one.
    pub pattern: String,
    /// Multiple of the step's learning rate. At 0 the weights stay as they are; their gradients are
    /// still computed, and count in the norm.
    pub lr: f64,
    /// Decoupled weight decay; `None` leaves it as it would be without the rule.
    pub weight_decay: Option<f64>,
}

impl ParamRules {
    /// Returns the multiple of the learning rate, and the weight decay, of a parameter. Without a
    /// rule they are 1 and `weight_decay`, or 1 and 0 if the parameter does not
    /// [decay](Param::decay). Both are 0 for a [frozen](Param::frozen) parameter, which is never updated.
    pub fn of(&self, param: &Param, weight_decay: f64) -> (f64, f64) {
        if param.frozen {
            return (0.0, 0.0);
        }
        let usual = if param.decay { weight_decay } else { 0.0 };
        let rule = self.0.iter().find(|rule| matches_name(&rule.pattern, &param.name));
        rule.map_or((1.0, usual), |rule| (rule.lr, rule.weight_decay.unwrap_or(usual)))
    }

    /// Returns the first pattern that is not the first match of any parameter.
    pub fn unused<'p>(&self, params: impl Iterator<Item = &'p Param>) -> Option<&str> {
        let mut is_used = vec![false; self.0.len()];
        for param in params {
            if let Some(at) =
                self.0.iter().position(|rule| matches_name(&rule.pattern, &param.name))
            {
                is_used[at] = true;
            }
        }
        let at = is_used.iter().position(|is_used| !is_used)?;
        Some(&self.0[at].pattern)
    }
}

impl FromStr for ParamRules {
    type Err = String;

    fn from_str(text: &str) -> Result<ParamRules, String> {
        let rules = text.split(';').filter(|rule| !rule.trim().is_empty());
        let rules = rules.map(str::parse).collect::<Result<Vec<ParamRule>, _>>()?;
        if rules.is_empty() {
            Err(format!("there is no rule: {EXAMPLE}"))
        } else {
            Ok(ParamRules(rules))
        }
    }
}

impl FromStr for ParamRule {
    type Err = String;

    fn from_str(text: &str) -> Result<ParamRule, String> {
        let text = text.trim();
        let refusal = |what: String| format!("`{text}` {what}: {EXAMPLE}");
        let (pattern, values) = text.split_once(':').unwrap_or((text, ""));
        let pattern = pattern.trim();
        if pattern.is_empty() {
            return Err(refusal("names no parameters".into()));
        }
        let (mut lr, mut weight_decay) = (None, None);
        for value in values.split(',') {
            let (key, number) = value.split_once('=').unwrap_or((value, ""));
            let place = match key.trim() {
                "lr" => &mut lr,
                "weight-decay" => &mut weight_decay,
                other => {
                    return Err(refusal(format!("says `{other}`, not lr=… or weight-decay=…")));
                }
            };
            let number = number.trim().parse().ok();
            let number = number.filter(|x: &f64| x.is_finite() && *x >= 0.0);
            let number = number
                .ok_or_else(|| refusal(format!("needs a number >= 0 after `{}=`", key.trim())))?;
            if place.replace(number).is_some() {
                return Err(refusal(format!("says `{}` twice", key.trim())));
            }
        }
        Ok(ParamRule { pattern: pattern.into(), lr: lr.unwrap_or(1.0), weight_decay })
    }
}

impl fmt::Display for ParamRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, rule) in self.0.iter().enumerate() {
            let and = if n == 0 { "" } else { "; " };
            write!(f, "{and}{rule}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ParamRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ParamRule { pattern, lr, weight_decay } = self;
        write!(f, "{pattern}: lr={lr}")?;
        weight_decay.map_or(Ok(()), |decay| write!(f, ", weight-decay={decay}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::device::reference::{Reference, Tensor};
    use crate::engine::optim::updating::{OnDevice, Step};
    use crate::engine::{LrSchedule, Optimizer, Training};
    use crate::stage::{Init, initial};

    fn param(name: &str, shape: &[usize]) -> Param {
        Param::new(name, shape, Init::Zeros)
    }

    #[test]
    fn the_first_rule_that_fits_holds() {
        let rules: ParamRules =
            "h.?.mlp.*: lr=0.5; h.*: weight-decay=0.3;wte*: lr=0".parse().unwrap();
        for (name, wanted) in [
            ("h.1.mlp.c_fc.weight", (0.5, 0.1)),
            ("h.12.mlp.c_fc.weight", (1.0, 0.3)),
            ("h.1.attn.weight", (1.0, 0.3)),
            ("wte.weight", (0.0, 0.1)),
            ("wte", (0.0, 0.1)),
            ("xwte", (1.0, 0.1)),
            ("h", (1.0, 0.1)),
        ] {
            assert_eq!(rules.of(&param(name, &[2, 2]), 0.1), wanted, "{name}");
        }
        let bias = rules.of(&param("h.1.mlp.c_fc.bias", &[2]), 0.1);
        assert_eq!(bias, (0.5, 0.0), "vectors do not decay unless a rule says so");
        assert_eq!(rules.of(&param("h.1.attn.bias", &[2]), 0.1), (1.0, 0.3));
        let frozen = Param { frozen: true, ..param("h.1.attn.weight", &[2, 2]) };
        assert_eq!(rules.of(&frozen, 0.1), (0.0, 0.0));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let text = "*.bias: lr=2; wte.*: lr=0.1, weight-decay=0";
        let rules: ParamRules = text.parse().unwrap();
        assert_eq!(rules.to_string(), text);
        assert_eq!(rules.to_string().parse(), Ok(rules));
    }

    #[test]
    fn what_is_no_rule_is_refused_in_words() {
        for (text, why) in [
            ("", "there is no rule"),
            (" ; ", "there is no rule"),
            ("wte", "`wte` says ``, not lr=… or weight-decay=…"),
            (": lr=1", "names no parameters"),
            ("a: rate=1", "says `rate`, not"),
            ("a: lr=", "needs a number >= 0 after `lr=`"),
            ("a: lr=-1", "needs a number >= 0 after `lr=`"),
            ("a: lr=inf", "needs a number >= 0 after `lr=`"),
            ("a: lr=1, lr=2", "says `lr` twice"),
        ] {
            let refusal = text.parse::<ParamRules>().unwrap_err();
            assert!(refusal.contains(why) && refusal.contains(EXAMPLE), "{text}: {refusal}");
        }
    }

    /// Each group is updated as if its hyperparameters were those of the training. Without a
    /// learning rate, weights stay.
    #[test]
    fn groups_are_updated_by_their_own_hyperparameters() {
        let params = ["a", "b", "c", "d"].map(|name| param(name, &[3, 2]));
        let updated = |training: &Training| {
            let drawn = |n: u64, param: &Param| {
                let param = Param { init: Init::Normal(1.0), ..param.clone() };
                Reference.upload(&param.shape, &initial(&param, n)).unwrap()
            };
            let mut weights = params.each_ref().map(|param| drawn(1, param));
            let gradients = params.each_ref().map(|param| drawn(2, param));
            let mut states = params.each_ref().map(|_| [(); 2].map(|()| Tensor::zeros(&[3, 2])));
            let tensors = params.iter().zip(&mut weights).zip(gradients.iter().zip(&mut states));
            let tensors = tensors.map(|((param, weights), (gradient, state))| OnDevice {
                is_preconditioned: false,
                param,
                weights,
                gradient,
                state,
            });
            let step = Step { training, step: 0, update: 0, grad_scale: 1.0 };
            step.update(&Reference, tensors.collect()).unwrap();
            weights
        };
        for optimizer in [Optimizer::adamw(), Optimizer::lamb(), Optimizer::sgd()] {
            let lr_schedule = LrSchedule::Constant;
            let usual =
                Training { optimizer, lr_schedule, weight_decay: 0.3, ..Training::default() };
            let with = |lr: f64, weight_decay: f64| Training {
                lr: usual.lr * lr,
                weight_decay,
                ..usual.clone()
            };
            let rules = "a: lr=2; b: weight-decay=0.1; c: lr=0".parse().unwrap();
            let grouped = updated(&Training { param_groups: rules, ..usual.clone() });
            let wanted = [with(2.0, 0.3), with(1.0, 0.1), with(0.0, 0.3), usual.clone()];
            for (n, training) in wanted.iter().enumerate() {
                assert_eq!(grouped[n], updated(training)[n], "{} {n}", training.optimizer.name());
            }
            assert_ne!(grouped[0], updated(&usual)[0]);
        }
    }

    #[test]
    fn a_rule_behind_one_that_takes_all_is_unused() {
        let params = [param("a.weight", &[2, 2]), param("b.weight", &[2, 2])];
        let unused = |text: &str| {
            let rules: ParamRules = text.parse().unwrap();
            rules.unused(params.iter()).map(str::to_owned)
        };
        assert_eq!(unused("a*: lr=1; b*: lr=1"), None);
        assert_eq!(unused("*: lr=1; b*: lr=1"), Some("b*".into()));
        assert_eq!(unused("c*: lr=1"), Some("c*".into()));
    }
}
