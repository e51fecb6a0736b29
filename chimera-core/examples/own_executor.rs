//! A custom executor. It runs a program by its instructions, and needs no rules of schedules.
//! Stages multiply a number, `y = w x`, and the loss is the sum of the last stage's outputs.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;

use chimera_core::effects::{Effects, Token, TokenKind};
use chimera_core::op::{Kind, Op};
use chimera_core::prelude::*;
use chimera_core::program::Instruction::{self, Agree, Await, Reduce, Step};

/// The state of one worker: its tokens, and the gradient of each stage's weight.
#[derive(Default)]
struct Worker {
    values: HashMap<Token, f64>,
    gradients: BTreeMap<StageId, f64>,
}

fn weight(stage: StageId) -> f64 {
    1.0 + stage.index() as f64
}

impl Worker {
    fn run(&mut self, op: &Op, Effects { eats, makes, .. }: &Effects) {
        let eaten: HashMap<_, _> = eats.iter().map(|t| (t.kind, self.values.remove(t))).collect();
        let of = |kind| eaten.get(&kind).copied().flatten();
        let (x, dy) = match op.kind {
            Kind::Forward => (of(TokenKind::Activation), None),
            Kind::Backward => (of(TokenKind::Saved), of(TokenKind::Gradient)),
            kind => panic!("{kind:?} is nothing that this executor knows"),
        };
        let (w, x) = (weight(op.stage), x.unwrap_or(f64::from(op.span.start))); // the sample
        *self.gradients.entry(op.stage).or_default() += dy.map_or(0.0, |dy| dy * x);
        self.values.extend(makes.iter().map(|token| match token.kind {
            TokenKind::Activation => (*token, w * x),
            TokenKind::Saved => (*token, x),
            _ => (*token, dy.map_or(1.0, |dy| dy * w)),
        }));
    }
}

/// Runs all rows in turn, each as far as its messages have arrived.
fn execute(program: &Program) -> Vec<Worker> {
    let rows = (0..program.rows().len()).map(|w| program.instructions(WorkerId(w as u16)));
    let mut rows: Vec<_> = rows.map(Iterator::peekable).collect();
    let mut workers: Vec<Worker> = rows.iter().map(|_| Worker::default()).collect();
    let mut wires: HashMap<(WorkerId, Token), f64> = HashMap::new();
    while rows.iter_mut().any(|row| row.peek().is_some()) {
        for (me, (row, worker)) in rows.iter_mut().zip(&mut workers).enumerate() {
            match row.peek() {
                None => continue,
                Some(Instruction::Run(ops)) => ops.iter().for_each(|(op, fx)| worker.run(op, fx)),
                Some(Instruction::Send { token, to }) => {
                    wires.extend(worker.values.remove(token).map(|value| ((*to, *token), value)));
                }
                Some(Instruction::Recv { token, .. }) => {
                    let arrived = wires.remove(&(WorkerId(me as u16), *token));
                    let Some(value) = arrived else { continue }; // it has not arrived
                    worker.values.extend([(*token, value)]);
                }
                Some(Reduce(_) | Await(_) | Agree | Step(_)) => {} // left to its caller
                unknown => panic!("{unknown:?} is nothing that this executor knows"),
            }
            row.next();
        }
    }
    workers
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let program = lower(&find("chimera")?.timetable(&Shape::new(4, 8))?, &Lowering::default())?;
    let workers = execute(&program);
    for stage in (0..4).map(StageId) {
        let sum: f64 = workers.iter().filter_map(|worker| worker.gradients.get(&stage)).sum();
        println!("the gradient of {stage} is {sum}"); // the samples' sum, times other weights
        assert_eq!(sum, 28.0 * 24.0 / weight(stage));
    }
    Ok(())
}
