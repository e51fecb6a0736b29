//! What is known of a run beforehand by the profile that its settings name.

use std::path::Path;

use anyhow::Result;
use chimera_core::analyze::Network;
use chimera_core::update::Update;

use crate::plan::{Advice, Cluster, Prediction, Speed, times_of};
use crate::profile::{ProfiledTimes, ReferenceTime};
use crate::run::machine::available_memory::{free_memory, resident};
use crate::run::{Run, Transformer};
use crate::settings::schedules::Named;

impl Run {
    /// What a step is predicted to take by the profile that the settings name, if they do, at the speed that this machine has
    /// when that is first asked: the reference work of the profile is done again, where workers are threads of this process.
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

    /// What the reference work of the profile takes now, if it was done before the training too.
    ///
    /// # Errors
    /// If a device fails.
    pub fn reference(&self) -> Result<Option<ReferenceTime>> {
        match self.profiled()? {
            Some(times) => self.reference_now(&times),
            None => Ok(None),
        }
    }

    /// What to change so that steps take less time here, by the profile that the settings name: one change, if some is worth
    /// it. Workers are threads of this machine.
    ///
    /// # Errors
    /// If the profile cannot be used.
    pub fn advice(&self) -> Result<Option<Advice>> {
        let (config, free) = (self.config(), free_memory(Path::new("/")));
        // What this run holds is free for another.
        let held = resident(Path::new("/")).map_or(0.0, |held| held.bytes - held.of_files);
        // Every change to a schedule that is searched for would be a search of its own.
        if self.program().window().update() != Update::Flush || config.schedule.name == Named::Auto
        {
            return Ok(None);
        }
        let (Some(times), Some(free)) = (self.profiled()?, free) else { return Ok(None) };
        let n_ranks = config.schedule.width * config.schedule.depth;
        let (speed, network) = (Speed::Measured(times), Network::free(n_ranks));
        let memory = (free.bytes + held) / n_ranks as f64;
        Advice::on(config, &Cluster { n_ranks, memory: memory.into(), speed, network })
    }

    fn predict(&self) -> Result<Option<Prediction>> {
        let Some(times) = self.profiled()? else { return Ok(None) };
        let held = || resident(Path::new("/"));
        let before = held();
        let reference = self.reference_now(&times)?;
        // The training uses the memory that the reference work leaves, and its code beside.
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

    /// Times of the profile that the settings name, if they do.
    fn profiled(&self) -> Result<Option<ProfiledTimes>> {
        let config = self.config();
        let path = config.costs.predict.as_ref().or(config.costs.profile.as_ref());
        path.map(|path| times_of(config, path, config.schedule.width * config.schedule.depth))
            .transpose()
    }
}
