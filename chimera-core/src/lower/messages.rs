//! The pass that adds messages: a token that is eaten on another worker than it was made on is sent
//! right after it is made and received right before it is eaten.

use rustc_hash::FxHashMap;

use crate::effects::{Rules, Token};
use crate::ids::ChannelId;
use crate::op::{Cell, Kind};
use crate::placement::Placement;
use crate::program::{Channel, Instr};
use crate::timetable::Timetable;

/// The rows of `timetable` with sends and receives, and the channels they use, in order of first use.
///
/// Recomputations on demand run after the receives of the cell that they precede.
pub(super) fn insert(timetable: &Timetable, rules: &Rules) -> (Vec<Vec<Instr>>, Vec<Channel>) {
    let mut channels = Channels::default();
    let mut lower_row = |row: &Vec<Cell>| {
        let mut instrs = Vec::with_capacity(row.len() * 3);
        let mut waiting = Vec::new();
        for cell in row {
            let recomputes = matches!(cell, Cell::One(op) if op.kind == Kind::Recompute);
            if timetable.on_demand && recomputes {
                waiting.push(Instr::Run(*cell));
                continue;
            }
            let effects = rules.cell_effects(cell);
            let mut message =
                |token: &Token| Some((*token, channels.id(channel(&timetable.placement, token)?)));
            instrs.extend(
                effects.eats.iter().filter_map(&mut message).map(|(t, c)| Instr::Recv(t, c)),
            );
            instrs.append(&mut waiting);
            instrs.push(Instr::Run(*cell));
            instrs.extend(effects.makes.iter().filter_map(message).map(|(t, c)| Instr::Send(t, c)));
        }
        instrs.extend(waiting);
        instrs
    };
    let rows = timetable.rows.iter().map(&mut lower_row).collect();
    (rows, channels.all)
}

/// Channels, numbered as they come.
#[derive(Default)]
struct Channels {
    all: Vec<Channel>,
    ids: FxHashMap<Channel, ChannelId>,
}

impl Channels {
    fn id(&mut self, channel: Channel) -> ChannelId {
        *self.ids.entry(channel).or_insert_with(|| {
            self.all.push(channel);
            ChannelId(self.all.len() as u32 - 1)
        })
    }
}

/// The channel on which `token` travels, if it travels.
fn channel(placement: &Placement, token: &Token) -> Option<Channel> {
    let Token { kind, pipe, stage, to, .. } = *token;
    // A loss is on the worker of its stage.
    let edge = token.edge().filter(|_| stage.index() < placement.n_stages())?;
    let (from, to) = (placement.worker(pipe, stage), placement.worker(pipe, to));
    (from != to).then_some(Channel { from, to, pipe, edge, kind })
}
