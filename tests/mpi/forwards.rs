//! `eval` and `generate` by ranks that are processes: what threads give, to the bit.

use serde_json::Value;

use crate::command::{Ran, chimera, folder, text};
use crate::ranks;

fn succeeded(ran: Ran) -> String {
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran.stdout
}

#[test]
fn forwards_over_mpi_give_what_threads_give() {
    let folder = folder();
    let (text, place) = (text(&folder).display().to_string(), folder.path().display());
    let sizes = "--layers 4 --hidden 16 --heads 2 --context 24 --depth 1 --steps 3 --threads 1";
    succeeded(chimera(&format!("train {sizes} --data {text} --save {place}/m --out {place}/run")));
    let eval = |options: &str| format!("eval --model {place}/m --data {text} --json {options}");
    let score = |ran: Ran| -> Value { serde_json::from_str(&succeeded(ran)).expect("one report") };
    let one = score(chimera(&eval("")));
    for options in ["--depth 4", "--depth 2 --width 2 --schedule chimera"] {
        assert_eq!(score(ranks(4, &eval(options)))["loss"], one["loss"], "{options}");
    }
    let prompts = "--prompt \"the worker\" --prompt \"a bubble\" --prompt idle";
    let generate = format!("generate --model {place}/m {prompts} --tokens 30");
    let alone = succeeded(chimera(&generate));
    assert_eq!(succeeded(ranks(4, &format!("{generate} --depth 4"))), alone);
    let ran = ranks(3, &eval("--depth 4"));
    assert_ne!(ran.code, Some(0));
    assert!(ran.stderr.contains("3 rank(s) are not 4 worker(s): start as many"), "{}", ran.stderr);
}
