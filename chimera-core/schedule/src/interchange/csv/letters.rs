//! Letters for halves of backwards that earlier versions of PyTorch wrote.

use super::action::OLDER;
use super::place::Place;
use crate::interchange::json::ReadError;
use crate::ir::ids::StageId;
use crate::ir::op::Kind;

/// Refuses PyTorch's older letters, in which halves of backwards are `B` and `W`. `actions` are sorted.
pub(super) fn check_letters(actions: &[(Kind, StageId, u32, Place)]) -> Result<(), ReadError> {
    let is_of = |kind| move |action: &&(Kind, StageId, u32, Place)| action.0 == kind;
    if actions.iter().any(|action| action.0 == Kind::BackwardInput) {
        return Ok(());
    }
    let whole: Vec<_> = actions.iter().filter(is_of(Kind::Backward)).collect();
    let mut weights = actions.iter().filter(is_of(Kind::BackwardWeight));
    let both = weights.find(|(_, stage, unit, _)| {
        whole.binary_search_by_key(&(*stage, *unit), |(_, stage, unit, _)| (*stage, *unit)).is_ok()
    });
    match both {
        Some((_, stage, unit, place)) => Err(place.refuse(format!(
            "{0}W{unit} beside {0}B{unit}, which has the weights' half already; {OLDER}",
            stage.0
        ))),
        None => Ok(()),
    }
}
