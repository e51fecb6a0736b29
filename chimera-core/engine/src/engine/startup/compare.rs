//! Checks that all ranks are about to train the same: the settings, the parameters of each stage,
//! and the initial weights.

use std::collections::BTreeMap;
use std::time::Instant;

use chimera_schedule::ids::{Rank, StageId};
use chimera_schedule::program::Program;
use serde::{Deserialize, Serialize};

use crate::comm::{Comm, Endpoint};
use crate::device::Device;
use crate::engine::Worker;
use crate::engine::fields::{Fields, differences};
use crate::engine::reduce::shards::is_shared;
use crate::engine::state::rank_state::StageOn;
use crate::fault::{Class, Fault};
use crate::stage::name_conflict;

/// The training that a rank is about to begin.
#[derive(Serialize, Deserialize)]
struct Outset {
    fields: Fields,
    /// Stages that the rank holds, with their parameters.
    stages: Vec<(u16, Vec<ParamOutset>)>,
}

/// A parameter before the first step.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct ParamOutset {
    name: String,
    shape: Vec<usize>,
    tied: bool,
    /// BLAKE3 hash of its weights; empty if there are no replicas to compare with.
    weights: String,
}

impl<S: StageOn<D>, D: Device, C: Comm<D::Tensor>> Worker<'_, S, D, C> {
    /// Compares what all ranks are about to train. All ranks must call it before the first step.
    /// `fields` are the settings on which results depend.
    ///
    /// # Errors
    /// [`Class::Mismatch`] names the fields, or the parameter, in which ranks differ.
    /// [`Class::Usage`] if parameters cannot be distinguished by name, or the stages of a tie do
    /// not have the same tied tensors.
    pub fn check_outset(&mut self, fields: &Fields) -> Result<(), Fault> {
        let began = Instant::now();
        let own = Outset { fields: fields.clone(), stages: self.params_outset()? };
        let own = self.written(&own)?;
        self.state.timing.since.leave_out(began);
        let all = self.all_gather("comparison of what all train", &own)?;
        let rank = self.state.comm.rank();
        let mut ranks = Vec::with_capacity(all.len());
        for (from, bytes) in (0..).map(Rank).zip(&all) {
            ranks.push(serde_json::from_slice::<Outset>(bytes).map_err(|_| {
                let message =
                    format!("{from} greets in another way: start the same version on all ranks");
                Fault { peer: Some(from), ..Fault::new(Class::Mismatch, rank, message) }
            })?);
        }
        let (fields, stages): (Vec<_>, Vec<_>) =
            ranks.into_iter().map(|of| (of.fields, of.stages)).unzip();
        check_fields(rank, &fields)?;
        let unlike = |why: (Rank, String)| Fault {
            peer: Some(why.0),
            ..Fault::new(Class::Mismatch, rank, why.1)
        };
        let by_stage = merged(&stages).map_err(unlike)?;
        let usage = |why| Err(Fault::new(Class::Usage, rank, why));
        conflict(self.state.job.program, &by_stage).map_or(Ok(()), usage)?;
        other_weights(&stages).map_or(Ok(()), |why| Err(unlike(why)))
    }

    /// Compares `fields`, the settings on which results depend, with those of the other ranks in
    /// every later [recovery](Worker::recover_with), since a replacement of a dead rank must train
    /// the same. Either all ranks or none must call it.
    pub fn compare_in_recoveries(&mut self, fields: Fields) {
        self.fields = fields;
    }

    /// The parameters of the stages that this rank holds.
    fn params_outset(&self) -> Result<Vec<(u16, Vec<ParamOutset>)>, Fault> {
        let job = &self.state.job;
        let mut buckets = job.program.buckets_of_update().iter();
        let has_replicas =
            job.width > 1 || buckets.any(|b| b.members.len() > 1 || b.stages.len() > 1);
        let mut stages = Vec::new();
        for id in self.state.stages.ids() {
            let held = self.state.stages.held(id);
            let mut params = Vec::new();
            for (param, weight) in held.stage.params().iter().zip(held.weights.iter()) {
                let weights = if has_replicas { self.hash(weight)? } else { String::new() };
                let (name, shape, tied) = (param.name.clone(), param.shape.clone(), param.tied);
                params.push(ParamOutset { name, shape, tied, weights });
            }
            stages.push((id.0, params));
        }
        Ok(stages)
    }
}

/// Refuses ranks with different settings.
pub(crate) fn check_fields(rank: Rank, all: &[Fields]) -> Result<(), Fault> {
    let Some(other) = all.iter().position(|theirs| *theirs != all[0]) else { return Ok(()) };
    let message = format!("the ranks do not train the same:\n  {}", differences(all).join("\n  "));
    let fault = Fault::new(Class::Mismatch, rank, message);
    Err(Fault { peer: Some(Rank(other as u32)), ..fault })
}

type ByStage<'o> = BTreeMap<StageId, &'o [ParamOutset]>;

/// Merges the parameters of each stage. Fails with the first rank that has other parameters of a
/// stage than an earlier rank, and a description.
fn merged(ranks: &[Vec<(u16, Vec<ParamOutset>)>]) -> Result<ByStage<'_>, (Rank, String)> {
    let mut known: BTreeMap<StageId, (Rank, &[ParamOutset])> = BTreeMap::new();
    for (rank, stages) in (0..).map(Rank).zip(ranks) {
        for (stage, params) in stages {
            let stage = StageId(*stage);
            let (first, known) = *known.entry(stage).or_insert((rank, params));
            let n = known.len().max(params.len());
            let other = (0..n).map(|at| [known.get(at), params.get(at)].map(said));
            if let Some([before, here]) = other.into_iter().find(|[before, here]| before != here) {
                let message = format!(
                    "{stage} has {before} on {first} and {here} on {rank}: a stage has the same parameters on all ranks that \
                     hold it, so it must not depend on the rank that makes it"
                );
                return Err((rank, message));
            }
        }
    }
    Ok(known.into_iter().map(|(stage, (_, params))| (stage, params)).collect())
}

fn said(param: Option<&ParamOutset>) -> String {
    match param {
        Some(ParamOutset { name, shape, tied: true, .. }) => {
            format!("`{name}` of {shape:?}, tied,")
        }
        Some(ParamOutset { name, shape, .. }) => format!("`{name}` of {shape:?}"),
        None => "no parameter in its place".into(),
    }
}

/// Returns why parameters cannot be trained by their names; `None` if they can.
fn conflict(program: &Program, by_stage: &ByStage<'_>) -> Option<String> {
    let of_stage = |(stage, params): (&StageId, &&[ParamOutset])| {
        name_conflict(params.iter().map(|param| (*stage, param.name.as_str())))
    };
    let own = by_stage.iter().flat_map(|(stage, params)| {
        let own = params.iter().filter(|param| !is_shared(program, *stage, param.tied));
        own.map(|param| (*stage, param.name.as_str()))
    });
    let mut ties = program.buckets_of_update().iter().filter(|bucket| bucket.stages.len() > 1);
    by_stage
        .iter()
        .find_map(of_stage)
        .or_else(|| name_conflict(own))
        .or_else(|| ties.find_map(|bucket| broken_tie(&bucket.stages, by_stage)))
}

/// Returns why the tied tensors of some stages are not shared by all of them; `None` if they are.
fn broken_tie(stages: &[StageId], by_stage: &ByStage<'_>) -> Option<String> {
    let tied = |stage: &StageId| {
        let params = by_stage.get(stage).copied().unwrap_or_default();
        params.iter().filter(|param| param.tied)
    };
    for stage in stages {
        for ParamOutset { name, shape, .. } in tied(stage) {
            for other in stages {
                match tied(other).find(|param| param.name == *name) {
                    None => {
                        return Some(format!(
                            "`{name}` of {stage} is tied, and {other}, with which it is tied, has no tied parameter of this \
                             name: a tied tensor has one name in all its stages, or `Param::tied` is false"
                        ));
                    }
                    Some(theirs) if theirs.shape != *shape => {
                        return Some(format!(
                            "the tied tensor `{name}` is of {shape:?} in {stage} and of {:?} in {other}: it has one shape in all \
                             its stages",
                            theirs.shape
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
    }
    None
}

/// Returns the first rank with other initial weights than an earlier one, and a description.
fn other_weights(ranks: &[Vec<(u16, Vec<ParamOutset>)>]) -> Option<(Rank, String)> {
    // A name belongs to one stage, or to tied tensors, which begin with equal weights.
    let mut known: BTreeMap<&str, (Rank, StageId, &str)> = BTreeMap::new();
    for (rank, stages) in (0..).map(Rank).zip(ranks) {
        for (stage, params) in stages {
            let stage = StageId(*stage);
            for ParamOutset { name, weights, .. } in params {
                let (first, of, theirs) = *known.entry(name).or_insert((rank, stage, weights));
                if theirs != weights {
                    let message = format!(
                        "`{name}` begins with other weights in {stage} on {rank} than in {of} on {first}: its `Init` must be the \
                         same wherever it is held, and not depend on the rank"
                    );
                    return Some((rank, message));
                }
            }
        }
    }
    None
}
