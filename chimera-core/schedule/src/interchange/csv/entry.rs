//! One cell of the CSV, which may be a message.

use super::action::{FOLLOWED, action, number, pair};
use crate::ir::op::Cell;

/// Messages of a file of the format `compute_comms`: the action, whether it sends, and whether it is
/// of an activation.
const MESSAGES: [(&str, bool, bool); 4] = [
    ("SEND_F", true, true),
    ("RECV_F", false, true),
    ("SEND_B", true, false),
    ("RECV_B", false, false),
];
/// Actions of such a file that follow from its messages and its ops. They say nothing more.
const FOLLOWING: [&str; 6] =
    ["WAIT_SEND_F", "WAIT_SEND_B", "UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD"];

/// A cell of a row.
pub(super) enum Entry {
    /// An op, or a pair of them.
    Cell(Cell),
    /// A message.
    Message(Message),
    /// An action that the other actions imply.
    Following,
}

/// One end of a message between ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Message {
    /// The stage at this end.
    pub(super) stage: u16,
    /// The micro-batch.
    pub(super) micro_batch: u32,
    /// Sends, or receives.
    pub(super) sends: bool,
    /// An activation, or a gradient.
    pub(super) is_activation: bool,
}

/// Reads a non-empty text, on pipe 0.
pub(super) fn read(text: &str) -> Result<Entry, String> {
    match text.strip_prefix('(') {
        Some(rest) => pair(rest).map(Entry::Cell),
        None => match communication(text)? {
            Some(entry) => Ok(entry),
            None => action(text).map(|op| Entry::Cell(Cell::One(op))),
        },
    }
}

/// Reads an action other than an op; `None` if it has another name.
pub(super) fn communication(text: &str) -> Result<Option<Entry>, String> {
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let named = text.get(digits(text)..).unwrap_or_default();
    let end = named.find(|c: char| c.is_ascii_digit()).unwrap_or(named.len());
    let name = &named[..end];
    let message = MESSAGES.iter().find(|(known, ..)| *known == name);
    if message.is_none() && !FOLLOWING.contains(&name) {
        return Ok(None);
    }
    let (stage, _) = number(text, "stage")?;
    let stage = u16::try_from(stage).map_err(|_| "the stage is too large")?;
    let Some((_, sends, is_activation)) = message.copied() else {
        return Ok(Some(Entry::Following));
    };
    let (micro_batch, rest) = number(&named[end..], "micro-batch")?;
    if !rest.is_empty() {
        return Err(FOLLOWED.into());
    }
    Ok(Some(Entry::Message(Message { stage, micro_batch, sends, is_activation })))
}
