//! `chimera schedule`.

use std::fs::{File, write};
use std::path::Path;
use std::process::{Command, Output};

use chimera::core::schedule::SCHEDULES;
use serde_json::{Value, json};

use crate::command::{Ran, chimera, folder};

/// All schedules and their variants, with a number of micro-batches that works on four workers.
const SHOWN: [(&str, u32); 24] = [
    ("gpipe", 5),
    ("dapple", 5),
    ("1f1b", 5),
    ("dapple --in-turn 2", 5),
    ("gems", 5),
    ("zb-h1", 5),
    ("zb-h2", 5),
    ("chimera", 5),
    ("chimera --pipes 4", 5),
    ("chimera --scaling halving", 5),
    ("interleaved", 8),
    ("dualpipe", 8),
    ("dualpipe-v", 9),
    ("pipedream", 5),
    ("pipedream-2bw --window 2", 5),
    ("timeprest", 5),
    ("pipeoptim", 5),
    ("zb-v", 5),
    ("v-half", 5),
    ("v-min", 5),
    ("hanayo", 5),
    ("hanayo --waves 1", 5),
    ("mixpipe", 5),
    ("mixpipe --in-flight 1", 5),
];

fn ok(line: &str) -> String {
    let ran = chimera(line);
    assert_eq!(ran.code, Some(0), "`{line}`: {}", ran.stderr);
    assert_eq!(ran.stderr, "", "`{line}`");
    ran.stdout
}

fn json(line: &str) -> Value {
    serde_json::from_str(&ok(line)).expect("JSON")
}

/// The timetable of `name` as JSON.
fn timetable(name: &str) -> Value {
    json(&format!("schedule show {name} --depth 4 --micro-batches 5 --format json"))
}

fn check_text(text: &[u8]) -> Ran {
    let folder = folder();
    let path = folder.path().join("schedule.json");
    write(&path, text).expect("a file");
    chimera(&format!("schedule check {}", path.display()))
}

#[test]
fn list_begins_each_line_with_a_name() {
    let listed = ok("schedule list");
    let names: Vec<_> = listed.lines().map(|line| line.split(' ').next()).collect();
    let known: Vec<_> = SCHEDULES.iter().map(|s| s.name()).chain(["auto"]).map(Some).collect();
    assert_eq!(names, known);
    for name in names.iter().flatten() {
        ok(&format!("schedule show {name} --micro-batches 8"));
    }
    let all = json("schedule list --json");
    let in_json = all.as_array().expect("a list").iter();
    assert!(in_json.map(|s| s["name"].as_str()).eq(names));
    assert_eq!(all[1]["aliases"][0], "dapple");
}

#[test]
fn show_draws_one_line_per_worker() {
    for (name, n) in SHOWN {
        let text = ok(&format!("schedule show {name} --depth 4 --micro-batches {n}"));
        for worker in 0..4 {
            let row = format!("P{worker} ");
            assert_eq!(text.lines().filter(|l| l.starts_with(&row)).count(), 1, "{text}");
        }
        assert!(text.contains("makespan"), "{text}");
    }
    let drawn = ok("schedule show chimera --depth 4 --micro-batches 4");
    assert!(drawn.starts_with("P0 0 1 . 2 2'- 3 3'- . 0'- . . 1'-\n"), "{drawn}");
    let uneven = ok("schedule show 1f1b --forward 0.37 --backward 0.77");
    let longest = uneven.lines().filter(|line| line.starts_with('P')).map(str::len).max();
    assert_eq!(longest, Some("P0 ".len() + 100), "{uneven}");
}

#[test]
fn pipes_have_colours_where_colours_are_wanted() {
    let drawn = |variable: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_chimera"));
        let command = command.args(["schedule", "show", "chimera", "--depth", "2"]);
        let command = command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
        let ran = command.env(variable, "1").output().expect("runs");
        String::from_utf8(ran.stdout).expect("text")
    };
    let (plain, coloured) = (drawn("NO_COLOR"), drawn("CLICOLOR_FORCE"));
    assert!(!plain.contains('\u{1b}'), "{plain}");
    let cyan_and_yellow = ["\u{1b}[36m", "\u{1b}[33m"];
    assert!(cyan_and_yellow.iter().all(|colour| coloured.contains(colour)), "{coloured}");
    let mut bare = coloured.replace("\u{1b}[0m", "");
    for colour in cyan_and_yellow {
        bare = bare.replace(colour, "");
    }
    assert_eq!(bare, plain);
}

#[test]
fn show_draws_svg() {
    for (name, n) in SHOWN {
        let svg = ok(&format!("schedule show {name} --depth 4 --micro-batches {n} --format svg"));
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert_eq!(svg.matches("<svg").count(), 1);
    }
}

#[test]
fn shown_json_has_the_form_that_was_promised() {
    let plain = timetable("chimera --pipes 4 --scaling direct");
    for (key, count) in [("depth", 4), ("stages", 4), ("pipes", 4), ("micro_batches", 5)] {
        assert_eq!(plain[key], count, "{key}");
    }
    assert_eq!(plain["schedule"], "chimera");
    assert_eq!(plain["placement"][0], serde_json::json!([0, 1, 2, 3]));
    assert_eq!(plain["placement"][2], serde_json::json!([3, 2, 1, 0]));
    assert_eq!(plain["rows"].as_array().map(Vec::len), Some(4));
    let cell = &plain["rows"][0][0];
    assert_eq!(
        cell,
        &serde_json::json!({"kind": "F", "pipe": 0, "stage": 0, "micro_batches": [0]})
    );
    assert_eq!(plain.get("unit"), None);
    let halved = timetable("chimera --scaling halving");
    assert_eq!(halved["unit"], 0.5);
    assert_eq!(halved["micro_batches"], 5);
    let cells = halved["rows"].as_array().expect("rows").iter().flat_map(|r| r.as_array());
    let ids = cells.flatten().filter_map(|c| Some(c["micro_batches"].as_array()?.len()));
    assert!(ids.clone().any(|n| n == 2) && ids.clone().any(|n| n == 1));
}

#[test]
fn what_is_shown_is_accepted() {
    for (name, n) in SHOWN {
        let shown = ok(&format!("schedule show {name} --depth 4 --micro-batches {n} --json"));
        let checked = check_text(shown.as_bytes());
        assert_eq!(checked.code, Some(0), "{name}: {}", checked.stderr);
        assert!(checked.stdout.starts_with("proven safe"), "{}", checked.stdout);
    }
}

#[test]
fn json_and_another_format_are_not_shown_at_once() {
    let ran = chimera("schedule show gpipe --json --format svg");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("'--json' cannot be used with '--format"), "{}", ran.stderr);
}

/// Some editors write one.
#[test]
fn a_byte_order_mark_is_skipped() {
    let marked = format!("\u{feff}{}", timetable("gems"));
    let checked = check_text(marked.as_bytes());
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_file_is_read_from_standard_input() {
    let read = |path: &Path| -> Output {
        Command::new(env!("CARGO_BIN_EXE_chimera"))
            .args(["schedule", "check", "-", "--json"])
            .stdin(File::open(path).expect("a file"))
            .output()
            .expect("runs")
    };
    let folder = folder();
    let (good, bad) = (folder.path().join("good"), folder.path().join("bad"));
    write(&good, timetable("gems").to_string()).expect("a file");
    write(&bad, "{}").expect("a file");
    let accepted = read(&good);
    assert_eq!(accepted.status.code(), Some(0));
    let proof: Value = serde_json::from_slice(&accepted.stdout).expect("JSON");
    assert_eq!((&proof["proven"], &proof["schedule"]), (&true.into(), &"gems".into()));
    assert_eq!((&proof["makespan"], &proof["peak_micro_batches"][0]), (&48.0.into(), &1.0.into()));
    let refused = read(&bad);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(3), 0));
}

/// Checks that a timetable is refused with the exit code of schedules and nothing on standard
/// output. Returns the message.
fn refusal(timetable: &Value) -> String {
    let ran = check_text(timetable.to_string().as_bytes());
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), ""), "{}", ran.stderr);
    ran.stderr
}

/// Returns true if a line of carets stands under a cell that exists.
fn is_drawn(refusal: &str) -> bool {
    let lines: Vec<&str> = refusal.lines().collect();
    let caret = lines.iter().position(|l| l.contains('^') && l.trim_matches([' ', '^']).is_empty());
    caret.is_some_and(|at| {
        let start = lines[at].find('^').unwrap_or(0);
        at > 0 && lines[at - 1].chars().nth(start).is_some_and(|c| c != ' ')
    })
}

fn row(timetable: &mut Value, worker: usize) -> &mut Vec<Value> {
    timetable["rows"][worker].as_array_mut().expect("a row")
}

#[test]
fn swapped_ops_are_refused_and_drawn() {
    let mut damaged = timetable("gems");
    row(&mut damaged, 0).swap(0, 1); // a backward before its forward
    let refusal = refusal(&damaged);
    assert!(refusal.contains("worker 0, cell 0"), "{refusal}");
    assert!(is_drawn(&refusal), "{refusal}");
}

#[test]
fn a_deadlock_names_who_waits_for_whom() {
    let mut damaged = timetable("gems");
    row(&mut damaged, 1).swap(0, 3);
    let refusal = refusal(&damaged);
    assert!(refusal.contains("deadlock: worker 0 waits at cell 1 for gradient"), "{refusal}");
    assert!(is_drawn(&refusal), "{refusal}");
}

#[test]
fn an_op_on_the_wrong_worker_is_refused_and_drawn() {
    let mut damaged = timetable("chimera");
    let moved = row(&mut damaged, 2).remove(1);
    row(&mut damaged, 1).insert(1, moved);
    let refusal = refusal(&damaged);
    assert!(
        refusal.contains("worker 1, cell 1: F(") && refusal.contains("belongs to worker 2"),
        "{refusal}"
    );
    assert!(is_drawn(&refusal), "{refusal}");
}

#[test]
fn an_op_done_twice_is_refused_and_drawn() {
    let mut damaged = timetable("dapple");
    let again = row(&mut damaged, 3)[0].clone();
    row(&mut damaged, 3).push(again);
    let refusal = refusal(&damaged);
    assert!(
        refusal.contains("worker 3, cell 10") && refusal.contains("repeats what was done already"),
        "{refusal}"
    );
    assert!(is_drawn(&refusal), "{refusal}");
}

#[test]
fn a_dropped_op_is_named() {
    let mut damaged = timetable("dapple");
    let dropped = row(&mut damaged, 1).remove(2);
    assert_eq!((&dropped["kind"], &dropped["stage"]), (&"F".into(), &1.into()));
    let refusal = refusal(&damaged);
    let expected =
        format!("micro-batch {} never has its forward on stage 1", dropped["micro_batches"][0]);
    assert!(refusal.contains(&expected), "{refusal}");
    // A missing op is marked after the last cell of the row that should have it.
    assert!(refusal.contains("worker 1, cell 9"), "{refusal}");
    let drawing = "0 1 0' 3 1' 4 2' 3' 4'\n                       ^";
    assert!(refusal.contains(drawing), "{refusal}");
}

#[test]
fn a_recomputation_or_a_move_that_is_forgotten_is_named() {
    let op = |kind: &str, unit: u32| json!({"kind": kind, "pipe": 0, "stage": 0, "micro_batches": [unit]});
    let own = |row: &[(&str, u32)]| {
        let row: Vec<Value> = row.iter().map(|(kind, unit)| op(kind, *unit)).collect();
        json!({"schedule": "mine", "depth": 1, "stages": 1, "pipes": 1, "micro_batches": 2,
               "placement": [[0]], "rows": [row]})
    };
    let forgotten = own(&[("F", 0), ("F", 1), ("R", 0), ("B", 0), ("B", 1)]);
    let told = refusal(&forgotten);
    assert!(
        told.contains("worker 0, cell 5: micro-batch 1 has no R (recompute) on stage 0"),
        "{told}"
    );
    assert!(told.contains("Give each of them an R, or none"), "{told}");
    let away = own(&[("F", 0), ("O", 0), ("F", 1), ("B", 1), ("B", 0)]);
    let told = refusal(&away);
    let hint = "worker 0, cell 1: micro-batch 0 has O (offload) on stage 0, but no L (reload)";
    assert!(told.contains(hint) && is_drawn(&told), "{told}");
    let back = own(&[("F", 0), ("F", 1), ("B", 1), ("L", 0), ("B", 0)]);
    let told = refusal(&back);
    let hint = "worker 0, cell 3: micro-batch 0 has L (reload) on stage 0, but no O (offload)";
    assert!(told.contains(hint) && is_drawn(&told), "{told}");
}

/// N counts the micro-batches of a step, whatever the window.
#[test]
fn micro_batches_of_a_window_are_told_by_step() {
    let folder = folder();
    let file = folder.path().join("window.json");
    let window = "pipedream --depth 3 --micro-batches 4 --window 3";
    write(&file, ok(&format!("schedule show {window} --json"))).expect("a file");
    let proof = ok(&format!("schedule check {} --json", file.display()));
    let proof: Value = serde_json::from_str(&proof).expect("JSON");
    assert_eq!([&proof["micro_batches"], &proof["steps"]], [4, 3]);
    let page = ok(&format!("schedule export {window} --format html"));
    assert!(page.contains("N = 4, 3 steps"), "{page}");
    for (name, n) in [("micro-batches of a step", 4), ("steps", 3)] {
        assert!(page.contains(&format!("<td>{name}</td><td>{n}</td>")), "{page}");
    }
}

#[test]
fn a_worker_without_a_stage_holds_no_weights() {
    let mut idle = timetable("gpipe");
    idle["depth"] = json!(5);
    idle["rows"].as_array_mut().expect("rows").push(json!([]));
    let folder = folder();
    let file = folder.path().join("idle.json");
    write(&file, idle.to_string()).expect("a file");
    let proof = ok(&format!("schedule check {} --json", file.display()));
    let proof: Value = serde_json::from_str(&proof).expect("JSON");
    assert_eq!(proof["weight_versions"], json!([1, 1, 1, 1, 0]));
}

#[test]
fn work_is_no_part_of_a_timetable() {
    let shown = chimera("schedule show gpipe --depth 2 --work a=1 --format json");
    assert!(shown.stderr.contains("`work` has no effect: "), "{}", shown.stderr);
    let plain = chimera("schedule show gpipe --depth 2 --json");
    assert_eq!((shown.stdout, plain.stderr.as_str()), (plain.stdout, ""));
}

#[test]
fn a_gallery_has_a_drawing_of_every_schedule() {
    let folder = folder();
    ok(&format!("schedule gallery --out {}", folder.path().join("g").display()));
    let page = std::fs::read_to_string(folder.path().join("g/README.md")).expect("a page");
    let mut names: Vec<String> = SCHEDULES.iter().map(|s| s.name().to_string()).collect();
    names.extend(["comparison", "chimera-pipes-4", "chimera-scaling-direct"].map(String::from));
    for name in names {
        assert!(page.contains(&format!("({name}.svg)")), "{name}: {page}");
        let svg = std::fs::read_to_string(folder.path().join(format!("g/{name}.svg")));
        assert!(svg.is_ok_and(|svg| svg.starts_with("<svg")), "{name}");
    }
}
