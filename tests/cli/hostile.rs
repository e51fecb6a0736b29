//! Untrusted schedule files.

use std::fs::{File, write};
use std::time::{Duration, Instant};

use crate::command::{chimera, folder};

/// Checks that a file is refused as JSON.
fn refuse(name: &str, bytes: &[u8]) {
    refuse_file("hostile.json", name, bytes);
}

/// Checks that a schedule is soon refused, with one short message and nothing else.
fn refuse_file(file: &str, name: &str, bytes: &[u8]) {
    let folder = folder();
    let path = folder.path().join(file);
    write(&path, bytes).expect("a file");
    let began = Instant::now();
    let ran = chimera(&format!("schedule check {}", path.display()));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), ""), "{name}: {}", ran.stderr);
    assert!(ran.stderr.starts_with("error: ") && ran.stderr.len() < 1000, "{name}: {}", ran.stderr);
    assert!(began.elapsed() < Duration::from_secs(20), "{name} takes {:?}", began.elapsed());
}

/// A file with these counts and a single op.
fn counting(depth: &str, stages: &str, pipes: &str, micro_batches: &str) -> String {
    format!(
        r#"{{"schedule":"x","depth":{depth},"stages":{stages},"pipes":{pipes},
            "micro_batches":{micro_batches},"placement":[[0]],
            "rows":[[{{"kind":"F","pipe":0,"stage":0,"micro_batches":[0]}}]]}}"#
    )
}

#[test]
fn what_is_no_timetable_is_refused() {
    for text in ["", " ", "null", "[]", "{}", "3", "\"x\"", "{\"depth\"", "nonsense", "\u{feff}{}"]
    {
        refuse(text, text.as_bytes());
    }
    refuse("binary", &(0..=255u8).cycle().take(100_000).collect::<Vec<_>>());
    refuse("zeros", &[0; 100_000]);
}

#[test]
fn deep_nesting_is_refused() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("{\"rows\":[", "]}")] {
        let (up, down) = (open.repeat(100_000), close.repeat(100_000));
        refuse(open, up.as_bytes());
        refuse(open, format!("{up}{down}").as_bytes());
    }
    let deep = counting("1", "1", "1", "1").replace("[[0]]", &"[".repeat(100_000));
    refuse("placement", deep.as_bytes());
}

#[test]
fn counts_that_nothing_stands_behind_are_refused() {
    for huge in ["1000000000", "4294967295", "18446744073709551615", "1e9", "-1", "0", "1e400"] {
        refuse(huge, counting(huge, "1", "1", "1").as_bytes());
        refuse(huge, counting("1", huge, "1", "1").as_bytes());
        refuse(huge, counting("1", "1", huge, "1").as_bytes());
        refuse(huge, counting("1", "1", "1", huge).as_bytes());
        refuse(huge, counting(huge, huge, huge, huge).as_bytes());
    }
    let far = counting("1", "1", "1", "1").replace("es\":[0]", "es\":[1000000000]");
    refuse("far micro-batch", far.as_bytes());
    let cells = "{\"kind\":\"F\",\"pipe\":0,\"stage\":0,\"micro_batches\":[0]},".repeat(200_000);
    refuse(
        "many cells",
        counting("1", "1", "1", "1").replace("[[{", &format!("[[{cells}{{")).as_bytes(),
    );
}

#[test]
fn what_is_no_csv_of_a_schedule_is_refused() {
    let refuse = |name: &str, bytes: &[u8]| refuse_file("hostile.csv", name, bytes);
    for text in ["", "\n", ",", "{}", "0F0", "0F0,0B", "\u{feff}", "\"0F0,0B0\"", "0F0;0B0"] {
        refuse(text, text.as_bytes());
    }
    refuse("binary", &(0..=255u8).cycle().take(100_000).collect::<Vec<_>>());
    refuse("zeros", &[0; 100_000]);
    for huge in ["4000000000", "4294967295", "18446744073709551616", "-1", "1e9"] {
        refuse(huge, format!("0F{huge},0B{huge}").as_bytes());
        refuse(huge, format!("{huge}F0,{huge}B0").as_bytes());
    }
    refuse("many cells", "0F0,0B0,".repeat(3 << 20).as_bytes());
    refuse("many rows", "0F0,0B0\n".repeat(1 << 20).as_bytes());
    refuse("many commas", &vec![b','; 60 << 20]);
    refuse("deep", "(".repeat(1 << 20).as_bytes());
}

#[test]
fn every_truncation_is_refused() {
    let good = chimera("schedule show chimera --depth 2 --micro-batches 2 --format json").stdout;
    let length = good.trim_end().len();
    for end in (0..length).step_by(length / 40) {
        refuse(&format!("{end} bytes"), &good.as_bytes()[..end]);
    }
}

/// A sparse file: larger than any file that is read, without using space.
#[test]
fn a_file_beyond_the_limit_is_not_read() {
    let folder = folder();
    let path = folder.path().join("sparse.json");
    let file = File::create(&path).expect("a file");
    if file.set_len(1 << 40).is_err() {
        return; // a file system without sparse files cannot run this test
    }
    let ran = chimera(&format!("schedule check {}", path.display()));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), ""));
    assert!(ran.stderr.contains("more than 64 MiB"), "{}", ran.stderr);
}
