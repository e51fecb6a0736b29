//! A check whether other programs used the machine while a profile was measured.
//!
//! They slow down the times of layers and the reference work by different factors, since longer work
//! is more likely to be interrupted. So a prediction can be off by as much as the times are too long.

use anyhow::{Result, bail};
use chimera_core::notation::significant;

use super::{Measurements, Profile};

/// The relative excess of times above which a profile is doubted.
const SAID: f64 = 0.07;
/// The relative excess of times above which a profile is refused.
const REFUSED: f64 = 0.15;

impl Measurements {
    /// Returns the share by which times may be too long because other programs used the cores. It
    /// is the larger of two estimates: from the share of the cores that the process got, and from
    /// the median time of the reference work relative to its quickest quarter.
    pub fn excess(&self) -> f64 {
        let by_share = self.core_share.map_or(0.0, |share| 1.0 / share - 1.0);
        let by_spread = self.reference_quick_s.map_or(0.0, |quick| self.reference_s / quick - 1.0);
        by_share.max(by_spread)
    }

    /// Returns why its times may be too long, if they are by more than a little.
    pub fn doubt(&self) -> Option<String> {
        let Measurements { workers, threads, .. } = self;
        let excess = Some(self.excess()).filter(|excess| *excess > SAID)?;
        let share = self.core_share.map_or(String::new(), |share| {
            format!(", and the process got {} % of the time that it could use", percent(share))
        });
        Some(format!(
            "the machine was busy when {workers} worker(s) of {threads} thread(s) were measured: times may be {} % too long \
             (the same work took so much longer at times{share})",
            percent(excess)
        ))
    }
}

impl Profile {
    /// Returns a doubt about times of workers with this number of threads, if the machine was somewhat busy.
    ///
    /// # Errors
    /// If it was so busy that they are of no use.
    pub fn check_idle(&self, threads: usize) -> Result<Option<String>> {
        let of_threads = self.measured.iter().filter(|measured| measured.threads == threads);
        let worst = of_threads.max_by(|a, b| a.excess().total_cmp(&b.excess()));
        match worst.map(|worst| (worst.excess(), worst.doubt())) {
            Some((excess, Some(doubt))) if excess > REFUSED => bail!("{doubt}"),
            Some((_, doubt)) => Ok(doubt),
            None => Ok(None),
        }
    }
}

fn percent(part: f64) -> String {
    significant(100.0 * part, 2).to_string()
}
