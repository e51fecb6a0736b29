//! The layout of a bucket's tensors in the single buffer that is reduced.

use std::ops::Range;

use chimera_schedule::collective::Plan;
use chimera_schedule::shards::{UNIT, even_shares};

use crate::device::{Device, Result};

/// Alignment of tensors in elements, for kernels that load several at once.
const ALIGNMENT: usize = 64;

/// The places of a bucket's tensors in its buffer, and the segment of each replica.
pub(crate) struct BucketLayout {
    shapes: Vec<Vec<usize>>,
    /// The range of each tensor's elements in the buffer.
    places: Vec<Range<usize>>,
    /// The tensors in the order of their ranges.
    order: Vec<usize>,
    n_elements: usize,
    /// The plan of the reduction, and by position in its [`Plan::segments`] their ranges.
    plan: Plan,
    segments: Vec<Range<usize>>,
    keeps_sums: bool,
}

impl BucketLayout {
    /// A buffer of which each adding replica has an equal share.
    pub(crate) fn shared(shapes: Vec<Vec<usize>>, plan: Plan) -> BucketLayout {
        let order = (0..shapes.len()).collect();
        let mut layout = BucketLayout::of(shapes, order, plan);
        let mut shares = even_shares(layout.n_elements, plan.n_adding(), UNIT).into_iter();
        let mut start = 0;
        for member in plan.segments() {
            // A member without a share is placed between two that have one.
            let share = if plan.adds(member) { shares.next() } else { None };
            layout.segments.push(share.unwrap_or(start..start));
            start = layout.segments.last().map_or(0, |segment| segment.end);
        }
        layout
    }

    /// A buffer of which each replica has the tensors that it owns, and keeps their sums.
    pub(crate) fn owned(shapes: Vec<Vec<usize>>, owners: &[usize], plan: Plan) -> BucketLayout {
        let members = plan.segments();
        let of_member = |member: usize| (0..owners.len()).filter(move |t| owners[*t] == member);
        let order = members.iter().flat_map(|member| of_member(*member)).collect();
        let mut layout = BucketLayout { keeps_sums: true, ..BucketLayout::of(shapes, order, plan) };
        let mut start = 0;
        for member in members {
            let ends = of_member(member).map(|tensor| layout.end_of(tensor));
            let end = ends.max().unwrap_or(start);
            layout.segments.push(start..end);
            start = end;
        }
        layout
    }

    fn of(shapes: Vec<Vec<usize>>, order: Vec<usize>, plan: Plan) -> BucketLayout {
        let mut places = vec![0..0; shapes.len()];
        let mut n_elements = 0;
        for tensor in &order {
            let n: usize = shapes[*tensor].iter().product();
            places[*tensor] = n_elements..n_elements + n;
            n_elements = (n_elements + n).next_multiple_of(ALIGNMENT);
        }
        let (segments, keeps_sums) = (Vec::new(), false);
        BucketLayout { shapes, places, order, n_elements, plan, segments, keeps_sums }
    }

    /// The position at which the next tensor may begin.
    fn end_of(&self, tensor: usize) -> usize {
        self.places[tensor].end.next_multiple_of(ALIGNMENT)
    }

    pub(crate) fn n_elements(&self) -> usize {
        self.n_elements
    }

    /// The rounds by which the members reduce.
    pub(crate) fn plan(&self) -> Plan {
        self.plan
    }

    /// Returns true if the sum of each tensor stays with the replica that owns it.
    pub(crate) fn keeps_sums(&self) -> bool {
        self.keeps_sums
    }

    /// The range of each tensor in the buffer, and its shape.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (&Range<usize>, &[usize])> {
        self.places.iter().zip(self.shapes.iter().map(Vec::as_slice))
    }

    /// The range in the buffer of segments at these positions.
    pub(crate) fn elements(&self, segments: &Range<usize>) -> Range<usize> {
        match self.segments.get(segments.clone()) {
            Some([first, .., last]) => first.start..last.end,
            Some([one]) => one.clone(),
            _ => 0..0,
        }
    }

    /// Makes the buffer: each tensor, and each gap between two, is a piece.
    pub(crate) fn pieces<D: Device>(
        &self,
        device: &D,
        tensors: Vec<D::Tensor>,
    ) -> Result<Vec<Piece<D::Tensor>>> {
        let mut pieces = Vec::with_capacity(tensors.len());
        for &tensor in &self.order {
            let place = self.places[tensor].clone();
            let gap = place.end..self.end_of(tensor);
            if !place.is_empty() {
                let tensor = device.reshape(&tensors[tensor], &[place.len()])?;
                pieces.push(Piece { elements: place, tensor });
            }
            if !gap.is_empty() {
                pieces.push(Piece { tensor: device.zeros(&[gap.len()])?, elements: gap });
            }
        }
        Ok(pieces)
    }
}

/// A range of the buffer, as a one-dimensional tensor.
pub(crate) struct Piece<T> {
    pub(crate) elements: Range<usize>,
    pub(crate) tensor: T,
}

/// Cuts a range of the buffer, which may span several pieces, into one tensor.
pub(crate) fn cut<D: Device>(
    device: &D,
    pieces: &[Piece<D::Tensor>],
    elements: &Range<usize>,
) -> Result<D::Tensor> {
    let mut parts = Vec::new();
    for Piece { elements: own, tensor } in pieces {
        let (start, end) = (elements.start.max(own.start), elements.end.min(own.end));
        if start < end {
            let is_whole = end - start == own.len();
            parts.push(if is_whole {
                tensor.clone()
            } else {
                device.rows(tensor, start - own.start, end - start)?
            });
        }
    }
    match parts.len() {
        0 => device.zeros(&[0]),
        1 => Ok(parts.remove(0)),
        _ => device.join(&parts.iter().collect::<Vec<_>>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes() -> Vec<Vec<usize>> {
        vec![vec![3000, 3], vec![5], vec![1100], vec![40, 30, 2], vec![]]
    }

    #[test]
    fn tensors_are_aligned_and_segments_cover_the_buffer() {
        for n_members in 1..40 {
            let owners: Vec<usize> = (0..5).map(|tensor| tensor * 7 % n_members).collect();
            let plan = Plan::flat(n_members);
            let owned = BucketLayout::owned(shapes(), &owners, plan);
            for layout in [BucketLayout::shared(shapes(), plan), owned] {
                let n_elements = 9024 + 64 + 1152 + 2432 + 64;
                assert_eq!(layout.n_elements(), n_elements);
                assert!(layout.places.iter().all(|place| place.start % ALIGNMENT == 0));
                let mut start = 0;
                for segment in &layout.segments {
                    assert_eq!((segment.start, segment.end >= start), (start, true));
                    start = segment.end;
                }
                assert_eq!((start, layout.segments.len()), (n_elements, n_members));
                assert_eq!(layout.elements(&(0..n_members)), 0..n_elements);
            }
        }
    }

    #[test]
    fn owners_have_their_tensors() {
        let owners = [0, 10, 2, 10, 3];
        let layout = BucketLayout::owned(shapes(), &owners, Plan::flat(11));
        for (tensor, owner) in owners.into_iter().enumerate() {
            let position =
                Plan::flat(11).segments().iter().position(|member| *member == owner).unwrap();
            let (place, segment) = (&layout.places[tensor], &layout.segments[position]);
            assert!(segment.start <= place.start && place.end <= segment.end);
        }
    }
}
