//! Sharded weights in a simulation: a gathering ends when the last shard has arrived.
//!
//! Shards are messages that have the network to themselves, and occupy no worker.

use std::convert::Infallible;
use std::task::Poll;

use super::{Ready, Simulation};
use crate::analyze::simulation::timeline::Event;
use crate::costs::Costs;
use crate::ir::ids::WorkerId;
use crate::program::ShardOp;

impl<C: Costs, F: FnMut(Event)> Simulation<'_, C, F> {
    /// Runs an instruction for sharded weights.
    pub(in crate::analyze) fn run_shard(
        &mut self,
        worker: WorkerId,
        op: &ShardOp,
    ) -> Result<Poll<()>, Infallible> {
        match *op {
            ShardOp::Share(gathering) => {
                let start = self.free_at(worker);
                let takes = self.costs.share(worker, gathering.to, gathering.stage);
                self.shards.send(gathering, Ready { at: start.at + takes, by: start.by });
            }
            ShardOp::Gather(gathering) => {
                let Some(arrivals) = self.shards.take(gathering) else { return Ok(Poll::Pending) };
                arrivals.into_iter().for_each(|ready| self.wait_for(worker, ready));
            }
            ShardOp::Drop(_) => {}
        }
        Ok(Poll::Ready(()))
    }
}
