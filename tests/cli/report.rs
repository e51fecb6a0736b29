//! `chimera report`: the files of a run as a page.

use std::fs::{create_dir, read_to_string, remove_file, write};
use std::path::Path;

use serde_json::{Value, json};

use crate::command::{Ran, chimera, folder, text};

/// Writes the files of a run of two ranks that has done three of its steps, in a folder named
/// `run`.
fn run(folder: &Path) {
    create_dir(folder).expect("a folder");
    let settings = "steps = 3 # command line\nschedule = \"gpipe\" # run.toml:1\n";
    write(folder.join("config.toml"), settings).expect("settings");
    let step = |step: u64| {
        let loss = 3.0 - step as f64;
        format!(
            r#"{{"step":{step},"loss":{loss},"grad_norm":0.5,"lr":0.001,"tokens":10,"step_s":0.5,"tokens_per_s":20.0,"bubble_ratio":0.25,"ranks":[{{"bubble_ratio":0.125,"bytes":1048576}},{{"bubble_ratio":0.375,"bytes":2097152}}]}}"#
        ) + "\n"
    };
    write(folder.join("metrics.jsonl"), (0..3).map(step).collect::<String>()).expect("metrics");
}

/// Also writes the files of its end.
fn done(folder: &Path) {
    run(folder);
    let shape = "gpipe --depth 2 --micro-batches 2 --backward 2";
    for (name, forward) in [("planned", 1), ("measured", 2)] {
        let file = folder.join(format!("{name}.trace.json"));
        let ran =
            chimera(&format!("simulate {shape} --forward {forward} --trace {}", file.display()));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    }
    let figure = json!({"what": "step", "predicted": 1.1, "measured": 1.0, "error": 0.1});
    let summary = json!({"steps": 3, "validation_loss": 0.75, "perplexity": 2.1, "seconds": 1.5,
                         "prediction": [figure], "advice": ["less is more"],
                         "sample": "And he came <unto> them", "planned_by": "a profile"});
    write(folder.join("summary.json"), summary.to_string()).expect("a summary");
}

/// The page of a run, which must load nothing from outside.
fn page(folder: &Path) -> String {
    let ran = report(folder);
    let file = folder.join("report.html");
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert_eq!(ran.stdout, format!("report: {}\n", file.display()));
    let page = read_to_string(file).expect("a page");
    for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    page
}

fn report(folder: &Path) -> Ran {
    chimera(&format!("report \"{}\"", folder.display()))
}

/// The data that the page's script draws.
fn drawn(page: &str) -> Value {
    let data = page.split("id=\"timelines\">").nth(1).and_then(|rest| rest.split('<').next());
    serde_json::from_str(data.expect("data")).expect("JSON")
}

#[test]
fn a_run_that_is_done_is_shown_whole() {
    let folder = folder();
    let run = folder.path().join("run");
    done(&run);
    let page = page(&run);
    for part in [
        "3 of 3 steps  finished",
        "<dt>validation loss at the end</dt><dd>0.7500</dd>",
        "simulated by a profile",
        "measured: the last step",
        "<tr><td>step</td><td>1.1</td><td>1</td><td>+10.0 %</td></tr>",
        "<tr><td>step</td><td>9</td><td>12</td><td>+33.3 %</td></tr>",
        "<tr><td>1</td><td>2 MiB</td><td>0.3750</td></tr>",
        "<li>less is more</li>",
        "<blockquote>And he came &lt;unto&gt; them</blockquote>",
        "schedule = &quot;gpipe&quot; # run.toml:1",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let drawn = drawn(&page);
    assert_eq!(drawn["planned"]["seconds"], 9.0);
    assert_eq!(drawn["measured"]["seconds"], 12.0);
    let slices = drawn["planned"]["slices"].as_array().expect("pieces");
    let first = json!([0, 0, 0.0, 1.0, "forward", "F0", [["F", 0, 0, "0"]]]);
    assert!(slices.len() == 8 && slices.contains(&first), "{slices:?}");
    let blue = ["#c3dcf7", "#84b4e6", "#3f83c8", "#1f5c9e"];
    assert_eq!(drawn["planned"]["tones"], json!({"0": blue}), "as drawings have the pipe");
}

#[test]
fn what_is_not_there_is_said() {
    let folder = folder();
    let run_folder = folder.path().join("run");
    run(&run_folder);
    let without_end = page(&run_folder);
    for part in [
        "planned.trace.json is not there: a run writes it after all its steps",
        "measured.trace.json is not there",
        "summary.json is not there",
        "It needs both a planned and a measured timeline.",
        "No trace counts bytes over time, so only peaks are shown.",
    ] {
        assert!(without_end.contains(part), "{part}: {without_end}");
    }
    remove_file(run_folder.join("metrics.jsonl")).expect("a file");
    let without_steps = page(&run_folder);
    assert!(without_steps.contains("cannot read "), "{without_steps}");
    assert!(without_steps.contains("The metrics have no memory of ranks."), "{without_steps}");
    let resume = format!("chimera train --config {}/config.toml", run_folder.display());
    assert!(without_steps.contains(&resume), "{without_steps}");
}

/// Damaged files do not prevent the page.
#[test]
fn damaged_files_are_named() {
    let folder = folder();
    let run = folder.path().join("run");
    done(&run);
    for (file, content, named) in [
        ("summary.json", "{\"steps\": -1}", "summary.json cannot be read"),
        ("planned.trace.json", "{", "planned.trace.json is not a trace"),
        ("measured.trace.json", "{\"traceEvents\": []}", "no work is in it"),
        ("metrics.jsonl", "none\n", "no metrics of a step"),
    ] {
        write(run.join(file), content).expect("a file");
        let ran = report(&run);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert_eq!(ran.stderr.contains("warning"), file == "metrics.jsonl", "{}", ran.stderr);
        let page = read_to_string(run.join("report.html")).expect("a page");
        assert!(page.contains(named), "{named}: {page}");
    }
}

/// The terminal also shows that the page is incomplete.
#[test]
fn metrics_that_are_left_out_are_told_by_line() {
    let folder = folder();
    let run_folder = folder.path().join("run");
    run(&run_folder);
    let metrics = run_folder.join("metrics.jsonl");
    let sound = read_to_string(&metrics).expect("metrics");
    let lines: Vec<&str> = sound.lines().collect();
    for (content, said) in [
        ("none\n".to_string(), "line 1 is not the metrics of a step"),
        (format!("{}\n[torn\n{}\n", lines[0], lines[1]), "line 2 is not the metrics of a step"),
        (format!("{}\n{}\nno\nno\n", lines[0], lines[0]), "it and 2 more are left out"),
    ] {
        write(&metrics, content).expect("metrics");
        let ran = report(&run_folder);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let file = metrics.display().to_string();
        assert!(ran.stderr.contains(&file) && ran.stderr.contains(said), "{said}: {}", ran.stderr);
    }
}

/// A file of the folder may be a pipe that nobody writes to.
#[cfg(unix)]
#[test]
fn pipes_do_not_hold_it_up() {
    let folder = folder();
    let run = folder.path().join("run");
    done(&run);
    for file in ["summary.json", "planned.trace.json", "measured.trace.json", "metrics.jsonl"] {
        remove_file(run.join(file)).expect("a file");
        let made = std::process::Command::new("mkfifo").arg(run.join(file)).status();
        assert!(made.expect("mkfifo").success());
    }
    let page = page(&run);
    assert!(page.matches("it is not a regular file").count() >= 4, "{page}");
}

/// A run that was trained further and stopped has the summary of its earlier end.
#[test]
fn an_earlier_end_is_told_apart() {
    let folder = folder();
    let run = folder.path().join("run");
    done(&run);
    let summary = read_to_string(run.join("summary.json")).expect("a summary");
    write(run.join("summary.json"), summary.replace("\"steps\":3", "\"steps\":2")).expect("a file");
    let trace = read_to_string(run.join("planned.trace.json")).expect("a trace");
    let held = r#""traceEvents":[{"ph":"C","name":"activation memory","pid":0,"ts":0,"args":{"bytes":7.0}},"#;
    write(run.join("planned.trace.json"), trace.replace("\"traceEvents\":[", held))
        .expect("a file");
    let page = page(&run);
    for (section, earlier) in [
        ("Planned and measured timeline", &["this is"; 2][..]),
        ("Memory", &["the curves are"]),
        ("Errors of the prediction", &["this is"]),
        ("Advice", &["the run&#39;s own advice is"]),
    ] {
        let content = page.split(&format!("<h2>{section}</h2>")).nth(1).expect(section);
        let content = content.split("</section>").next().expect("its end");
        let notes = content.matches("The run has gone on since: ").count();
        assert_eq!(notes, earlier.len(), "{section}: {content}");
        let note = format!("{} of its end after 2 steps.", earlier[0]);
        assert!(content.contains(&note), "{section}: {content}");
    }
    assert!(!page.contains("validation loss at the end"), "{page}");
}

#[test]
fn text_of_a_run_is_no_markup() {
    let folder = folder();
    let run = folder.path().join("<b>&run");
    done(&run);
    let bad = "</pre></script><script>alert(1)</script>";
    let settings = read_to_string(run.join("config.toml")).expect("settings");
    write(run.join("config.toml"), format!("{settings}data = [\"{bad}\"]\n")).expect("settings");
    let error = json!({"rank": 0, "message": bad}).to_string();
    write(run.join("error.0.json"), error).expect("an error");
    let trace = run.join("measured.trace.json");
    let text = read_to_string(&trace).expect("a trace");
    let text = text.replace("\"name\":\"F0\"", &format!("\"name\":\"{bad}\""));
    write(&trace, text.replace("\"cat\":\"forward\"", &format!("\"cat\":\"{bad}\"")))
        .expect("a trace");
    let summary = read_to_string(run.join("summary.json")).expect("a summary");
    write(run.join("summary.json"), summary.replace("less is more", bad)).expect("a summary");
    let page = page(&run);
    assert!(!page.contains("<script>alert") && !page.contains("<b>"), "{page}");
    assert_eq!(page.matches("</script>").count(), 2, "the data's and the page's own");
    assert!(page.contains("<h1>") && page.contains("&lt;b&gt;&amp;run</h1>"), "{page}");
    assert!(page.contains("&lt;/pre&gt;&lt;/script&gt;&lt;script&gt;alert(1)"), "{page}");
    let slices = drawn(&page)["measured"]["slices"].to_string();
    assert!(slices.contains(bad), "the script gets it as it is: {slices}");
}

#[test]
fn a_named_trace_goes_before_the_last_step() {
    let folder = folder();
    let run = folder.path().join("run");
    done(&run);
    let trace = folder.path().join("all.json");
    let ran = chimera(&format!(
        "simulate gpipe --depth 2 --micro-batches 2 --forward 3 --backward 2 --trace {}",
        trace.display()
    ));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let settings = format!("steps = 3\ntrace = \"{}\"\n", trace.display());
    write(run.join("config.toml"), settings).expect("settings");
    let of_trace = page(&run);
    assert!(of_trace.contains("of median length among those in "), "{of_trace}");
    assert_eq!(drawn(&of_trace)["measured"]["seconds"], 15.0);
    remove_file(&trace).expect("a file");
    let of_step = page(&run);
    assert!(of_step.contains("(of the trace: cannot read "), "{of_step}");
    assert_eq!(drawn(&of_step)["measured"]["seconds"], 12.0);
}

#[test]
fn what_is_no_run_is_refused() {
    let folder = folder();
    let refused = |path: &Path, named: &str| {
        let ran = report(path);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{}", ran.stderr);
        assert!(ran.stderr.contains(named), "{named}: {}", ran.stderr);
        assert!(!path.join("report.html").exists());
    };
    refused(&folder.path().join("none"), "there is no such folder");
    refused(folder.path(), "name one that `chimera train` made, such as runs/0001");
    let file = folder.path().join("config.toml");
    write(&file, "steps = ").expect("a file");
    refused(&file, "is a file: name a folder");
    refused(folder.path(), "config.toml");
    let out = "--out none/page.html";
    write(&file, "steps = 1").expect("a file");
    let ran = chimera(&format!("report {} {out}", folder.path().display()));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("cannot write none/page.html"), "{}", ran.stderr);
}

/// If the last window is not complete, the last complete one is shown.
#[test]
fn a_window_of_steps_is_called_one() {
    let folder = folder();
    let run = folder.path().join("run");
    let model = "--layers 2 --hidden 16 --heads 2 --context 16 --depth 2 --micro-batches 2";
    let window = "--schedule 1f1b --tied false --clip 0 --border free --window 3 --steps 8";
    let data = text(&folder);
    let ran = chimera(&format!(
        "train {model} {window} --data {} --no-save --out {}",
        data.display(),
        run.display()
    ));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("the last window of 3 steps as it ran"), "{}", ran.stdout);
    let page = page(&run);
    for part in [
        "measured: the last window of 3 steps, of the first group of ranks",
        "<td>window of 3 steps</td>",
        "<button id=\"fit\">whole window of 3 steps</button>",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("<td>step</td>"), "{page}");
    let drawn = drawn(&page);
    for name in ["planned", "measured"] {
        let slices = drawn[name]["slices"].as_array().expect("pieces");
        let n_forwards = slices.iter().filter(|slice| slice[4] == "forward").count();
        assert_eq!(
            n_forwards,
            2 * 2 * 3,
            "{name}: on two ranks, of two micro-batches, in three steps"
        );
        let trace = read_to_string(run.join(format!("{name}.trace.json"))).expect("a trace");
        assert!(trace.contains("\"steps 3 to 5\""), "{name}");
    }
}

#[test]
fn several_runs_are_compared_side_by_side() {
    let folder = folder();
    let runs = ["one", "two"].map(|name| folder.path().join(name));
    runs.iter().for_each(|folder| done(folder));
    let settings = "steps = 3\nschedule = \"1f1b\"\n";
    write(runs[1].join("config.toml"), settings).expect("settings");
    let out = folder.path().join("both.html");
    let [one, two] = runs.each_ref().map(|run| run.display());
    let ran = chimera(&format!("report {one} {two} --out {}", out.display()));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let page = read_to_string(&out).expect("a page");
    for part in [
        &format!("<tr><th></th><th>{one}</th><th>{two}</th></tr>"),
        "<tr><td>validation loss</td><td>0.7500</td><td>0.7500</td></tr>",
        "<tr><td>schedule</td><td>gpipe</td><td>1f1b</td></tr>",
        "<canvas id=\"run2\"",
        "class=\"run2\"",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("<td>steps</td><td>3</td><td>3</td></tr>\n<tr><td>schedule"), "{page}");
    assert_eq!(drawn(&page)["run1"]["seconds"], 12.0);
    let five = format!("report {one} {two} {one} {two} {one}");
    assert!(chimera(&five).stderr.contains("compares at most 4 runs, and 5 are named"));
}

#[test]
fn without_a_name_it_is_of_the_newest_run() {
    let folder = folder();
    let here = |line: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_chimera"));
        command.current_dir(folder.path()).args(line.split_whitespace()).output().expect("runs")
    };
    for line in ["report", "top"] {
        let refused = here(line);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains("there is no run in runs/: name its folder"), "{line}: {said}");
    }
    create_dir(folder.path().join("runs")).expect("a folder");
    for name in ["0001", "0002"] {
        run(&folder.path().join("runs").join(name));
    }
    let ran = here("report");
    let newest = Path::new("runs").join("0002").join("report.html");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), format!("report: {}\n", newest.display()));
    assert!(folder.path().join(newest).is_file());
    assert!(!folder.path().join("runs/0001/report.html").exists());
}

#[test]
fn training_ends_with_a_report() {
    let folder = folder();
    let run = folder.path().join("run");
    let model = "--layers 2 --hidden 16 --heads 2 --context 16 --depth 2 --micro-batches 2";
    let options = format!("--data {} --steps 2 --no-save --report", text(&folder).display());
    let ran = chimera(&format!("train {model} {options} --out {}", run.display()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let html = run.join("report.html");
    assert!(ran.stdout.contains(&format!("report: {}", html.display())), "{}", ran.stdout);
    let at_the_end = read_to_string(html).expect("a page");
    assert_eq!(page(&run), at_the_end, "the run is over for both");
    assert!(at_the_end.contains("2 of 2 steps  finished"), "{at_the_end}");
    let drawn = drawn(&at_the_end);
    for name in ["planned", "measured"] {
        let timeline = &drawn[name];
        assert_eq!(timeline["ranks"], json!([0, 1]), "{name}");
        assert_eq!(timeline["memory"].as_array().map(Vec::len), Some(2), "{name}");
        let forwards = |s: &&Value| s[4] == "forward";
        let slices = timeline["slices"].as_array().expect("pieces");
        assert_eq!(slices.iter().filter(forwards).count(), 4, "{name}");
    }
    let compare = ["planned", "measured"].map(|name| run.join(format!("{name}.trace.json")));
    let [planned, measured] = compare.map(|path| path.display().to_string());
    let ran = chimera(&format!("trace compare {planned} {measured}"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

/// Members' names are not trusted, and ranks in another's record may be anything.
#[test]
fn ranks_that_wait_and_their_links_are_shown() {
    let folder = folder();
    let run = folder.path().join("run");
    done(&run);
    assert!(page(&run).contains("The metrics have no waits"));
    let ranks = r#"{"bubble_ratio":0.25,"bytes":1,"reductions_s":0.004,"peers":[{"rank":1,"wait_s":0.1,"sent_bytes":2000000,"busy_s":0.04,"round_trip_s":0.0213}]},{"bubble_ratio":0.5,"bytes":1,"sync_s":0.25,"peers":[{"rank":9,"wait_s":0.125}]}"#;
    let step = format!(
        r#"{{"step":0,"loss":1.0,"grad_norm":0.5,"lr":0.001,"tokens":10,"step_s":0.5,"tokens_per_s":20.0,"bubble_ratio":0.25,"ranks":[{ranks}]}}"#
    );
    write(run.join("metrics.jsonl"), step + "\n").expect("metrics");
    let member = r#"{"rank":0,"name":"<b>alpha</b>","system":"linux","device":"cpu","threads":2,"flops":9.31e10}"#;
    write(run.join("members.json"), format!("[{member}]")).expect("members");
    let page = page(&run);
    for part in [
        "<td>&lt;b&gt;alpha&lt;/b&gt;</td><td>linux</td><td>cpu</td><td>2</td><td>93.1 GFLOP/s</td>",
        "Some of these ranks are gone",
        "<tr><td>0</td><td>75.0 %</td><td></td><td style=\"--share: 20%\">100.0</td><td style=\"--share: 1%\">4.0</td><td></td></tr>",
        "<td>0 - 1</td><td>21.30 ms</td><td>1.91 MiB</td><td>40.0 ms</td><td>50.0 MB/s</td>",
        "The longest is that of rank 1 for rank 9: 125.0 ms.",
    ] {
        assert!(page.contains(part), "{part}");
    }
    write(run.join("members.json"), "nonsense").expect("members");
    assert!(!self::page(&run).contains("measured when a machine joined"));
}
