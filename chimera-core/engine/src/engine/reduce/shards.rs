//! Ownership of tensors. The owner of a tensor counts the norm of its gradient. With a sharded
//! optimizer, only the owner has the sum of all replicas' gradients, and updates the tensor.
//! Otherwise replicas have equal shares of all gradients.

use std::mem::take;
use std::sync::Arc;

use chimera_schedule::ids::{BucketId, Rank, StageId};
use chimera_schedule::program::Program;
use chimera_schedule::shards::assign_whole;

use crate::engine::optim::kfac::factor_shapes;
use crate::engine::reduce::layout::BucketLayout;
use crate::engine::reduce::within::plan_within;
use crate::stage::Param;

/// The places of one tensor of a bucket on a rank, each a stage and the index of a parameter. A
/// tied tensor may have two places on one rank.
pub(crate) type Places = Vec<(StageId, usize)>;

/// Returns true if a parameter of a stage is shared with other stages of the program. A tied
/// parameter of a stage outside of all ties is its own.
pub(crate) fn is_shared(program: &Program, stage: StageId, is_tied: bool) -> bool {
    let mut ties = program.buckets_of_update().iter().filter(|bucket| bucket.stages.len() > 1);
    is_tied && ties.any(|bucket| bucket.stages.contains(&stage))
}

/// Returns, by bucket of an update and tensor, its places on a worker that holds these stages: of
/// the frozen tensors, or of the others. A bucket of one stage has the stage's own tensors, one of
/// several their shared tensors.
pub(crate) fn layout<'p>(
    program: &Program,
    params: impl Fn(StageId) -> Option<&'p [Param]>,
    is_frozen: bool,
) -> Vec<Vec<Places>> {
    let tensors_of = |stages: &[StageId]| {
        let is_tied = stages.len() > 1;
        let mut tensors: Vec<(&str, Places)> = Vec::new();
        for &stage in stages {
            let params = params(stage).unwrap_or_default();
            let is_its = |param: &Param| {
                param.frozen == is_frozen && is_shared(program, stage, param.tied) == is_tied
            };
            for (index, param) in params.iter().enumerate().filter(|(_, param)| is_its(param)) {
                match tensors.iter_mut().find(|(name, _)| *name == param.name) {
                    Some((_, places)) => places.push((stage, index)),
                    None => tensors.push((&param.name, vec![(stage, index)])),
                }
            }
        }
        if is_tied {
            tensors.sort();
        }
        tensors.into_iter().map(|(_, places)| places).collect()
    };
    program.buckets_of_update().iter().map(|b| tensors_of(&b.stages)).collect()
}

/// By bucket of an update and tensor: its owner, the same on all ranks that hold the tensor.
pub(crate) fn owners<'p>(
    program: &Program,
    width: usize,
    layout: &[Vec<Places>],
    params: impl Fn(StageId) -> Option<&'p [Param]>,
) -> Vec<Vec<Rank>> {
    let of = |(bucket, tensors): (u32, &Vec<Places>)| {
        let members = program.replicas(width, BucketId(bucket));
        let owners = assign_whole(&sizes(&shapes(tensors, &params)), members.len());
        owners.into_iter().map(|member| members[member]).collect()
    };
    (0..).zip(layout).map(of).collect()
}

/// Tensors of a bucket that are summed together.
pub(crate) struct BucketPart {
    /// Indices of the tensors in the bucket, ascending. Factors come after gradients.
    pub(crate) tensors: Vec<usize>,
    /// The tensors' layout in the buffer that is reduced.
    pub(crate) layout: Arc<BucketLayout>,
}

/// The way in which the tensors of a bucket are summed.
#[derive(Clone, Copy)]
pub(crate) struct HowSummed {
    /// Whether each replica has the tensors that it owns, instead of an equal share.
    pub(crate) keeps_sums: bool,
    /// Whether the factors of a bucket's stage are summed with its gradients.
    pub(crate) with_factors: bool,
    /// Minimum number of elements in a part, except for the last.
    pub(crate) part_elements: usize,
    /// Number of consecutive ranks, such as those of a node, that add up among themselves first; 0
    /// if all ranks add up at once.
    pub(crate) within: usize,
}

/// Returns, by bucket of an update, its parts. The part with the last tensors comes first, since a
/// backward makes their gradients first.
pub(crate) fn parts<'p>(
    program: &Program,
    width: usize,
    layout: &[Vec<Places>],
    params: impl Fn(StageId) -> Option<&'p [Param]>,
    how: HowSummed,
) -> Vec<Vec<Arc<BucketPart>>> {
    let of = |(bucket, tensors): (u32, &Vec<Places>)| {
        let members = program.replicas(width, BucketId(bucket));
        let (n_members, plan) = (members.len(), plan_within(&members, how.within));
        let mut shapes = shapes(tensors, &params);
        let n_gradients = shapes.len();
        if let ([stage], true) = (&program.buckets()[bucket as usize].stages[..], how.with_factors)
        {
            shapes.extend(factor_shapes(params(*stage).unwrap_or_default()));
        }
        let sizes = sizes(&shapes);
        let owners = assign_whole(&sizes, n_members);
        let most = if n_members > 1 { how.part_elements } else { usize::MAX };
        let part = |tensors: Vec<usize>| {
            let shapes = tensors.iter().map(|tensor| shapes[*tensor].clone()).collect();
            let owners: Vec<_> = tensors.iter().map(|tensor| owners[*tensor]).collect();
            let layout = if how.keeps_sums {
                BucketLayout::owned(shapes, &owners, plan)
            } else {
                BucketLayout::shared(shapes, plan)
            };
            Arc::new(BucketPart { tensors, layout: Arc::new(layout) })
        };
        cut_in_parts(&sizes, n_gradients, most).into_iter().map(part).collect()
    };
    (0..).zip(layout).map(of).collect()
}

/// Cuts gradients, from last to first, into parts of at least `part_elements` elements. Other
/// tensors go with the last part.
fn cut_in_parts(sizes: &[usize], n_gradients: usize, part_elements: usize) -> Vec<Vec<usize>> {
    let mut parts = Vec::new();
    let (mut part, mut n_elements) = (Vec::new(), 0);
    for tensor in (0..n_gradients).rev() {
        if n_elements >= part_elements {
            parts.push(take(&mut part));
            n_elements = 0;
        }
        part.push(tensor);
        n_elements += sizes[tensor];
    }
    part.extend(n_gradients..sizes.len());
    parts.push(part);
    parts.iter_mut().for_each(|part| part.sort_unstable());
    parts
}

fn shapes<'p>(
    tensors: &[Places],
    params: impl Fn(StageId) -> Option<&'p [Param]>,
) -> Vec<Vec<usize>> {
    let of = |places: &Places| {
        let (stage, index) = *places.first()?;
        Some(params(stage)?.get(index)?.shape.clone())
    };
    tensors.iter().map(|places| of(places).unwrap_or_default()).collect()
}

fn sizes(shapes: &[Vec<usize>]) -> Vec<usize> {
    shapes.iter().map(|shape| shape.iter().product()).collect()
}

/// Indexes a list by bucket of an update, for a bucket of any update.
pub(crate) fn of_bucket<T>(list: &[T], bucket: BucketId) -> &T {
    &list[bucket.index() % list.len()]
}
