//! The workload of a run: stages on devices, and samples.

use std::io;

use anyhow::Result;
use chimera_core::comm::{Comm, CommError, Host};
use chimera_core::engine::{Fields, Job};
use chimera_core::fault::Fault;
use chimera_core::render::chrome::Sizes;
use chimera_core::stage::{Data, Param};
use chimera_core::timetable::Timetable;
use chimera_formats::checkpoint::Digest;
use chimera_plan::plan::{Chain, Course};
use chimera_settings::Config;

use super::initial::Initial;
use crate::run::Run;
use crate::run::progress::trained::RankTrained;
use crate::run::progress::watch::{HeldOut, Watch};
use crate::run::survivor::Survivor;

/// The workload of a run: one of the models here ([`Transformer`](crate::run::Transformer)), or a
/// caller's ([`Own`](crate::run::Own)).
pub trait Subject: Sync + Sized {
    /// One number of a sample.
    type Item: Copy + Send + Sync + 'static;

    /// Plans a training by these settings, with the timetable that a search elsewhere has `found`, if any.
    fn plan(&mut self, config: Config, found: Option<Timetable>) -> Result<Course>;

    /// Returns the model that the program depends on.
    fn chain(&self) -> &dyn Chain;

    /// Returns the parameters of each stage.
    fn params(&self) -> Vec<Vec<Param>>;

    /// Returns the data to train on.
    fn samples<'s>(&'s self, course: &Course) -> Box<dyn Data<Self::Item> + 's>;

    /// Returns the data to evaluate on, if any.
    fn held_out(&self, course: &Course) -> io::Result<Option<HeldOut<'_, Self::Item>>>;

    /// Returns the tokens of a sample, or its targets if the model reads no text.
    fn tokens_per_sample(&self, config: &Config) -> u64;

    /// Adds numbers of a sample to a hash.
    fn hash(items: &[Self::Item], hasher: &mut blake3::Hasher);

    /// Returns the digest of the data, if it is known without reading samples.
    fn digest(&self) -> Option<io::Result<&Digest>>;

    /// Returns the token at the end of each document of its text, if there is one.
    fn document_end(&self) -> Option<u32> {
        None
    }

    /// Returns further values that must be equal on all ranks.
    fn facts(&self) -> Fields {
        Fields::new()
    }

    /// Returns the options that are set but do not apply to it.
    fn unread(&self) -> &[&'static str] {
        &[]
    }

    /// Returns the devices of this process's ranks. Replicas on devices of one name stay equal to the bit.
    fn device_models(&self) -> Vec<String>;

    /// Returns the way in which processors among these devices multiply bf16, if they do.
    fn bf16_products(&self) -> Option<&'static str> {
        None
    }

    /// Returns the sizes that a trace shows beside its timeline.
    fn sizes(&self, course: &Course) -> Sizes;

    /// Opens the initial weights, if the settings name some.
    fn open_initial(&self, _config: &Config) -> Result<Option<Initial>> {
        Ok(None)
    }

    /// Trains with a thread for each rank.
    fn train_threads<'r>(
        run: &'r Run<Self>,
        job: Job<'r, Self::Item>,
        watch: &Watch<'r, Self::Item>,
    ) -> Result<Vec<RankTrained>>;

    /// Trains the rank of `comm`, and continues with what `survivor` has kept. Another thread calls
    /// `why_over` to learn whether the job has failed.
    fn train_process<'r>(
        run: &'r Run<Self>,
        job: Job<'r, Self::Item>,
        comm: &mut dyn Comm<Host>,
        why_over: impl Fn() -> Option<CommError> + Send + 'static,
        watch: &Watch<'r, Self::Item>,
        survivor: &mut Survivor,
    ) -> Result<RankTrained, Fault>;
}
