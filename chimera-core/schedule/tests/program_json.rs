//! Programs as JSON are enough to execute them: a player without any rules finishes every one.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::io::Write;
use std::process::{Command, Stdio};

use chimera_schedule::analyze::{Together, prove_in_one_order, rows_in_one_order};
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::effects::Token;
use chimera_schedule::ids::BucketId;
use chimera_schedule::interchange::program_to_json;
use chimera_schedule::lower::{Lowering, Passes, Recompute, Sync, lower};
use chimera_schedule::op::{Cell, Op};
use chimera_schedule::program::{Instr, Program};
use chimera_schedule::schedule::{SCHEDULES, Scaling, Shape, find};
use serde_json::Value;

/// Programs of every schedule that has one of these shapes.
fn programs() -> Vec<Program> {
    let plain = [(2, 3), (4, 4), (4, 8), (4, 12)].map(|(d, n)| Shape::new(d, n));
    let more = [
        Shape { scaling: Scaling::Halving, ..Shape::new(4, 8) },
        Shape { scaling: Scaling::Doubling, n_pipes: 4, ..Shape::new(4, 16) },
    ];
    let policies = Sync::ALL.map(|(_, sync)| sync).into_iter().filter(|sync| sync.has_one_order());
    let policies: Vec<Sync> = policies.collect();
    let mut programs = Vec::new();
    for (s, schedule) in SCHEDULES.iter().enumerate() {
        for (i, shape) in plain.iter().chain(&more).enumerate() {
            let Ok(timetable) = schedule.timetable(shape) else {
                continue;
            };
            let sync = policies[(s + i) % policies.len()];
            let how = Lowering { sync, barrier: i % 2 == 0, ..Lowering::default() };
            programs.push(lower(&timetable, &how).expect("proven"));
        }
    }
    assert!(programs.len() > 50, "{}", programs.len());
    programs
}

fn recomputed() -> Program {
    let timetable = find("chimera").expect("known").timetable(&Shape::new(4, 4)).expect("fits");
    let passes = Passes { recompute: Recompute::Full, split_backward: true, ..Passes::default() };
    let how = Lowering::default();
    let passed = passes.apply(timetable, &how, &UniformCosts::EQUAL).expect("sound");
    lower(&passed, &how).expect("proven")
}

/// The number in a field of an instruction or an op.
fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{value} has no number {key}"))
}

fn numbers(value: &Value, key: &str) -> Vec<u64> {
    let list = value[key].as_array().unwrap_or_else(|| panic!("{value} has no list {key}"));
    list.iter().map(|n| n.as_u64().expect("a number")).collect()
}

fn array<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("{value} has no list {key}"))
}

/// Runs the file on all workers using only its content. Returns the number of instructions.
fn play(program: &Value) -> usize {
    let rows: Vec<&[Value]> =
        array(program, "rows").iter().map(|row| array(row, "instructions")).collect();
    let mut held: Vec<HashSet<u64>> = vec![HashSet::new(); rows.len()];
    let mut channels: HashMap<(u64, u64), HashSet<u64>> = HashMap::new();
    let mut started: HashMap<u64, BTreeSet<u64>> = HashMap::new();
    let mut next = vec![0; rows.len()];
    loop {
        let mut has_moved = false;
        for (w, row) in rows.iter().enumerate() {
            while let Some(step) = row.get(next[w]) {
                let me = w as u64;
                match step["do"].as_str().expect("a kind") {
                    "run" => {
                        for op in array(step, "ops") {
                            for token in numbers(op, "eats") {
                                assert!(held[w].remove(&token), "{op} has no {token}");
                            }
                            for token in numbers(op, "makes") {
                                assert!(held[w].insert(token), "{op} makes {token} again");
                            }
                        }
                    }
                    "send" => {
                        let (token, to) = (number(step, "token"), number(step, "to"));
                        assert!(held[w].remove(&token), "{step}");
                        assert!(channels.entry((me, to)).or_default().insert(token), "{step}");
                    }
                    "recv" => {
                        let (token, from) = (number(step, "token"), number(step, "from"));
                        if !channels.entry((from, me)).or_default().remove(&token) {
                            break;
                        }
                        assert!(held[w].insert(token), "{step}");
                    }
                    "reduce" => {
                        let bucket = number(step, "bucket");
                        assert!(started.entry(bucket).or_default().insert(me), "{step}");
                    }
                    "await" => {
                        let bucket = number(step, "bucket");
                        let members = &program["buckets"][bucket as usize];
                        let members: BTreeSet<u64> =
                            numbers(members, "members").into_iter().collect();
                        if started[&bucket] != members {
                            break;
                        }
                    }
                    "agree" | "step" => {}
                    other => panic!("unknown instruction {other}"),
                }
                next[w] += 1;
                has_moved = true;
            }
        }
        if !has_moved {
            break;
        }
    }
    for (w, row) in rows.iter().enumerate() {
        assert_eq!(next[w], row.len(), "worker {w} waits for ever");
        assert!(held[w].is_empty(), "worker {w} is left with {:?}", held[w]);
    }
    rows.iter().map(|row| row.len()).sum()
}

fn json(program: &Program) -> Value {
    serde_json::from_str(&program_to_json(program)).expect("JSON")
}

#[test]
fn a_player_without_rules_comes_to_the_end() {
    for program in programs().iter().chain([&recomputed()]) {
        let file = json(program);
        let n_instructions: usize = program.rows().iter().map(Vec::len).sum();
        assert_eq!(play(&file), n_instructions);
        assert_eq!(file["format"], 0);
        assert_eq!(file["fingerprint"], program.fingerprint());
        let proof = prove_in_one_order(program);
        assert_eq!(file["one_order"].is_null(), proof.is_err());
    }
}

#[test]
fn every_line_is_one_thing() {
    let timetable = find("1f1b").expect("known").timetable(&Shape::new(2, 1)).expect("fits");
    let mut text = program_to_json(&lower(&timetable, &Lowering::default()).expect("proven"));
    let hash = text.find("\"fingerprint\": \"").expect("a fingerprint") + 16;
    text.replace_range(hash..hash + 64, "…");
    let wanted = r#"{
  "format": 0,
  "schedule": "1f1b",
  "depth": 2,
  "stages": 2,
  "micro_batches": 1,
  "units_per_micro": 1,
  "update": "flush",
  "steps": 1,
  "barrier": true,
  "placement": [
    [0, 1]
  ],
  "channel_bound": 1,
  "fingerprint": "…",
  "tokens": [
    {"kind":"activation","pipe":0,"stage":0,"units":[0]},
    {"kind":"saved","pipe":0,"stage":0,"units":[0]},
    {"kind":"gradient","pipe":0,"stage":1,"units":[0]},
    {"kind":"gradient","pipe":0,"stage":2,"units":[0]},
    {"kind":"saved","pipe":0,"stage":1,"units":[0]}
  ],
  "buckets": [
    {"stages":[0],"members":[0],"update":0,"order":1},
    {"stages":[1],"members":[1],"update":0,"order":0}
  ],
  "one_order": [
    {"message":0},
    {"message":2},
    {"reduction":1},
    {"reduction":0},
    {"agreement":true}
  ],
  "rows": [
    {"worker":0,"lane":"compute","instructions":[
      {"do":"run","ops":[{"kind":"F","pipe":0,"stage":0,"units":[0],"eats":[],"makes":[0,1]}]},
      {"do":"send","token":0,"to":1},
      {"do":"recv","token":2,"from":1},
      {"do":"run","ops":[{"kind":"B","pipe":0,"stage":0,"units":[0],"eats":[1,2],"makes":[]}]},
      {"do":"reduce","bucket":0},
      {"do":"await","bucket":0},
      {"do":"agree"},
      {"do":"step","bucket":0}
    ]},
    {"worker":1,"lane":"compute","instructions":[
      {"do":"recv","token":0,"from":0},
      {"do":"run","ops":[{"kind":"F","pipe":0,"stage":1,"units":[0],"eats":[0],"makes":[3,4]}]},
      {"do":"run","ops":[{"kind":"B","pipe":0,"stage":1,"units":[0],"eats":[4,3],"makes":[2]}]},
      {"do":"send","token":2,"to":0},
      {"do":"reduce","bucket":1},
      {"do":"await","bucket":1},
      {"do":"agree"},
      {"do":"step","bucket":1}
    ]}
  ]
}
"#;
    assert_eq!(text, wanted);
}

/// The shared operation of an instruction, if other workers take part in it.
fn shared(instr: &Instr) -> Option<Together> {
    match *instr {
        Instr::Send(token, _) | Instr::Recv(token, _) => Some(Together::Message(token)),
        Instr::Reduce(bucket) => Some(Together::Reduction(bucket)),
        Instr::Agree => Some(Together::Agreement),
        _ => None,
    }
}

#[test]
fn rows_in_one_order_wait_for_nothing_out_of_turn() {
    for program in programs() {
        let rows = rows_in_one_order(&program).expect("there is an order");
        let order = prove_in_one_order(&program).expect("there is an order");
        let mut turns: Vec<VecDeque<Together>> = Vec::new();
        for (row, written) in rows.iter().zip(program.rows()) {
            let alone = |row: &[Instr]| -> Vec<Instr> {
                row.iter().filter(|i| shared(i).is_none()).copied().collect()
            };
            assert_eq!(alone(row), alone(written), "{}: only events move", program.schedule());
            assert_eq!(row.len(), written.len());
            let mut started: HashSet<BucketId> = HashSet::new();
            let mut here: HashSet<Token> = HashSet::new();
            for instr in row {
                match instr {
                    Instr::Recv(token, _) => _ = here.insert(*token),
                    Instr::Run(cell) => {
                        let effects = program.rules().cell_effects(cell);
                        for token in &effects.eats {
                            assert!(here.remove(token), "{cell} waits for {token}, not posted");
                        }
                        here.extend(effects.makes);
                    }
                    Instr::Send(token, _) => assert!(here.remove(token)),
                    Instr::Reduce(bucket) => _ = started.insert(*bucket),
                    Instr::Await(bucket) => assert!(started.contains(bucket)),
                    Instr::Agree | Instr::Step(_) => {}
                    unknown => panic!("{unknown:?} has no rule here"),
                }
            }
            turns.push(row.iter().filter_map(shared).collect());
        }
        // One after another, each by all members: so it ends on any transport.
        for event in order {
            let takers = turns.iter_mut().filter(|turn| turn.front() == Some(&event));
            let n_takers = takers.map(|turn| turn.pop_front()).count();
            assert!(n_takers > 0, "{}: nobody takes {event:?}", program.schedule());
        }
        assert!(turns.iter().all(VecDeque::is_empty), "{}", program.schedule());
    }
}

#[test]
fn ops_are_written_short() {
    let own: Cell = Op::forward(1, 2, 3).into();
    assert_eq!(own.to_string(), "F(pipe 1, stage 2, micro-batch 3)");
    assert_eq!(Op::forward(0, 0, 4).over(2).to_string(), "F(pipe 0, stage 0, micro-batch 4-5)");
    let kinds = [Op::backward, Op::backward_input, Op::backward_weight, Op::recompute];
    let letters: String = kinds.iter().map(|op| op(0, 0, 0).kind.letter()).collect();
    assert_eq!(letters, "BIWR");
}

/// The program in C that docs/library.md links to.
const READER_IN_C: &str = include_str!("../../../examples/reader.c");

#[test]
fn the_reader_in_c_plays_programs() {
    if Command::new("cc").arg("--version").output().is_err() {
        eprintln!("skipped: there is no C compiler");
        return;
    }
    let folder = std::env::temp_dir().join(format!("chimera-reader-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (source, reader) = (folder.join("reader.c"), folder.join("reader"));
    std::fs::write(&source, READER_IN_C).expect("written");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Werror", "-O1", "-o"]).args([&reader, &source]);
    assert!(cc.status().expect("cc").success(), "the reader does not compile");
    let read = |text: &str| {
        let mut child = Command::new(&reader)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the reader");
        child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("read");
        let output = child.wait_with_output().expect("ended");
        (output.status.success(), String::from_utf8(output.stdout).expect("text"))
    };
    for program in programs().iter().chain([&recomputed()]) {
        let n: usize = program.rows().iter().map(Vec::len).sum();
        let (d, name) = (program.placement().n_workers(), program.schedule());
        let said = format!("{name}: {d} workers did {n} instructions\n");
        assert_eq!(read(&program_to_json(program)), (true, said));
    }
    let text = program_to_json(&recomputed());
    let cut = text.replacen(r#""makes":[0,1]"#, r#""makes":[1]"#, 1);
    assert_ne!(cut, text);
    assert_eq!(read(&cut), (false, "worker 0 has no token 0\n".into()));
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// Returns true if some two workers receive messages in another order than they are sent.
fn cross(program: &Program, rows: &[Vec<Instr>]) -> bool {
    let mut sent: HashMap<(usize, u16), Vec<Token>> = HashMap::new();
    let mut received: HashMap<(usize, u16), Vec<Token>> = HashMap::new();
    for (w, instr) in rows.iter().enumerate().flat_map(|(w, row)| row.iter().map(move |i| (w, i))) {
        match *instr {
            Instr::Send(token, channel) => {
                let to = program.channels()[channel.index()].to;
                sent.entry((w, to.0)).or_default().push(token);
            }
            Instr::Recv(token, channel) => {
                let from = program.channels()[channel.index()].from;
                received.entry((from.index(), w as u16)).or_default().push(token);
            }
            _ => {}
        }
    }
    sent != received
}

/// Without tags these messages would get the wrong tensors, unless rows are brought into one order.
#[test]
fn messages_between_two_workers_cross_in_some_schedules() {
    let mut n_crossing: HashMap<&str, usize> = HashMap::new();
    for schedule in SCHEDULES {
        for (d, n) in [2, 4, 6, 8].into_iter().flat_map(|d| [1, 2, 3].map(|k| (d, k * d as u32))) {
            let shapes = [2, 4].map(|n_pipes| Shape { n_pipes, ..Shape::new(d, n) });
            for timetable in shapes.iter().filter_map(|shape| schedule.timetable(shape).ok()) {
                let program = lower(&timetable, &Lowering::default()).expect("proven");
                let crosses = cross(&program, program.rows());
                *n_crossing.entry(schedule.name()).or_default() += usize::from(crosses);
                let in_order = rows_in_one_order(&program).expect("there is an order");
                assert!(!cross(&program, &in_order), "{} at {d}, {n}", schedule.name());
            }
        }
    }
    let crossing = n_crossing.iter().filter(|(_, n)| **n > 0).map(|(name, _)| *name);
    let crossing: BTreeSet<&str> = crossing.collect();
    let known = ["dualpipe", "dualpipe-v", "hanayo", "mixpipe", "v-half", "v-min", "zb-v"];
    assert_eq!(crossing, BTreeSet::from(known));
}
