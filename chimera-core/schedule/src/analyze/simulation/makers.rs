//! The events that made the inputs of each cell, found by walking rows beside their events. A walk
//! only holds the tokens that are live in one row, so it takes linear time and little memory.

use rustc_hash::FxHashMap;

use super::input::{Input, Maker};
use super::moved::MovedActivations;
use super::timeline::{Timeline, Work};
use crate::effects::{Effects, Token};
use crate::ir::ids::{ChannelId, WorkerId};
use crate::ir::op::{Cell, Lane};
use crate::program::{Instr, Program};

/// The makers of the inputs of all cells. The events of a worker are those of its row's cells, in
/// order; some may be missing.
pub(in crate::analyze) struct Makers<'p> {
    program: &'p Program,
    /// By worker: the event of each compute cell of its row, up to the last that has one.
    cells: Vec<Vec<Option<Maker>>>,
    /// By channel: the makers of its messages, in order.
    sent: Vec<Vec<Option<Maker>>>,
    pub(in crate::analyze) moved: MovedActivations,
}

impl<'p> Makers<'p> {
    pub(in crate::analyze) fn of(program: &'p Program, timeline: &Timeline) -> Makers<'p> {
        let rows = program.rows();
        let mut makers = Makers {
            program,
            // A cell has about one send and one receive.
            cells: rows.iter().map(|row| Vec::with_capacity(row.len() / 3)).collect(),
            sent: vec![Vec::new(); program.channels().len()],
            moved: MovedActivations::of(program, timeline),
        };
        let mut left: Vec<&[Instr]> = rows.iter().map(|row| &row[..]).collect();
        for (index, event) in (0..).zip(&timeline.events) {
            let Work::Cell(cell) = event.work else { continue };
            if let Some(left) = left.get_mut(event.worker.index()) {
                let maker = Maker { event: index, end: event.end };
                *left = makers.add(event.worker, left, &cell, maker);
            }
        }
        makers
    }

    /// Adds the event of the next cell in a row of which `left` is left. Returns the rest.
    fn add<'r>(
        &mut self,
        worker: WorkerId,
        mut left: &'r [Instr],
        cell: &Cell,
        maker: Maker,
    ) -> &'r [Instr] {
        // A message follows the cell that made it.
        let mut last = None;
        while let [instr, rest @ ..] = left {
            match instr {
                Instr::Run(next) if next.lane() == Lane::Compute => {
                    if last.is_some() {
                        break;
                    }
                    last = Some(maker).filter(|_| next == cell);
                    self.cells[worker.index()].push(last);
                }
                Instr::Send(token, channel) if token.edge().is_some() => {
                    self.sent[channel.index()].push(last);
                }
                _ => {}
            }
            left = rest;
        }
        left
    }

    /// Visits each cell of a row that has an event, with the tokens that it eats, and the messages
    /// that are received right before it.
    pub(in crate::analyze) fn each_cell(
        &self,
        worker: WorkerId,
        mut visit: impl FnMut((&Cell, Maker), &[Input], &[Input]),
    ) {
        let rules = self.program.rules();
        let mut effects = Effects::default();
        let mut events = self.cells[worker.index()].iter();
        let mut walk = Walk::new(self);
        for instr in &self.program.rows()[worker.index()] {
            match instr {
                Instr::Recv(token, channel) if token.edge().is_some() => {
                    walk.receive(*token, *channel);
                }
                Instr::Send(token, _) => walk.made.retain(|input| input.token != *token),
                Instr::Run(cell) if cell.lane() == Lane::Compute => {
                    let Some(event) = events.next() else { return };
                    rules.set_cell_effects(cell, &mut effects);
                    walk.eat(worker, &effects);
                    if let Some(event) = event {
                        visit((cell, *event), &walk.eaten, &walk.received);
                    }
                    walk.make(&effects, *event);
                }
                _ => {}
            }
        }
    }
}

/// The tokens of a row at one place.
struct Walk<'m> {
    makers: &'m Makers<'m>,
    /// Number of messages that the row has received, by channel.
    n_received: Vec<usize>,
    /// Messages since the last cell.
    received: Vec<Input>,
    /// Tokens that the last cell made and that were not sent.
    made: Vec<Input>,
    /// The tokens that the next cell eats.
    eaten: Vec<Input>,
    /// All other live tokens.
    held: FxHashMap<Token, Input>,
}

impl<'m> Walk<'m> {
    fn new(makers: &'m Makers<'m>) -> Walk<'m> {
        Walk {
            makers,
            n_received: vec![0; makers.sent.len()],
            received: Vec::new(),
            made: Vec::new(),
            eaten: Vec::new(),
            held: FxHashMap::default(),
        }
    }

    fn receive(&mut self, token: Token, channel: ChannelId) {
        let nth = &mut self.n_received[channel.index()];
        if let Some(Some(maker)) = self.makers.sent[channel.index()].get(*nth) {
            self.received.push(Input { token, maker: *maker, is_own: false });
        }
        *nth += 1;
    }

    /// Finds the tokens that a cell eats.
    fn eat(&mut self, worker: WorkerId, effects: &Effects) {
        self.eaten.clear();
        self.held.extend(self.made.drain(..).map(|input| (input.token, input)));
        for token in &effects.eats {
            let received = self.received.iter().find(|input| input.token == *token).copied();
            let input = received
                .or_else(|| self.held.remove(token))
                .or_else(|| self.makers.moved.input(worker, token));
            self.eaten.extend(input);
        }
    }

    /// Adds the tokens that a cell with this event made.
    fn make(&mut self, effects: &Effects, event: Option<Maker>) {
        // A message may be received before another cell than the one that eats it.
        for input in self.received.drain(..) {
            if !effects.eats.contains(&input.token) {
                self.held.insert(input.token, input);
            }
        }
        if let Some(maker) = event {
            let own = |token: &Token| Input { token: *token, maker, is_own: true };
            self.made.extend(effects.makes.iter().map(own));
        }
    }
}
