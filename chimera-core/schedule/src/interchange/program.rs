//! A proven program as JSON, for executors in other languages.
//!
//! ```json
//! {
//!   "format": 0,
//!   "schedule": "1f1b", "depth": 2, "stages": 2, "micro_batches": 1, "units_per_micro": 1,
//!   "update": "flush", "steps": 1, "barrier": true,
//!   "placement": [[0, 1]],
//!   "channel_bound": 1,
//!   "fingerprint": "…",
//!   "tokens": [
//!     {"kind":"activation","pipe":0,"stage":0,"units":[0]}, …
//!   ],
//!   "buckets": [
//!     {"stages":[0],"members":[0],"update":0,"order":1}, …
//!   ],
//!   "one_order": [{"message":0}, {"reduction":1}, {"agreement":true}, …],
//!   "rows": [
//!     {"worker":0,"lane":"compute","instructions":[
//!       {"do":"run","ops":[{"kind":"F","pipe":0,"stage":0,"units":[0],"eats":[],"makes":[0,1]}]},
//!       {"do":"send","token":0,"to":1}, …
//!     ]}, …
//!   ]
//! }
//! ```
//!
//! A token is named by its place in `tokens`. An executor need not look it up: equal numbers are
//! the same value.
//!
//! If the units of a micro-batch are slices of its sequence, `"slices"` is their number, next to
//! `units_per_micro`.
//!
//! If saved activations are moved, each worker has a row for its lane `"moves"` too. Lanes run in
//! parallel: a lane waits for the tokens it eats, which the other one may make.
//! `{"do":"give","token":7}` makes a token that stands for memory, and `{"do":"take","token":7}`
//! waits for one and eats it. Such a token has the lane that frees the memory, as
//! `"lane":"compute"` or `"lane":"moves"`.
//!
//! Replicas that share weights send and gather them, and release what is not their own:
//! `{"do":"share","stage":0,"to":1,"gathering":0}`, `{"do":"gather","stage":0,"gathering":0}` and
//! `{"do":"drop","stage":0}`. Gatherings are numbered by worker.
//!
//! The names of a caller's own works are `"works"`. A piece of one is an op of kind `X`, with the
//! place of its name as `"work":0`. For a piece that may be done at any time, `units` is its
//! number.
//!
//! In a window of several updates an op names the weights that it reads without eating them:
//! `"reads":[{"stage":0,"version":2}]` are those that two updates of the program made, and
//! `"version":"newest"` those that its worker has. With `"predicted":true` it reads a prediction of
//! that version, made from the newest one and the state of the optimizer.
//!
//! Stages that are not a chain have a `"graph"` after the placement, in the form of a timetable's
//! JSON. Stages without trained weights are `"frozen":[0]`. A token that skips stages along its edge
//! has the stage that eats it as well as the one that makes it: `"stage":0,"to":3`.

use std::fmt::Write;

use rustc_hash::FxHashMap;

use super::form::Rule;
use super::json::{graph, ids, lines, list};
use super::reads::written_reads;
use crate::analyze::{Refusal, Together, prove_in_one_order, rows_in_one_order};
use crate::effects::{Effects, OwnWork, Token, TokenKind};
use crate::ir::ids::{StageId, WorkerId};
use crate::ir::op::{Kind, Lane, Op, Span};
use crate::program::{Bucket, Instr, Instruction, Program};

/// The version of the format. It changes whenever a reader of the last one could misunderstand.
pub const FORMAT: u32 = 0;

/// The program as JSON, one instruction per line, so that two programs can be compared by line.
pub fn program_to_json(program: &Program) -> String {
    let mut tokens = Numbered::default();
    let rows = rows(program, program.rows(), &mut tokens);
    let one_order = match prove_in_one_order(program) {
        Ok(order) => lines(order.iter().map(|event| together(event, &mut tokens))),
        Err(_) => "null".to_string(),
    };
    let placement = program.placement();
    let slices = match program.rules().n_slices() {
        1 => String::new(),
        n_slices => n_slices.to_string(),
    };
    let workers = |pipe: &Vec<WorkerId>| list(pipe.iter().map(|worker| worker.0.to_string()));
    let name = |work: &OwnWork| serde_json::Value::from(work.name.as_str()).to_string();
    let frozen = match program.rules().demand().frozen() {
        [] => String::new(),
        frozen => ids(frozen),
    };
    let micro_batches_of = match program.rules().demand().micro_batches_of() {
        [] => String::new(),
        counts => list(counts.iter().map(u32::to_string)),
    };
    let works = match program.rules().works() {
        [] => String::new(),
        works => list(works.iter().map(name)),
    };
    let mut out = String::from("{\n");
    for (key, value) in [
        ("format", FORMAT.to_string()),
        ("schedule", serde_json::Value::from(program.schedule()).to_string()),
        ("depth", placement.n_workers().to_string()),
        ("stages", placement.n_stages().to_string()),
        ("micro_batches", program.n_micro_batches().to_string()),
        ("micro_batches_of", micro_batches_of),
        ("units_per_micro", program.units_per_micro().to_string()),
        ("slices", slices),
        ("update", Rule::from(program.window().update()).to_string()),
        ("steps", program.window().n_steps().to_string()),
        ("barrier", program.has_barrier().to_string()),
        ("placement", lines(placement.pipes().iter().map(workers))),
        ("graph", graph(program.rules().graph())),
        ("frozen", frozen),
        ("channel_bound", program.channel_bound().to_string()),
        ("fingerprint", format!("\"{}\"", program.fingerprint())),
        ("tokens", lines(tokens.all.iter().map(token))),
        ("works", works),
        ("buckets", lines(program.buckets().iter().map(bucket))),
        ("one_order", one_order),
    ] {
        if !value.is_empty() {
            let _ = writeln!(out, r#"  "{key}": {value},"#);
        }
    }
    let _ = writeln!(out, "  \"rows\": {rows}\n}}");
    out
}

/// The rows of a program for transports without tags (see [`rows_in_one_order`]), in the form of
/// `rows` in [`program_to_json`] and with its numbers of tokens.
///
/// # Errors
/// If there is no such order.
pub fn rows_in_one_order_to_json(program: &Program) -> Result<String, Refusal> {
    let mut tokens = Numbered::default();
    rows(program, program.rows(), &mut tokens);
    Ok(rows(program, &rows_in_one_order(program)?, &mut tokens))
}

/// Tokens, numbered in order of appearance.
#[derive(Default)]
struct Numbered {
    all: Vec<Token>,
    numbers: FxHashMap<Token, usize>,
}

impl Numbered {
    fn number(&mut self, token: &Token) -> usize {
        *self.numbers.entry(*token).or_insert_with(|| {
            self.all.push(*token);
            self.all.len() - 1
        })
    }

    fn numbers(&mut self, tokens: &[Token]) -> String {
        numbers(tokens.iter().map(|token| self.number(token)))
    }
}

fn rows(program: &Program, rows: &[Vec<Instr>], tokens: &mut Numbered) -> String {
    let lanes: &[Lane] = if program.rules().has_moves() { &Lane::ALL } else { &[Lane::Compute] };
    let rows = rows.iter().enumerate();
    let lanes = rows.flat_map(|(worker, row)| lanes.iter().map(move |lane| (worker, row, *lane)));
    lines(lanes.map(|(worker, row, lane)| {
        let of_lane = row.iter().filter(|instr| instr.lane() == lane);
        let spelled_out = of_lane.map(|instr| program.spelled_out(instr));
        let instructions: Vec<String> =
            spelled_out.map(|step| format!("      {}", instruction(&step, tokens))).collect();
        let instructions = instructions.join(",\n");
        let lane = lane.name();
        format!(
            "{{\"worker\":{worker},\"lane\":\"{lane}\",\"instructions\":[\n{instructions}\n    ]}}"
        )
    }))
}

fn instruction(instruction: &Instruction, tokens: &mut Numbered) -> String {
    match instruction {
        Instruction::Run(ops) => {
            let op = |(op, effects): &(Op, Effects)| {
                let Effects { eats, makes, reads } = effects;
                let work = match op.kind {
                    Kind::Work(work) => format!(r#""work":{},"#, work.0),
                    _ => String::new(),
                };
                format!(
                    r#"{{"kind":"{}",{work}"pipe":{},"stage":{},"units":{},"eats":{},"makes":{}{}}}"#,
                    op.kind.letter(),
                    op.pipe.0,
                    op.stage.0,
                    units(op.span),
                    tokens.numbers(eats),
                    tokens.numbers(makes),
                    written_reads(reads)
                )
            };
            let ops: Vec<String> = ops.iter().map(op).collect();
            format!(r#"{{"do":"run","ops":[{}]}}"#, ops.join(","))
        }
        Instruction::Send { token, to } => {
            format!(r#"{{"do":"send","token":{},"to":{}}}"#, tokens.number(token), to.0)
        }
        Instruction::Recv { token, from } => {
            format!(r#"{{"do":"recv","token":{},"from":{}}}"#, tokens.number(token), from.0)
        }
        Instruction::Reduce(bucket) => format!(r#"{{"do":"reduce","bucket":{}}}"#, bucket.0),
        Instruction::Await(bucket) => format!(r#"{{"do":"await","bucket":{}}}"#, bucket.0),
        Instruction::Agree => r#"{"do":"agree"}"#.to_string(),
        Instruction::Step(bucket) => format!(r#"{{"do":"step","bucket":{}}}"#, bucket.0),
        Instruction::Give(token) => format!(r#"{{"do":"give","token":{}}}"#, tokens.number(token)),
        Instruction::Shard(op) => op.to_json(),
        Instruction::Take(token) => format!(r#"{{"do":"take","token":{}}}"#, tokens.number(token)),
    }
}

fn together(event: &Together, tokens: &mut Numbered) -> String {
    match event {
        Together::Message(token) => format!(r#"{{"message":{}}}"#, tokens.number(token)),
        Together::Reduction(bucket) => format!(r#"{{"reduction":{}}}"#, bucket.0),
        Together::Agreement => r#"{"agreement":true}"#.to_string(),
    }
}

fn token(token: &Token) -> String {
    let Token { kind, pipe, stage, to, span } = token;
    let frees = match kind {
        TokenKind::Memory(lane, _) => Some(lane),
        _ => None,
    };
    let kind = kind.name();
    let units = units(*span);
    let to = if token.skips() { format!(r#","to":{}"#, to.0) } else { String::new() };
    let lane = frees.map_or(String::new(), |lane| format!(r#","lane":"{}""#, lane.name()));
    let pipe = pipe.0;
    let stage = stage.0;
    format!(r#"{{"kind":"{kind}","pipe":{pipe},"stage":{stage}{to},"units":{units}{lane}}}"#)
}

fn bucket(bucket: &Bucket) -> String {
    let Bucket { stages, members, update, order } = bucket;
    let stages = numbers(stages.iter().copied().map(StageId::index));
    let members = numbers(members.iter().copied().map(WorkerId::index));
    format!(r#"{{"stages":{stages},"members":{members},"update":{update},"order":{order}}}"#)
}

fn units(span: Span) -> String {
    numbers(span.units().map(|unit| unit as usize))
}

fn numbers(all: impl Iterator<Item = usize>) -> String {
    let all: Vec<String> = all.map(|number| number.to_string()).collect();
    format!("[{}]", all.join(","))
}
