//! Validation of a [`Training`], and its fields as names and values.

use crate::engine::fields::Fields;
use crate::engine::optim::training::{LrSchedule, Training};

impl Training {
    /// Checks that all values can be trained with.
    ///
    /// # Errors
    /// Names the field, its value, and the valid values.
    pub fn check(&self) -> Result<(), String> {
        let rate = |name, value: f64| within(name, value, 0.0, 1e30);
        rate("lr", self.lr)?;
        rate("min_lr", self.min_lr)?;
        if self.min_lr > self.lr && self.lr_schedule != LrSchedule::Constant {
            let Training { lr, min_lr, .. } = self;
            return Err(format!(
                "min_lr {min_lr} is above lr {lr}, and the learning rate falls: set min_lr to {lr} or less"
            ));
        }
        for (name, value) in [
            ("beta1", self.beta1),
            ("beta2", self.beta2),
            ("momentum", self.momentum),
            ("kfac_decay", self.kfac_decay),
        ] {
            within(name, value, 0.0, 0.999_999)?;
        }
        within("eps", self.eps, 1e-30, 1.0)?;
        within("kfac_damping", self.kfac_damping, 1e-9, 1e9)?;
        within("weight_decay", self.weight_decay, 0.0, 1.0)?;
        if let Some(clip) = self.clip
            && !(clip > 0.0 && clip.is_finite())
        {
            return Err(format!("clip is {clip}: set it above 0, or to None for no clipping"));
        }
        if self.kfac_every == 0 {
            return Err("kfac_every is 0: set it to 1 or more".into());
        }
        for rule in &self.param_groups.0 {
            let name = |what| format!("{what} of the parameters `{}`", rule.pattern);
            within(&name("lr"), rule.lr, 0.0, 1e30)?;
            within(&name("weight_decay"), rule.weight_decay.unwrap_or(0.0), 0.0, 1.0)?;
        }
        Ok(())
    }

    /// Returns every field, as names and values that must agree on all ranks.
    pub fn fields(&self) -> Fields {
        // Destructured in full, so that a new field must be added here too.
        let Training {
            seed,
            steps,
            optimizer,
            lr,
            min_lr,
            warmup,
            decay_steps,
            lr_schedule,
            beta1,
            beta2,
            eps,
            momentum,
            kfac_every,
            kfac_damping,
            kfac_decay,
            weight_decay,
            param_groups,
            clip,
            check_finite,
            non_finite,
            shard_optimizer,
            shard_gradients,
            shard_weights,
            shadow_every,
            bf16_gradients,
            compression,
            bucket_elements,
            reduce_within,
        } = self;
        let fields = [
            ("seed", seed.to_string()),
            ("steps", steps.to_string()),
            ("optimizer", optimizer.name().to_string()),
            ("lr", lr.to_string()),
            ("min_lr", min_lr.to_string()),
            ("warmup", warmup.to_string()),
            ("decay_steps", decay_steps.map_or("none".into(), |steps| steps.to_string())),
            ("lr_schedule", format!("{lr_schedule:?}")),
            ("beta1", beta1.to_string()),
            ("beta2", beta2.to_string()),
            ("eps", eps.to_string()),
            ("momentum", momentum.to_string()),
            ("kfac_every", kfac_every.to_string()),
            ("kfac_damping", kfac_damping.to_string()),
            ("kfac_decay", kfac_decay.to_string()),
            ("weight_decay", weight_decay.to_string()),
            ("param_groups", format!("{:?}", param_groups.0)),
            ("clip", clip.map_or("none".into(), |clip| clip.to_string())),
            ("check_finite", check_finite.to_string()),
            ("non_finite", format!("{non_finite:?}")),
            ("shard_optimizer", shard_optimizer.to_string()),
            ("shard_gradients", shard_gradients.to_string()),
            ("shard_weights", shard_weights.to_string()),
            ("shadow_every", shadow_every.to_string()),
            ("bf16_gradients", bf16_gradients.to_string()),
            ("compression", compression.to_string()),
            ("bucket_elements", bucket_elements.to_string()),
            ("reduce_within", reduce_within.to_string()),
        ];
        fields.map(|(name, value)| (name.into(), value)).into()
    }
}

/// Refuses a number outside of a range, or NaN.
fn within(name: &str, value: f64, least: f64, most: f64) -> Result<(), String> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(format!("{name} is {value}: set it to a number from {least} to {most}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{ParamRule, ParamRules};

    #[test]
    fn values_that_cannot_be_trained_with_are_named() {
        let refusal = |training: Training| training.check().unwrap_err();
        let usual = Training::default;
        assert_eq!(usual().check(), Ok(()));
        let flat = LrSchedule::Constant;
        assert_eq!(Training { lr: 0.0, lr_schedule: flat, ..usual() }.check(), Ok(()));
        for (training, start) in [
            (Training { lr: f64::NAN, ..usual() }, "lr is NaN: "),
            (Training { lr: -1.0, ..usual() }, "lr is -1: "),
            (Training { lr: 1e-5, ..usual() }, "min_lr 0.0001 is above lr 0.00001, "),
            (Training { beta1: 2.0, ..usual() }, "beta1 is 2: "),
            (Training { beta2: 1.0, ..usual() }, "beta2 is 1: "),
            (Training { clip: Some(f64::NAN), ..usual() }, "clip is NaN: "),
            (Training { clip: Some(0.0), ..usual() }, "clip is 0: "),
            (Training { kfac_every: 0, ..usual() }, "kfac_every is 0: "),
        ] {
            assert!(refusal(training.clone()).starts_with(start), "{}", refusal(training));
        }
        let rule = ParamRule { pattern: "*.bias".into(), lr: -2.0, weight_decay: None };
        let of_rule = refusal(Training { param_groups: ParamRules(vec![rule]), ..usual() });
        assert!(of_rule.starts_with("lr of the parameters `*.bias` is -2: "), "{of_rule}");
    }
}
