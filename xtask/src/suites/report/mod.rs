//! The report of a run in a real browser: the page of a small run is opened without a network, its
//! script has to run without an error, and pointing at the timeline and zooming have to do what the
//! page says.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use xtask::command::{install, run as run_command, target};
use xtask::features::default_chimera;

/// Chromium's program names on different systems.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// Virtual time for drawing the page, in milliseconds.
const BUDGET_MS: u32 = 5000;
/// Size of the browser's window, in pixels.
const WINDOW: &str = "1100,3600";

/// Points at the first row of each timeline until the page describes a piece, zooms, and writes its findings into the page.
const PROBE: &str = include_str!("probe.js");

/// The run to open, and the file for the picture.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run whose report is opened [default: a small one, trained for this]
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// File for a picture of the page [default: report.png where cargo builds]
    #[arg(long, value_name = "FILE")]
    png: Option<PathBuf>,
}

/// Makes a report, opens it, and takes a picture.
pub(crate) fn run(args: &Args) -> Result<()> {
    let chimera = default_chimera()?;
    let browser = browser()?;
    let folder = tempfile::tempdir()?;
    let page = folder.path().join("report.html");
    let run = match &args.run {
        Some(run) => run.clone(),
        None => {
            let run = folder.path().join("run");
            let options = ["train", "--steps", "12", "--eval-every", "4", "--no-save", "--out"];
            let mut train = Command::new(&chimera);
            run_command(train.args(options).arg(&run).current_dir(&folder))?;
            run
        }
    };
    run_command(Command::new(&chimera).arg("report").arg(run).arg("--out").arg(&page))?;
    let html = std::fs::read_to_string(&page)?;
    let opened = |html: String| -> Result<String> {
        let copy = folder.path().join("opened.html");
        std::fs::write(&copy, html)?;
        open(browser, &copy, &["--dump-dom"])
    };
    // A check must be able to fail.
    let broken = opened(format!("{html}<script>throw new Error(\"on purpose\")</script>"));
    ensure!(broken.is_err(), "an error of a script goes unseen");
    let dom = opened(format!("{html}<script>{PROBE}</script>"))?;
    ensure!(dom.contains("data-drawn=\"true\""), "the page's script did not run to its end");
    let seen = dom.split("data-seen=\"").nth(1).and_then(|rest| rest.split('"').next());
    let seen = seen.context("the page was not probed")?;
    println!("{seen}");
    for wanted in ["planned", "measured"] {
        let told = seen.split(';').find_map(|part| part.strip_prefix(&format!("{wanted}=")));
        let told =
            told.with_context(|| format!("the page describes nothing of the {wanted} timeline"))?;
        for word in ["micro-batch", "stage", "start", "duration"] {
            ensure!(told.contains(word), "{wanted}: no {word} in `{told}`");
        }
        for change in ["zooms=true", "fits=true", "follows keys=true"] {
            ensure!(seen.contains(&format!("{wanted} {change}")), "{wanted}: no {change}");
        }
    }
    let png = match &args.png {
        Some(png) => std::path::absolute(png)?,
        None => target()?.join("report.png"),
    };
    let screenshot = format!("--screenshot={}", png.display());
    open(browser, &page, &[&screenshot])?;
    ensure!(png.metadata().is_ok_and(|file| file.len() > 0), "no picture was taken");
    println!("the report runs without errors: {}", png.display());
    Ok(())
}

/// A browser, installed where Debian's packages are.
pub(super) fn browser() -> Result<&'static str> {
    let is_there = |name: &&&str| Command::new(name).arg("--version").output().is_ok();
    if let Some(found) = BROWSERS.iter().find(is_there) {
        return Ok(found);
    }
    install(&["chromium"]).context("there is no Chromium")?;
    Ok(BROWSERS[0])
}

/// Opens a page without a network. Returns the browser's output, and fails on any message of its
/// console.
fn open(browser: &str, page: &Path, options: &[&str]) -> Result<String> {
    let profile = tempfile::tempdir()?;
    let mut command = Command::new(browser);
    // The sandbox refuses root, and the page is trusted.
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.args(["--hide-scrollbars", "--enable-logging=stderr"]);
    command.arg("--host-resolver-rules=MAP * ~NOTFOUND");
    command.arg(format!("--user-data-dir={}", profile.path().display()));
    command.arg(format!("--window-size={WINDOW}"));
    command.arg(format!("--virtual-time-budget={BUDGET_MS}")).args(options);
    let output = command.arg(format!("file://{}", page.display())).output();
    let output = output.with_context(|| format!("{browser} does not start"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{browser} failed: {}\n{}", output.status, errors.trim_end());
    let console: Vec<&str> = errors.lines().filter(|line| line.contains("CONSOLE")).collect();
    ensure!(console.is_empty(), "the page complains:\n{}", console.join("\n"));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
