//! `eval` over several workers: the same bits as with one.

use serde_json::Value;

use super::prepare::{refuse, succeed};
use crate::command::{folder, text};

#[test]
fn a_text_is_scored_by_stages_side_by_side() {
    let folder = folder();
    let (text, place) = (text(&folder).display().to_string(), folder.path().display());
    for model in ["gpt2", "llama --tied true"] {
        let sizes = "--layers 5 --hidden 16 --heads 2 --context 24 --depth 1 --steps 3 --threads 1";
        let save = format!("{place}/{}", &model[..4]);
        succeed(&format!(
            "train --model {model} {sizes} --data {text} --save {save} --out {save}-run"
        ));
        for windows in ["", "--stride 5", "--context 7 --stride 3"] {
            let score = |depth: u32| -> Value {
                let line =
                    format!("eval --model {save} --data {text} {windows} --json --depth {depth}");
                serde_json::from_str(&succeed(&line).stdout).expect("JSON")
            };
            let one = score(1);
            for depth in [2, 5] {
                let several = score(depth);
                assert_eq!(several["workers"], depth);
                for key in ["loss", "tokens"] {
                    assert_eq!(several[key], one[key], "{model} {windows} {depth}: {key}");
                }
            }
        }
        let line = format!("eval --model {save} --data {text} --depth");
        refuse(&format!("{line} 6"), "6 stages need at least as many layers", folder.path());
        refuse(&format!("{line} 0"), "it must be a whole number of at least 1", folder.path());
    }
}
