//! One cell of the CSV: an action or a pair of them.

use crate::ir::ids::{PipeId, StageId};
use crate::ir::op::{Cell, Kind, Lane, Op, Span};

const PAIR: &str = "OVERLAP_F_B";
pub(super) const FOLLOWED: &str =
    "something follows the action: one action per cell, commas between cells";
/// The meaning of letters of earlier versions of PyTorch.
pub(super) const OLDER: &str = "in PyTorch's older letters BW is the whole backward and B its input half: write B for BW, \
                                and I for B";
/// An op, with the numbers of its stage and its micro-batch in the file.
pub(super) struct Action {
    pub(super) op: Op,
    pub(super) stage: usize,
    pub(super) micro_batch: u32,
}

/// The text of a cell of one op or of a pair.
pub(super) fn write(cell: &Cell, action_of: impl Fn(Op) -> Action) -> Result<String, String> {
    let one = |op: Op| write_one(&action_of(op));
    match *cell {
        Cell::One(op) => one(op),
        Cell::Pair(a, b) => {
            let (first, second) = (one(a)?, one(b)?);
            if is_pair(a.kind, b.kind) {
                Ok(format!("({first};{second}){PAIR}"))
            } else {
                Err(format!("{cell} is not of a forward and a backward"))
            }
        }
    }
}

fn has_word(kind: Kind) -> bool {
    kind != Kind::Recompute && kind.lane() == Lane::Compute
}

fn write_one(Action { op, stage, micro_batch }: &Action) -> Result<String, String> {
    match (op.kind, op.span.len) {
        (kind, _) if !has_word(kind) => Err(format!("it cannot express {op}")),
        (kind, 1) => Ok(format!("{stage}{}{micro_batch}", kind.letter())),
        _ => Err(format!("{op} is on several micro-batches at once")),
    }
}

/// Reads a pair after its parenthesis.
pub(super) fn pair(rest: &str) -> Result<Cell, String> {
    let (inside, name) = rest.split_once(')').ok_or("the `)` is missing")?;
    if name != PAIR {
        return Err(format!("a pair ends in `){PAIR}`"));
    }
    let actions: Vec<&str> = inside.splitn(3, ';').collect();
    let [first, second] = actions[..] else {
        return Err("a pair has two actions, with `;` between them".into());
    };
    let (a, b) = (action(first.trim())?, action(second.trim())?);
    if is_pair(a.kind, b.kind) {
        Ok(Cell::Pair(a, b))
    } else {
        Err("a pair is of one F and one B or I".into())
    }
}

fn is_pair(a: Kind, b: Kind) -> bool {
    let is_back = |kind| matches!(kind, Kind::Backward | Kind::BackwardInput);
    (a == Kind::Forward && is_back(b)) || (is_back(a) && b == Kind::Forward)
}

pub(super) fn action(text: &str) -> Result<Op, String> {
    let (stage, rest) = number(text, "stage")?;
    let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    let kind = Kind::from_letter(name).filter(|kind| has_word(*kind));
    let kind = kind.ok_or_else(|| {
        if name == "BW" {
            format!("unknown type: choose F, B, I or W; {OLDER}")
        } else if name.chars().any(|c| c.is_ascii_lowercase()) {
            "unknown type: choose F, B, I or W, in capitals".to_string()
        } else {
            "unknown type: choose F, B, I or W".to_string()
        }
    })?;
    let (micro_batch, rest) = number(rest, "micro-batch")?;
    if !rest.is_empty() {
        return Err(FOLLOWED.into());
    }
    let stage = StageId(u16::try_from(stage).map_err(|_| "the stage is too large")?);
    Ok(Op { kind, pipe: PipeId(0), stage, span: Span::one(micro_batch) })
}

/// The number at the start of `text`, and the rest.
pub(super) fn number<'t>(text: &'t str, what: &str) -> Result<(u32, &'t str), String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    if text.starts_with('#') {
        return Err("the file has no comments: write actions only, such as 0F3".into());
    }
    if digits.is_empty() {
        return Err(format!("the {what} is missing: write stage, type, micro-batch, such as 0F3"));
    }
    match digits.parse() {
        Ok(number) if number < u32::MAX => Ok((number, rest)),
        _ => Err(format!("the {what} is too large")),
    }
}
