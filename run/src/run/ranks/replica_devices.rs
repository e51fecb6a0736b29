//! Replicas of a stage stay equal to the bit only if the devices that update them round alike.

use anyhow::{Result, bail};
use chimera_core::ids::{StageId, WorkerId};
use chimera_core::program::Program;
use chimera_settings::Config;

/// Refuses a program whose replicas of a stage are updated by devices of different models; `models` is by rank.
pub(crate) fn check(program: &Program, config: &Config, models: &[String]) -> Result<()> {
    if config.replicas.shard_optimizer {
        return Ok(()); // one replica updates a tensor, and the others get its bits
    }
    for bucket in program.buckets() {
        let worker = |rank: usize| WorkerId((rank % config.schedule.depth) as u16);
        let mut replicas = (0..models.len()).filter(|rank| bucket.members.contains(&worker(*rank)));
        let Some(first) = replicas.next() else { continue };
        let Some(other) = replicas.find(|rank| models[*rank] != models[first]) else { continue };
        let named = |rank: usize| match config.schedule.width {
            1 => format!("{} ({})", worker(rank), models[rank]),
            _ => format!(
                "{} of group {} ({})",
                worker(rank),
                rank / config.schedule.depth,
                models[rank]
            ),
        };
        let stages: Vec<String> = bucket.stages.iter().map(StageId::to_string).collect();
        bail!(
            "{} has replicas on {} and {}, which round differently, so they would not stay equal: give these workers \
             similar devices, choose a schedule with one replica of each stage (1f1b, zb-h1) and width 1, or \
             shard-optimizer true, with which one replica updates for all",
            stages.join(" with "),
            named(first),
            named(other),
        );
    }
    Ok(())
}
