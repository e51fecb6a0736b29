//! What a run trains, apart from how: stages on devices, and samples.

use std::io;

use anyhow::Result;
use chimera_core::comm::{Comm, CommError, Host};
use chimera_core::engine::{Fields, Job};
use chimera_core::fault::Fault;
use chimera_core::render::chrome::Sizes;
use chimera_core::stage::{Data, Param};
use chimera_core::timetable::Timetable;

use super::initial::Initial;
use crate::formats::checkpoint::Digest;
use crate::plan::{Chain, Course};
use crate::run::Run;
use crate::run::progress::trained::RankTrained;
use crate::run::progress::watch::{HeldOut, Watch};
use crate::run::survivor::Survivor;
use crate::settings::Config;

/// What a run trains: one of the models here ([`Transformer`](crate::run::Transformer)), or a caller's
/// ([`Own`](crate::run::Own)).
pub trait Subject: Sync + Sized {
    /// One number of a sample.
    type Item: Copy + Send + Sync + 'static;

    /// Plans a training by these settings, with the timetable that a search has `found`, if it was elsewhere.
    fn plan(&mut self, config: Config, found: Option<Timetable>) -> Result<Course>;

    /// What its program depends on.
    fn chain(&self) -> &dyn Chain;

    /// The parameters of each stage.
    fn params(&self) -> Vec<Vec<Param>>;

    /// What is trained on.
    fn samples<'s>(&'s self, course: &Course) -> Box<dyn Data<Self::Item> + 's>;

    /// What is evaluated on, if anything.
    fn held_out(&self, course: &Course) -> io::Result<Option<HeldOut<'_, Self::Item>>>;

    /// Tokens of a sample; of a model that reads no text, targets.
    fn tokens_per_sample(&self, config: &Config) -> u64;

    /// Tells a hasher of numbers of a sample.
    fn hash(items: &[Self::Item], hasher: &mut blake3::Hasher);

    /// Which data it is, if that is known without reading samples.
    fn digest(&self) -> Option<io::Result<&Digest>>;

    /// The token behind each document of its text, where there is one.
    fn document_end(&self) -> Option<u32> {
        None
    }

    /// What else all ranks must have in common.
    fn facts(&self) -> Fields {
        Fields::new()
    }

    /// Options that were said and that say nothing of it.
    fn unread(&self) -> &[&'static str] {
        &[]
    }

    /// The devices of this process's ranks: replicas on devices of one name stay equal to the bit.
    fn device_models(&self) -> Vec<String>;

    /// What a trace says beside its timeline.
    fn sizes(&self, course: &Course) -> Sizes;

    /// Opens the weights to begin with, if the settings name some.
    fn open_initial(&self, _config: &Config) -> Result<Option<Initial>> {
        Ok(None)
    }

    /// Trains with a thread for each rank.
    fn train_threads<'r>(
        run: &'r Run<Self>,
        job: Job<'r, Self::Item>,
        watch: &Watch<'r, Self::Item>,
    ) -> Result<Vec<RankTrained>>;

    /// Trains the rank that `comm` is an end of, and goes on with what `survivor` has kept. `why_over` is asked from another
    /// thread whether the job has failed.
    fn train_process<'r>(
        run: &'r Run<Self>,
        job: Job<'r, Self::Item>,
        comm: &mut dyn Comm<Host>,
        why_over: impl Fn() -> Option<CommError> + Send + 'static,
        watch: &Watch<'r, Self::Item>,
        survivor: &mut Survivor,
    ) -> Result<RankTrained, Fault>;
}
