//! `--out`: a file whose ending is the format.

use std::fs::read_to_string;

use serde_json::Value;

use crate::command::{chimera, folder};

#[test]
fn the_ending_of_a_file_is_its_format() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    for command in [
        "schedule show chimera -D 4 -N 4",
        "schedule compare chimera 1f1b -D 4 -N 4",
        "schedule export 1f1b -D 4 -N 4",
        "simulate 1f1b -D 4 -N 4",
    ] {
        let written = |name: &str| {
            let ran = chimera(&format!("{command} --out {}", at(name)));
            assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{command} {name}");
            assert!(ran.stdout.starts_with("wrote "), "{command}: {}", ran.stdout);
            read_to_string(at(name)).expect("a file")
        };
        let text = written("a.txt");
        assert!(text.contains("P0 ") || text.contains("1f1b"), "{command}: {text}");
        let svg = written("a.svg");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{command}");
        let page = written("a.html");
        assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<svg"), "{command}");
        serde_json::from_str::<Value>(&written("a.json")).expect("JSON");
    }
}

#[test]
fn csv_is_what_programs_read() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    for (command, start) in [
        ("schedule show 1f1b", "0F0,"),
        ("schedule export 1f1b", "0F0,"),
        (
            "schedule compare 1f1b chimera",
            "schedule,makespan,speed-up,bubble_ratio,peak,copies,messages\n\"chimera\",16,",
        ),
        ("simulate 1f1b", "worker,busy,idle,peak_micro_batches\n0,12,9,4\n"),
    ] {
        let ran = chimera(&format!("{command} -D 4 -N 4 -o {}", at("a.csv")));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{command}");
        let text = read_to_string(at("a.csv")).expect("a file");
        assert!(text.starts_with(start), "{command}: {text}");
    }
}

#[test]
fn a_gallery_can_be_one_page() {
    let folder = folder();
    let page = folder.path().join("gallery.html");
    let ran = chimera(&format!("schedule gallery --out {}", page.display()));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(read_to_string(page).expect("a file").matches("<svg").count() > 20);
}

#[test]
fn other_endings_are_refused() {
    for line in ["schedule show 1f1b --out a.gif", "simulate 1f1b --out drawing"] {
        let ran = chimera(line);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{line}");
        assert!(ran.stderr.contains("choose one of .txt, .svg, "), "{}", ran.stderr);
    }
}

#[cfg(not(feature = "paper"))]
#[test]
fn pictures_need_the_feature_paper() {
    for ending in ["png", "pdf"] {
        let ran = chimera(&format!("schedule show 1f1b --out a.{ending}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ending}");
        assert!(ran.stderr.contains("--features paper"), "{}", ran.stderr);
    }
}

#[cfg(feature = "paper")]
#[test]
fn pictures_are_written_for_papers() {
    let folder = folder();
    for (ending, start) in [("png", b"\x89PNG"), ("pdf", b"%PDF")] {
        let file = folder.path().join(format!("a.{ending}"));
        let ran = chimera(&format!("schedule show chimera --out {}", file.display()));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ending}");
        assert!(std::fs::read(file).expect("a file").starts_with(start), "{ending}");
    }
}
