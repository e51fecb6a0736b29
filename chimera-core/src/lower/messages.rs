//! The pass that adds messages: a token that is eaten on another worker than it was made on is sent
//! right after it is made and received right before it is eaten.

use rustc_hash::FxHashMap;

use super::{Channel, Instr};
use crate::effects::{Rules, Token, TokenKind};
use crate::ids::{ChannelId, StageId};
use crate::op::Cell;
use crate::placement::Placement;
use crate::timetable::Timetable;

/// The rows of `timetable` with sends and receives, and the channels they use.
pub(super) fn insert(timetable: &Timetable, rules: &Rules) -> (Vec<Vec<Instr>>, Vec<Channel>) {
    let placement = &timetable.placement;
    let channels = channels(placement);
    let ids: FxHashMap<Channel, ChannelId> = channels
        .iter()
        .enumerate()
        .map(|(i, c)| (*c, ChannelId(i as u32)))
        .collect();
    let lower_row = |row: &Vec<Cell>| {
        let mut instrs = Vec::with_capacity(row.len() * 3);
        for cell in row {
            let effects = rules.cell_effects(cell);
            let message = |token: &Token| Some((*token, ids[&channel(placement, token)?]));
            instrs.extend(
                effects
                    .eats
                    .iter()
                    .filter_map(message)
                    .map(|(t, c)| Instr::Recv(t, c)),
            );
            instrs.push(Instr::Run(*cell));
            instrs.extend(
                effects
                    .makes
                    .iter()
                    .filter_map(message)
                    .map(|(t, c)| Instr::Send(t, c)),
            );
        }
        instrs
    };
    (timetable.rows.iter().map(lower_row).collect(), channels)
}

/// The channel on which `token` travels, if it travels.
fn channel(placement: &Placement, token: &Token) -> Option<Channel> {
    let stage = |index: u16| StageId(index);
    let (from, to, boundary) = match token.kind {
        TokenKind::Activation => (token.stage.0, token.stage.0 + 1, token.stage.0 + 1),
        TokenKind::Gradient if token.stage.index() < placement.n_stages() => {
            (token.stage.0, token.stage.0.checked_sub(1)?, token.stage.0)
        }
        _ => return None,
    };
    let pipe = token.pipe;
    let (from, to) = (
        placement.worker(pipe, stage(from)),
        placement.worker(pipe, stage(to)),
    );
    (from != to).then_some(Channel {
        from,
        to,
        pipe,
        boundary: stage(boundary),
        kind: token.kind,
    })
}

/// Every channel a timetable of this placement can use, sorted.
fn channels(placement: &Placement) -> Vec<Channel> {
    let mut channels = Vec::new();
    for (p, workers) in placement.pipes().iter().enumerate() {
        for (b, pair) in workers
            .windows(2)
            .enumerate()
            .filter(|(_, pair)| pair[0] != pair[1])
        {
            let (pipe, boundary) = (crate::ids::PipeId(p as u16), StageId(b as u16 + 1));
            let one_way = |from, to, kind| Channel {
                from,
                to,
                pipe,
                boundary,
                kind,
            };
            channels.push(one_way(pair[0], pair[1], TokenKind::Activation));
            channels.push(one_way(pair[1], pair[0], TokenKind::Gradient));
        }
    }
    channels.sort_unstable();
    channels
}
