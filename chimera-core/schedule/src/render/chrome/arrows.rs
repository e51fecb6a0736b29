//! Arrows of a trace: messages in flight from one worker to another.

use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use super::{MICROSECONDS, SizedProgram, Sizes};
use crate::analyze::memory::token_bytes;
use crate::analyze::{Event, Timeline, Work};
use crate::effects::{Token, TokenKind};
use crate::program::Program;

/// A token in flight from the cell that makes it to the cell of another worker that eats it.
pub(super) struct Travel<'t> {
    pub(super) token: Token,
    pub(super) from: &'t Event,
    pub(super) to: &'t Event,
}

/// All tokens that travel, in the order of the cells that eat them.
pub(super) fn travels<'t>(program: &Program, timeline: &'t Timeline) -> Vec<Travel<'t>> {
    let rules = program.rules();
    let cells = timeline.events.iter().filter_map(|event| match event.work {
        Work::Cell(cell) if event.end > event.start => Some((event, rules.cell_effects(&cell))),
        _ => None,
    });
    let cells: Vec<_> = cells.collect();
    let mut makers: FxHashMap<Token, &Event> = FxHashMap::default();
    for (event, effects) in &cells {
        makers.extend(effects.makes.iter().map(|token| (*token, *event)));
    }
    let mut travels = Vec::new();
    for (to, effects) in cells {
        for token in effects.eats {
            let from = makers.get(&token).copied().filter(|from| from.worker != to.worker);
            travels.extend(from.map(|from| Travel { token, from, to }));
        }
    }
    travels
}

/// The start and the end of an arrow for each token that travels, numbered from `first_id`; `first`
/// is the process of worker 0.
pub(super) fn arrows(
    sized: &SizedProgram<'_>,
    travels: &[Travel<'_>],
    first: usize,
    first_id: usize,
) -> Vec<Value> {
    let arrow = |(id, Travel { token, from, to }): (usize, &Travel<'_>)| {
        // An arrow belongs to the slice that contains its end, so it begins just before the end.
        let leaves = from.end - (from.end - from.start) / 100.0;
        let mut args = json!({
            "pipe": token.pipe.0, "stage": token.stage.0, "micro_batches": token.span.to_string(),
        });
        if token.skips() {
            args["to"] = json!(token.to.0);
        }
        if let Some(Sizes { bytes, samples, .. }) = sized.sizes {
            args["bytes"] = json!(token_bytes(sized.program.rules(), bytes, *samples, token));
        }
        [("s", *from, leaves), ("f", *to, to.start)].map(|(phase, at, time)| {
            json!({
                "ph": phase, "bp": "e", "id": id, "name": message(token.kind), "cat": "message",
                "pid": first + at.worker.index(), "tid": 0, "ts": time * MICROSECONDS, "args": args,
            })
        })
    };
    (first_id..).zip(travels).flat_map(arrow).collect()
}

fn message(kind: TokenKind) -> &'static str {
    match kind {
        TokenKind::Activation => "activation",
        _ => "gradient",
    }
}
