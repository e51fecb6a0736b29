//! The pages of docs show the command's true output: drawings, simulations, catalogues, own
//! schedules, the plan and the table of options. All links lead somewhere.

use std::fs::{read_dir, read_to_string, write};
use std::path::Path;

use chimera::settings::Resume;
use serde_json::Value;

use crate::command::{chimera, folder};

const README: &str = include_str!("../../README.md");
const BENCHMARKS: &str = include_str!("../../docs/benchmarks.md");
const SCHEDULES: &str = include_str!("../../docs/schedules.md");
const CATALOGUE: &str = include_str!("../../docs/catalogue.md");
const SIMULATION: &str = include_str!("../../docs/simulation.md");
const OWN_SCHEDULES: &str = include_str!("../../docs/own-schedules.md");
const OPTIONS: &str = include_str!("../../docs/options.md");
const PLANNING: &str = include_str!("../../docs/planning.md");
const CHECKPOINTS: &str = include_str!("../../docs/checkpoints.md");

/// The files of the pages: the JSON of one, and the mistakes in others that the text describes.
fn files() -> [(&'static str, String); 5] {
    let mine = blocks(OWN_SCHEDULES, "```json\n")
        .find(|block| block.starts_with('{'))
        .expect("a timetable");
    let swapped = |a: &str, b: &str| {
        assert!(mine.contains(a) && mine.contains(b));
        mine.replace(a, "?").replace(b, a).replace('?', b)
    };
    let backward = |m| format!(r#""B","pipe":0,"stage":0,"micro_batches":[{m}]"#);
    let half = |kind| format!(r#""{kind}","pipe":0,"stage":1,"micro_batches":[0]"#);
    let op = |kind, pipe, stage| {
        format!(r#"{{"kind":"{kind}","pipe":{pipe},"stage":{stage},"micro_batches":[{pipe}]}}"#)
    };
    let row = |w| {
        let second_stage_first = [("F", 1 - w, 1), ("F", w, 0), ("B", 1 - w, 1), ("B", w, 0)];
        second_stage_first.map(|(kind, pipe, stage)| op(kind, pipe, stage)).join(",")
    };
    let dead = format!(
        r#"{{"schedule":"mine","depth":2,"stages":2,"pipes":2,"micro_batches":2,
             "placement":[[0,1],[1,0]],"rows":[[{}],[{}]]}}"#,
        row(0),
        row(1)
    );
    [
        ("mine.json", mine.to_string()),
        ("order.json", swapped(&backward(0), &backward(1))),
        ("missing.json", swapped(&half("I"), &half("W"))),
        ("dead.json", dead),
        ("bad.csv", "0F0,0B0\n1F0,1X0\n".to_string()),
    ]
}

/// The table of the cost of losing a rank under Chimera.
#[test]
fn the_catalogue_says_what_a_lost_rank_costs() {
    let rows: Vec<&str> =
        CATALOGUE.lines().filter_map(|line| line.strip_prefix("| lost, `")).collect();
    assert_eq!(rows.len(), 3);
    for row in rows {
        let (scaling, cells) = row.split_once("` |").expect("a scaling");
        for (n, cell) in [8, 16, 32, 64].into_iter().zip(cells.split('|')) {
            let makespan = |lost: &str| {
                let shape = format!("--depth 8 --micro-batches {n} --scaling {scaling}");
                let ran = chimera(&format!("simulate chimera {shape} {lost} --json"));
                let figures: Value = serde_json::from_str(&ran.stdout).expect("JSON");
                figures["makespan"].as_f64().expect("a number")
            };
            let (whole, lost) = (makespan(""), makespan("--lost 3"));
            assert_eq!(cell.trim(), format!("{whole}, {lost}: {:.2}", lost / whole), "{scaling}");
        }
    }
}

/// The text of a page between each `start` and the end of its block.
fn blocks(page: &'static str, start: &str) -> impl Iterator<Item = &'static str> {
    page.split(start).skip(1).map(|rest| rest.split("\n```").next().unwrap_or_default())
}

#[test]
fn the_page_of_checkpoints_names_all_that_a_resume_may_change_and_tells() {
    let row = CHECKPOINTS.lines().find(|line| line.contains("| taken as they are now"));
    let row = row.expect("a row");
    let options = chimera::settings::OPTIONS.iter();
    let told = options.filter(|option| option.resume == Resume::Told).map(|option| option.name);
    let missing: Vec<_> = told.filter(|name| !row.contains(&format!("`{name}`"))).collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn pages_show_what_the_command_prints() {
    let folder = folder();
    for (name, content) in files() {
        write(folder.path().join(name), content).expect("a file");
    }
    let place = format!("{}/", folder.path().display());
    let here = |word: &str| {
        if word.ends_with(".json") || word.ends_with(".csv") {
            format!("{place}{word}")
        } else {
            word.to_string()
        }
    };
    let mut n_shown = 0;
    let pages = [SCHEDULES, CATALOGUE, SIMULATION, OWN_SCHEDULES].into_iter();
    let shown = pages.flat_map(|page| blocks(page, "```\n$ chimera "));
    for example in shown.flat_map(|block| block.split("\n$ chimera ")) {
        // Commands without output here are not run: they train, or need the reader's files.
        let Some((line, shown)) = example.split_once('\n') else { continue };
        let (line, n_last) = match line.split_once(" | tail -") {
            Some((line, n)) => (line, n.parse().expect("a number of lines")),
            None => (line, usize::MAX),
        };
        let ran = chimera(&line.split(' ').map(here).collect::<Vec<_>>().join(" "));
        let printed = format!("{}{}", ran.stdout, ran.stderr).replace(&place, "");
        let lines: Vec<_> = printed.trim_end().lines().collect();
        let printed = lines[lines.len().saturating_sub(n_last)..].join("\n");
        assert_eq!(printed, shown.trim_end(), "chimera {line}");
        n_shown += 1;
    }
    assert!(n_shown > 10, "{n_shown}");
}

#[test]
fn the_plan_of_the_page_is_that_of_the_command() {
    let block = blocks(PLANNING, "```\n$ chimera plan ").next().expect("a plan");
    let (options, shown) = block.split_once('\n').expect("lines");
    // However busy the machine is.
    let ran = chimera(&format!("plan {options} --search-time 1000"));
    assert_eq!(ran.stderr, "");
    assert_eq!(ran.stdout.trim_end(), shown, "put in what `chimera plan {options}` prints");
}

/// The table of options stands between two marks.
#[test]
fn the_table_of_options_is_that_of_the_command() {
    let table = OPTIONS.split("<!-- options -->").nth(1).expect("two marks");
    let printed = chimera("config options").stdout;
    assert_eq!(table.trim(), printed.trim(), "put in what `chimera config options` prints");
}

/// The command line understands every command of these pages, also after `mpirun`.
#[test]
fn commands_of_the_pages_are_command_lines() {
    let pages = [
        README,
        SCHEDULES,
        CATALOGUE,
        PLANNING,
        CHECKPOINTS,
        include_str!("../../docs/howto.md"),
        include_str!("../../docs/which-schedule.md"),
        include_str!("../../docs/gpu-quick-start.md"),
        include_str!("../../docs/glossary.md"),
        include_str!("../../docs/faq.md"),
        include_str!("../../docs/troubleshooting.md"),
        include_str!("../../docs/training.md"),
        include_str!("../../docs/asynchronous.md"),
        include_str!("../../docs/data.md"),
    ];
    let mut n_lines = 0;
    for page in pages.map(|page| page.replace("\\\n", " ")) {
        let code = page.split("```").skip(1).step_by(2).flat_map(str::lines).map(str::trim_start);
        for line in code.filter(|line| !line.starts_with('#')) {
            let Some((before, words)) = line.split_once("chimera ") else { continue };
            if !before.is_empty() && !before.starts_with("mpirun") && before != "$ " {
                continue; // title of a drawing
            }
            let words = words.split(['#', '>', '|']).next().unwrap_or_default().replace(" … ", " ");
            let ran = chimera(&format!("{} --help", words.trim()));
            assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
            n_lines += 1;
        }
    }
    assert!(n_lines > 80, "{n_lines}");
}

/// A hosting site shows 96 columns of code; the rest has to be scrolled to.
#[test]
fn code_of_the_readme_has_at_most_96_columns() {
    let code = README.split("```").skip(1).step_by(2).flat_map(str::lines);
    let too_wide: Vec<&str> = code.filter(|line| line.chars().count() > 96).collect();
    assert_eq!(too_wide, [""; 0]);
}

#[test]
fn figures_of_the_readme_stand_in_the_benchmarks() {
    let figures = ["8,327", "3,622", "3,729", "1.25 to 1.42", "1.5 %", "7.1 %", "8.4 %"];
    for figure in figures {
        assert!(README.contains(figure), "README.md lacks {figure}");
        assert!(BENCHMARKS.contains(figure), "docs/benchmarks.md lacks {figure}");
    }
    // Ratios and times that the README rounds.
    assert!(README.contains("2.3 times") && BENCHMARKS.contains("| torch | 3,622 | 2.30 |"));
    assert!(README.contains("in 4.4 seconds") && BENCHMARKS.contains("4.41 and"));
}

#[test]
fn links_of_the_pages_lead_to_files_and_sections() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [root.to_path_buf(), root.join("docs")];
    let files = folders.iter().flat_map(|folder| read_dir(folder).expect("a folder"));
    let mut pages: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    let mut n_links = 0;
    for page in pages {
        let text = read_to_string(&page).expect("text");
        for rest in text.split("](").skip(1) {
            let link = rest.split(')').next().unwrap_or_default();
            if link.contains("://") || link.contains(char::is_whitespace) {
                continue; // elsewhere, or code
            }
            let (name, section) = link.split_once('#').unwrap_or((link, ""));
            let to = if name.is_empty() { page.clone() } else { page.with_file_name(name) };
            assert!(to.exists(), "{}: {link}: no such file", page.display());
            let is_there = section.is_empty() || anchors(&to).any(|anchor| anchor == section);
            assert!(is_there, "{}: {link}: no such section", page.display());
            n_links += 1;
        }
    }
    assert!(n_links > 200, "{n_links}");
}

/// The anchors that headings define.
fn anchors(page: &Path) -> impl Iterator<Item = String> {
    let text = read_to_string(page).expect("text");
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        title.chars().filter(|c| c.is_alphanumeric() || ['-', '_'].contains(c)).collect()
    };
    headings.map(anchor).collect::<Vec<String>>().into_iter()
}
