//! Predictions for a run, from the profile that its settings name.

use std::path::Path;

use anyhow::Result;
use chimera_core::analyze::Network;
use chimera_core::update::Update;
use chimera_plan::plan::{Advice, Cluster, OwnTimes, Prediction, Speed, times_of};
use chimera_plan::profile::{ProfiledTimes, ReferenceTime};
use chimera_settings::schedules::Named;

use crate::run::machine::available_memory::{free_memory, resident};
use crate::run::{DirectTransport, Run, Trained, Transformer};

/// The share of its cores from which on a process has the machine to itself.
const QUIET: f64 = 0.9;

impl<K: DirectTransport> Run<Transformer<K>> {
    /// Predicts the time of a step from the profile that the settings name, if they do. The
    /// prediction is scaled to the current speed of this machine: if workers are threads of this
    /// process, the first call repeats the reference work of the profile.
    ///
    /// # Errors
    /// If the profile cannot be used.
    pub fn prediction(&self) -> Result<Option<&Prediction>> {
        if self.prediction.get().is_none() {
            let predicted = self.predict()?;
            let _ = self.prediction.set(predicted);
        }
        Ok(self.prediction.get().and_then(Option::as_ref))
    }

    /// Measures the reference work of the profile again, if it was measured before the training too.
    ///
    /// # Errors
    /// If a device fails.
    pub fn reference(&self) -> Result<Option<ReferenceTime>> {
        match self.profiled()? {
            Some(times) => self.reference_now(&times),
            None => Ok(None),
        }
    }

    /// Suggests the one change that shortens steps most, if one is worth it: by the profile that the
    /// settings name, otherwise by the op times of what was `trained`. Workers are threads of this
    /// machine. Ops of workers that share cores take longer by chance, so they say nothing.
    ///
    /// # Errors
    /// If the profile cannot be used.
    pub fn advice(&self, trained: &Trained) -> Result<Option<Advice>> {
        let (config, free) = (self.config(), free_memory(Path::new("/")));
        // Memory of this run would be available to another.
        let held = resident(Path::new("/")).map_or(0.0, |held| held.bytes - held.of_files);
        // If the schedule is searched for, every change would need a search of its own.
        if self.program().window().update() != Update::Flush || config.schedule.name == Named::Auto
        {
            return Ok(None);
        }
        let n_ranks = config.schedule.width * config.schedule.depth;
        let speed = match self.profiled()? {
            Some(times) => Some(Speed::Measured(times)),
            None => self.own_times(trained).map(Speed::Own),
        };
        let (Some(speed), Some(free)) = (speed, free) else { return Ok(None) };
        let network = Network::free(n_ranks);
        let memory = (free.bytes + held) / n_ranks as f64;
        Advice::on(
            config,
            &Cluster { n_ranks, memory: memory.into(), speed, network, topology: None },
        )
    }

    /// Returns the times of the ops of what was trained, if each worker had cores of its own.
    fn own_times(&self, trained: &Trained) -> Option<OwnTimes> {
        let config = self.config();
        let n_workers = config.schedule.width * config.schedule.depth;
        // Other programs lengthen some ops, and not others.
        let is_quiet = trained.core_share.is_none_or(|share| share >= QUIET);
        let is_alone = is_quiet && n_workers * config.devices.threads <= self.cores();
        let step_s = trained.median_step().filter(|_| is_alone && !trained.is_bordered)?;
        let Transformer { model, cuts, .. } = &self.subject;
        OwnTimes::of(&self.course, (model, cuts), &trained.timelines, step_s)
    }

    fn predict(&self) -> Result<Option<Prediction>> {
        let Some(times) = self.profiled()? else { return Ok(None) };
        let held = || resident(Path::new("/"));
        let before = held();
        let reference = self.reference_now(&times)?;
        // The training reuses the memory that the reference work frees, but the code that was loaded stays.
        let before = before.zip(held());
        let before = before.map(|(before, now)| before.bytes - before.of_files + now.of_files);
        let _ = self.before.set(before);
        let Transformer { model, cuts, .. } = &self.subject;
        Prediction::of(&times, reference, &self.course, model, cuts).map(Some)
    }

    fn reference_now(&self, times: &ProfiledTimes) -> Result<Option<ReferenceTime>> {
        let (config, devices) = (self.config(), self.devices());
        let are_threads = devices.by_rank().len() == config.schedule.width * config.schedule.depth;
        let host = devices.one().filter(|device| are_threads && device.is_host());
        host.map(|device| times.reference(device)).transpose()
    }

    /// Reads the profile that the settings name, if they do.
    fn profiled(&self) -> Result<Option<ProfiledTimes>> {
        let config = self.config();
        let path = config.costs.predict.as_ref().or(config.costs.profile.as_ref());
        path.map(|path| times_of::<K>(config, path, config.schedule.width * config.schedule.depth))
            .transpose()
    }
}
