//! The proof that a program is safe to run, and the refusal if it is not.
//!
//! It proves: every micro-batch has each pass that is wanted of a stage exactly once, on the worker
//! that holds the stage (without frozen stages, a forward and a backward); every op finds the tokens it eats; the messages of each channel are
//! received in the order they are sent; no worker waits for ever, with channels of bounded
//! capacity; all workers start reductions in one order, each after the worker's last gradient and
//! exactly once before its step; nothing is left over; saved activations stay under a limit, if one
//! is given.
//!
//! For an asynchronous window the same holds for every update. It also proves: the gradients of one
//! update are never mixed with another's; every backward reads the version of the weights that its
//! forward read; in a double buffer, each forward finds the version that the rule names.

mod checker;

use self::checker::{Checker, Phase};
use super::deadlock::deadlock;
use super::refusal::{Reason, Refusal, refusal};
use super::shards::ShardedWeights;
use super::versions::Versions;
use crate::effects::Token;
use crate::interp::{Group, Machine, Stop};
use crate::ir::ids::{BucketId, WorkerId};
use crate::ir::op::Lane;
use crate::ir::update::Update;
use crate::program::{Instr, Program};

/// The figures that the proof yields.
pub(crate) struct Proof {
    pub(crate) channel_bound: u32,
    pub(crate) peaks: Vec<f64>,
    pub(crate) weight_versions: Vec<u32>,
}

/// Proves a whole program.
pub(crate) fn prove(program: &Program, max_peak: Option<f64>) -> Result<Proof, Refusal> {
    let is_asynchronous = program.window.update() != Update::Flush;
    let versions = is_asynchronous.then(|| Versions::new(program.window, program.rows.len()));
    let machine = Checker::new(program, max_peak, versions);
    let mut machine = interpret(program, machine, |machine| machine.bound += 1)?;
    if program.rules.has_moves() {
        machine.hold_in_order()?;
    }
    for (id, bucket) in (0..).map(BucketId).zip(&program.buckets) {
        let last = program.is_trained(bucket).then_some(&Phase::Stepped);
        for &worker in &bucket.members {
            let progress = &machine.workers[worker.index()];
            if progress.phases.get(&id) != last || !progress.has_agreed {
                let reason = format!("{id} is not updated, or without an agreement");
                let end = program.rows[worker.index()].len();
                let reason = Reason::Synchronisation(reason);
                return Err(refusal(program, Some((worker, end)), reason));
            }
        }
    }
    if let Some(Err((worker, reason))) = machine.sharded.as_ref().map(ShardedWeights::finish) {
        return Err(refusal(program, Some((worker, program.rows[worker.index()].len())), reason));
    }
    let one = || vec![1; program.rows.len()];
    let mut weight_versions = machine.versions.map_or_else(one, Versions::peaks);
    for (worker, versions) in (0..).map(WorkerId).zip(&mut weight_versions) {
        if program.placement.stages_of(worker).is_empty() {
            *versions = 0;
        }
    }
    Ok(Proof { channel_bound: machine.bound, peaks: machine.activations.peaks(), weight_versions })
}

/// Runs all rows to their ends with the smallest sufficient channel capacity. `widen` adds room for
/// one message to each channel.
pub(in crate::analyze) fn interpret<M: Machine>(
    program: &Program,
    mut machine: M,
    widen: impl Fn(&mut M),
) -> Result<M, Refusal>
where
    Reason: From<M::Error>,
{
    let mut group = Group::new(program);
    loop {
        let done = group.run(&mut machine).map_err(|(worker, stop)| {
            let position = group.rows()[worker.index()].tried();
            refusal(program, Some((worker, position)), reason(stop))
        })?;
        if done {
            break;
        }
        // A worker that waits for room in a channel may continue once there is more. Everything so
        // far would have run with more room too, so there is no need to start again.
        let positions: Vec<[usize; 2]> =
            group.rows().iter().map(|row| Lane::ALL.map(|lane| row.position_on(lane))).collect();
        let mut next = positions.iter().zip(&program.rows).flat_map(|(positions, instrs)| {
            Lane::ALL
                .into_iter()
                .zip(positions)
                .filter_map(|(lane, at)| instrs.get(*at).filter(|instr| instr.lane() == lane))
        });
        if !next.any(|instr| matches!(instr, Instr::Send(..))) {
            return Err(deadlock(program, &positions));
        }
        widen(&mut machine);
    }
    let left = group.rows().iter().enumerate();
    let left = left.filter_map(|(w, row)| Some((w, *row.ledger().tokens().first()?))).next();
    if let Some((w, token)) = left {
        let at = (WorkerId(w as u16), maker(program, w, &token));
        return Err(refusal(program, Some(at), Reason::LeftOver(token)));
    }
    Ok(machine)
}

/// Position of the instruction of worker `w` that makes `token` and leaves it over.
fn maker(program: &Program, w: usize, token: &Token) -> usize {
    let makes = |instr: &Instr| match instr {
        Instr::Run(cell) => program.rules.cell_effects(cell).makes.contains(token),
        Instr::Recv(made, _) | Instr::Give(made) => made == token,
        _ => false,
    };
    program.rows[w].iter().position(makes).unwrap_or(0)
}

fn reason<E: Into<Reason>>(stop: Stop<E>) -> Reason {
    match stop {
        Stop::Missing(token) => Reason::Missing(token),
        Stop::Twice(token) => Reason::Twice(token),
        Stop::Machine(reason) => reason.into(),
    }
}

#[cfg(test)]
pub(super) mod tests;
