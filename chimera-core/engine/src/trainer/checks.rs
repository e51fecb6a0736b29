//! Checks before a training begins, and the settings that all its ranks must share.

use std::sync::atomic::AtomicBool;

use chimera_schedule::ids::Rank;

use super::Trainer;
use crate::engine::Fields;
use crate::fault::{Class, Fault};

impl<I: Copy + Send + Sync + 'static> Trainer<'_, I> {
    /// Refuses settings that cannot be trained with.
    pub(super) fn check_settings(&self, rank: Rank) -> Result<(), Fault> {
        let goes_on = AtomicBool::new(false);
        match self.training.check().err().or_else(|| self.job(&goes_on).unfit()) {
            Some(why) => Err(Fault::new(Class::Usage, rank, why)),
            None => self.check_steps(rank),
        }
    }

    /// Refuses steps that are not whole windows of the program: the last window would train steps
    /// beyond the requested ones.
    fn check_steps(&self, rank: Rank) -> Result<(), Fault> {
        let (steps, window) = (self.training.steps, self.program.window().n_steps());
        if steps.is_multiple_of(u64::from(window)) {
            Ok(())
        } else {
            let why = format!(
                "the program has a window of {window} steps, and {steps} steps are not whole \
                 windows: choose a multiple of {window}"
            );
            Err(Fault::new(Class::Usage, rank, why))
        }
    }

    /// Everything that a training's results depend on, except stages and values of samples.
    pub(super) fn fields(&self) -> Fields {
        let program = self.fingerprint.get_or_init(|| self.program.fingerprint());
        let mut fields: Fields = [
            ("version", env!("CARGO_PKG_VERSION").to_string()),
            ("program", program.clone()),
            ("width", self.width.to_string()),
            ("micro_batch_size", self.micro_batch_size.to_string()),
            ("type of samples", std::any::type_name::<I>().to_string()),
            ("targets of a sample", self.data.n_targets().to_string()),
        ]
        .map(|(name, value)| (name.into(), value))
        .into();
        fields.extend(self.training.fields());
        fields
    }
}
