//! `chimera generate`, `eval` and `export`, run as by a user.

use std::fs::{read, write};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::{expected, fixture, model};
use crate::command::{chimera, folder, start, text};
use chimera::formats::hf;

fn json(line: &str) -> Value {
    let ran = chimera(line);
    assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// The refusal of a command line.
fn refusal(line: &str) -> String {
    let ran = chimera(line);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{line}");
    ran.stderr
}

#[test]
fn the_likeliest_tokens_are_those_of_the_logits() {
    let tied = fixture("tied");
    let generate = format!("generate --json --model {} --temperature 0", tied.display());
    let ran = json(&format!("{generate} --prompt \"3, 14 15\" --tokens 20"));
    assert_eq!(ran["prompt"], serde_json::json!([3, 14, 15]));
    let model = model(&hf::read(&tied).expect("a model"));
    let mut ids = vec![3, 14, 15];
    for _ in 0..20 {
        // The context has 16 tokens.
        let logits = model.logits(&ids[ids.len().saturating_sub(16)..], 1).expect("logits");
        let best = (0..20).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).expect("a token");
        ids.push(best as u32);
    }
    assert_eq!(ran["ids"], serde_json::json!(ids[3..]));
    let text: Vec<String> = ids.iter().map(u32::to_string).collect();
    assert_eq!(ran["text"], text.join(" "));
}

/// Beyond the context the oldest tokens are dropped. A context of more tokens than the model has
/// positions is refused.
#[test]
fn a_context_beyond_the_models_is_refused() {
    let tied = fixture("tied");
    let generate = format!("generate --model {} --prompt 3 --tokens 1", tied.display());
    for context in [17, 1 << 20] {
        let said = refusal(&format!("{generate} --context {context}"));
        let why = format!(
            "a context of {context} tokens is longer than the model's, which has positions for 16: choose a smaller --context"
        );
        assert!(said.contains(&why), "{said}");
    }
    let ran = chimera(&format!("{generate} --context 16"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[test]
fn a_text_ends_before_a_stop_string() {
    let tied = fixture("tied");
    let generate =
        format!("generate --model {} --prompt 3 --tokens 12 --temperature 0", tied.display());
    let whole = json(&format!("{generate} --json"));
    let words: Vec<&str> = whole["text"].as_str().expect("a text").split(' ').collect();
    let stop = words[5];
    // The text ends at whichever comes first.
    let n_before = words[1..].iter().take_while(|word| **word != stop).count();
    let stopped = json(&format!("{generate} --json --stop 1 --stop {stop}"));
    let before = words[..=n_before].join(" ");
    assert_eq!(
        (&stopped["text"], &stopped["finish_reason"]),
        (&before.clone().into(), &"stop".into())
    );
    assert_eq!(stopped["ids"].as_array().map(Vec::len), Some(n_before + 1));
    assert_eq!(chimera(&format!("{generate} --stop {stop}")).stdout, format!("{before}\n"));
    // An id is not part of another: 1 is none of these, although each has that digit.
    assert!(words.contains(&"14") && !words.contains(&"1"), "{words:?}");
    let other = json(&format!("{generate} --json --stop 1"));
    assert_eq!((&other["text"], &other["finish_reason"]), (&whole["text"], &"length".into()));
    let several = words[2..4].join(" ");
    let stopped = json(&format!("{generate} --json --stop \"{several}\""));
    let at = (1..).find(|at| words[*at..].starts_with(&words[2..4])).expect("they are there");
    assert_eq!(stopped["text"], words[..at].join(" "));
    assert!(refusal(&format!("{generate} --stop \"\"")).contains("it must not be empty"));
    let said = refusal(&format!("{generate} --stop nothing"));
    assert!(said.contains("--stop: `nothing` is none of the 20 token ids"), "{said}");
}

/// A copy of a fixture with a changed `config.json`.
fn changed(folder: &TempDir, name: &str, change: &dyn Fn(&mut Value)) -> String {
    let to = folder.path().join(name);
    std::fs::create_dir(&to).expect("a folder");
    std::fs::copy(fixture("tied").join("model.safetensors"), to.join("model.safetensors"))
        .expect("a copy");
    let config = read(fixture("tied").join("config.json")).expect("a file");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    change(&mut config);
    write(to.join("config.json"), config.to_string()).expect("written");
    to.display().to_string()
}

#[test]
fn a_text_ends_where_the_model_ends_it() {
    let folder = folder();
    let model = changed(&folder, "model", &|config| config["eos_token_id"] = 9.into());
    let generate = |model: &str, more: &str| {
        json(&format!("generate --json --model {model} --tokens 12 --temperature 0 {more}"))
    };
    let whole = generate(&model, "--prompt 3");
    assert_eq!(whole["finish_reason"], "length");
    let ids: Vec<u64> = serde_json::from_value(whole["ids"].clone()).expect("ids");
    let end = ids[4];
    let n_before = ids.iter().take_while(|id| **id != end).count();
    let ends = |ends: Value| move |config: &mut Value| config["eos_token_id"] = ends.clone();
    for (name, value) in [("one", end.into()), ("several", serde_json::json!([9, end]))] {
        let model = changed(&folder, name, &ends(value));
        let ended = generate(&model, "--prompt 3");
        assert_eq!(
            (&ended["finish_reason"], &ended["ids"]),
            (&"end-of-text".into(), &ids[..n_before].into())
        );
        let on = generate(&model, "--prompt 3 --ignore-end");
        assert_eq!(on, whole);
        // Each prompt ends on its own.
        let both = generate(&model, "--prompt 3 --prompt \"3 1\"");
        assert_eq!((&both[0], &both[1]), (&ended, &generate(&model, "--prompt \"3 1\"")));
    }
    // generation_config.json takes precedence over config.json, and an export copies both.
    let generation = format!("{{\"eos_token_id\": {end}}}");
    write(format!("{model}/generation_config.json"), &generation).expect("written");
    assert_eq!(generate(&model, "--prompt 3")["finish_reason"], "end-of-text");
    let out = folder.path().join("out");
    let ran = chimera(&format!("export {model} --out {}", out.display()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(read(out.join("generation_config.json")).expect("a file"), generation.as_bytes());
    let config = read(out.join("config.json")).expect("a file");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    assert_eq!((&config["eos_token_id"], &config["bos_token_id"]), (&9.into(), &0.into()));
    let wrong = changed(&folder, "wrong", &ends("</s>".into()));
    let said = refusal(&format!("generate --model {wrong} --prompt 3"));
    assert!(said.contains("`eos_token_id` is \"</s>\""), "{said}");
}

/// A training keeps the tokens that end a text. The token that ends the data's documents takes
/// precedence.
#[test]
fn a_run_ends_texts_as_its_model_or_its_data_does() {
    let folder = folder();
    let place = folder.path().display();
    let model = changed(&folder, "model", &|config| {
        (config["eos_token_id"], config["pad_token_id"]) = (serde_json::json!([5, 6]), 7.into());
    });
    let ids = (0..400u32).flat_map(|n| ((n * n % 17) as u16).to_le_bytes());
    write(folder.path().join("ids.bin"), ids.collect::<Vec<u8>>()).expect("written");
    let train =
        "--depth 1 --steps 1 --threads 1 --micro-batches 2 --micro-batch-size 1 --dropout 0";
    let succeed = |line: &str| {
        let ran = chimera(line);
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
    };
    let line = format!("train --init {model} --data {place}/ids.bin {train} --save-every 1");
    succeed(&format!("{line} --out {place}/run"));
    let said = |folder: &str| {
        let config = std::fs::read(format!("{place}/{folder}/config.json")).expect("a file");
        let config: Value = serde_json::from_slice(&config).expect("JSON");
        [config["eos_token_id"].clone(), config["pad_token_id"].clone()]
    };
    succeed(&format!("export {place}/run/checkpoints/step-00000001 --out {place}/exported"));
    let wanted = [serde_json::json!([5, 6]), 7.into()];
    assert_eq!((said("run/model"), said("exported")), (wanted.clone(), wanted));

    std::fs::create_dir(folder.path().join("texts")).expect("a folder");
    write(folder.path().join("texts/1.txt"), "a text ".repeat(40)).expect("written");
    succeed(&format!("prepare {place}/texts --out {place}/texts.bin"));
    let small = "--layers 1 --hidden 4 --heads 1 --context 8";
    succeed(&format!("train {small} --data {place}/texts.bin {train} --out {place}/own"));
    assert_eq!(said("own/model")[0], 0);
}

/// There may be more texts than a text has tokens.
#[test]
fn any_number_of_prompts_is_continued() {
    let line =
        format!("generate --json --model {} --tokens 2 --temperature 0", fixture("tied").display());
    let many = json(&format!("{line}{}", " --prompt 3".repeat(40)));
    let one = json(&format!("{line} --prompt 3"));
    let many = many.as_array().expect("texts");
    assert!(many.len() == 40 && many.iter().all(|text| *text == one));
}

#[test]
fn draws_follow_the_seed() {
    let generate = format!("generate --model {} --prompt 1 --tokens 40", fixture("tied").display());
    let draw = |options: &str| {
        let ran = chimera(&format!("{generate} {options}"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.stdout
    };
    assert_eq!(draw("--seed 7"), draw("--seed 7"));
    assert_ne!(draw("--seed 7"), draw("--seed 8"));
    let greedy = draw("--temperature 0");
    assert_eq!(draw("--top-k 1 --seed 8"), greedy);
    assert_eq!(draw("--top-p 1e-9 --seed 8"), greedy);
    assert_ne!(draw("--temperature 2"), greedy);
}

#[test]
fn prompts_are_continued_side_by_side_and_by_stages() {
    let generate =
        format!("generate --model {} --tokens 12 --temperature 0", fixture("tied").display());
    let alone =
        ["3 1 4", "7"].map(|prompt| json(&format!("{generate} --prompt \"{prompt}\" --json")));
    let both = format!("{generate} --prompt \"3 1 4\" --prompt 7");
    assert_eq!(json(&format!("{both} --json")), serde_json::json!(alone));
    assert_eq!(json(&format!("{both} --depth 2 --json")), serde_json::json!(alone));
    let text = |ran: &serde_json::Value| ran["text"].as_str().expect("a text").to_owned();
    let lines = format!("{}\n{}\n", text(&alone[0]), text(&alone[1]));
    assert_eq!(chimera(&both).stdout, lines);
    let refused = refusal(&format!("{generate} --prompt 7 --depth 99"));
    assert!(refused.contains("99 stages"), "{refused}");
}

#[test]
fn what_cannot_be_continued_is_refused() {
    let model = format!("--model {}", fixture("tied").display());
    for (options, wanted) in [
        ("--prompt \"1 20\"", "error: --prompt: `20` is none of the 20 token ids, 0 to 19"),
        ("--prompt hello", "`hello` is none of the 20 token ids"),
        ("--prompt \"\"", "error: --prompt: it is empty"),
        ("--prompt 1 --tokenizer bytes", "the tokenizer has 256 ids, but the model knows 20"),
        ("--prompt 1 --tokenizer gpt3", "unknown tokenizer `gpt3`: choose bytes, gpt2 or"),
        ("--prompt 1 --temperature -1", "it must be a number of at least 0"),
        ("--prompt 1 --temperature nan", "it must be a number of at least 0"),
        ("--prompt 1 --top-p 0", "it must be a number above 0 and up to 1"),
        ("--prompt 1 --top-k 0", "it must be a whole number of at least 1"),
    ] {
        let said = refusal(&format!("generate {model} {options}"));
        assert!(said.contains(wanted), "{said}");
    }
    assert!(
        refusal("generate --model nothing --prompt 1").contains("nothing: there is no such folder")
    );
}

#[test]
fn a_loss_is_that_of_the_logits() {
    let folder = folder();
    let (kind, n) = ("bf16-sharded", 12);
    let ids = expected(kind).ids;
    let bytes: Vec<u8> = ids.iter().flat_map(|id| (*id as u16).to_le_bytes()).collect();
    let data = folder.path().join("ids.bin");
    write(&data, bytes).expect("written");
    let model = model(&hf::read(&fixture(kind)).expect("a model"));
    // The loss of the target at `at`, given the tokens from `start` on.
    let loss = |start: usize, at: usize| {
        let logits = model.logits(&ids[start..at], 1).expect("logits");
        let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        sum.ln() - f64::from(logits[ids[at] as usize])
    };
    let eval = format!("eval --json --model {} --data {}", fixture(kind).display(), data.display());
    let starts: [(&str, fn(usize) -> usize); 4] = [
        ("", |_| 0),
        ("--context 4", |at| (at - 1) / 4 * 4),
        ("--context 4 --stride 1", |at| at.saturating_sub(4)),
        ("--context 5 --stride 3", |at| if at <= 5 { 0 } else { (at - 6) / 3 * 3 + 3 }),
    ];
    for (options, start) in starts {
        let ran = json(&format!("{eval} {options}"));
        let wanted = (1..n).map(|at| loss(start(at), at)).sum::<f64>() / (n - 1) as f64;
        let found = ran["loss"].as_f64().expect("a loss");
        assert!((found - wanted).abs() < 1e-5, "{options}: {found}, not {wanted}");
        let perplexity = ran["perplexity"].as_f64().expect("a perplexity");
        assert!((perplexity / found.exp() - 1.0).abs() < 1e-12);
        assert_eq!(ran["tokens"], n - 1);
    }
    let text = chimera(&eval.replace("--json", "")).stdout;
    assert!(
        text.starts_with("loss ") && text.contains(" over 11 tokens in windows of 16"),
        "{text}"
    );

    for (options, wanted) in [
        ("--context 17", "a window of 17 tokens: choose 1 to the model's context of 16"),
        ("--context 0", "a window of 0 tokens"),
        ("--context 4 --stride 5", "a stride of 5 tokens: choose 1 to the window's 4"),
        ("--stride 0", "a stride of 0 tokens"),
    ] {
        assert!(refusal(&format!("{eval} {options}")).contains(wanted), "{options}");
    }
    write(&data, 20u16.to_le_bytes()).expect("written");
    assert!(refusal(&eval).contains("token 0 has id 20, but the vocabulary has 20 ids"));
    write(&data, 1u16.to_le_bytes()).expect("written");
    assert!(refusal(&eval).contains("a single token predicts nothing"));
}

#[test]
fn an_export_is_what_transformers_saves() {
    let folder = folder();
    let out = folder.path().join("out");
    let export = format!("export {} --out {}", fixture("tied").display(), out.display());
    let ran = chimera(&export);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.ends_with("model.safetensors: 2048 parameters\n"), "{}", ran.stdout);
    let bytes = |folder: &std::path::Path| read(folder.join("model.safetensors")).expect("a file");
    assert!(bytes(&out) == bytes(&fixture("tied")));
    assert!(refusal(&export).contains("holds a model already: choose another folder"));
    let file = out.join("config.json");
    let export = format!("export {} --out {}", fixture("tied").display(), file.display());
    assert!(refusal(&export).contains("config.json: File exists"));
    // Nor is a trained model replaced.
    let text = folder.path().join("text.txt");
    write(&text, "a text ".repeat(100)).expect("written");
    let train = format!("train --data {} --save {}", text.display(), out.display());
    assert!(refusal(&train).contains("holds a model already: choose another folder"));
    assert!(bytes(&out) == bytes(&fixture("tied")));
}

/// A folder with a short text, and the folder of a run that is trained on it.
fn text_and_run() -> (TempDir, String, String) {
    let folder = folder();
    let (text, run) = (folder.path().join("text.txt"), folder.path().join("run"));
    write(&text, "a text ".repeat(100)).expect("written");
    (folder, text.display().to_string(), run.display().to_string())
}

#[test]
fn a_run_keeps_its_weights_and_says_what_is_next() {
    let (_folder, text, run) = text_and_run();
    let ran = chimera(&format!("train --data {text} --out {run} --steps 1"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let next = ran.stdout.lines().rev().nth(1).and_then(|line| line.strip_prefix("next: chimera "));
    let tried = chimera(&format!(
        "{} --tokens 3",
        next.expect("a line about what is next, before the report")
    ));
    assert!(tried.code == Some(0) && tried.stdout.starts_with("The"), "{}", tried.stderr);
    assert!(tried.stderr.contains("run/model"), "{}", tried.stderr);
}

#[test]
fn a_run_without_weights_is_told_as_such() {
    let (folder, text, run) = text_and_run();
    let train = format!("train --data {text} --out {run} --steps 1");
    let both = refusal(&format!("{train} --no-save --save {}", folder.path().display()));
    assert!(both.contains("`no-save` contradicts `save`"), "{both}");
    let ran = chimera(&format!("{train} --no-save"));
    assert!(ran.code == Some(0) && !ran.stdout.contains("next: "), "{}", ran.stdout);
    let refused = refusal(&format!("generate --model {run} --prompt a"));
    let reason = "is a run without weights: it was trained with --no-save: train it without";
    assert!(refused.contains(reason), "{refused}");
    let refused = refusal(&format!("generate --model {text} --prompt a"));
    assert!(refused.contains("text.txt is a file: name a folder"), "{refused}");
}

/// If a checkpoint is newer than the weights of an earlier end, it has the run's latest weights.
#[test]
fn what_a_run_trained_last_is_its_model() {
    let (_folder, text, run) = text_and_run();
    let train = |options: &str| {
        let ran = chimera(&format!("train --data {text} --out {run} {options}"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    };
    let model = || chimera(&format!("generate --model {run} --prompt a --tokens 1")).stderr;
    train("--steps 2 --save-every 2 --lr-schedule constant");
    assert!(model().trim_end().ends_with("run/model"), "{}", model());
    train("--steps 4 --save-every 2 --lr-schedule constant --resume auto --no-save");
    assert!(model().trim_end().ends_with("step-00000004"), "{}", model());
    train("--steps 4 --save-every 2 --lr-schedule constant --resume auto");
    assert!(model().trim_end().ends_with("run/model"), "{}", model());
    // Its checkpoints are not needed then, whatever they hold.
    for step in ["2", "4"] {
        let weights = std::path::Path::new(&run).join(format!("checkpoints/step-0000000{step}"));
        for file in weights.read_dir().expect("a checkpoint").flatten() {
            std::fs::write(file.path(), "damaged").expect("written");
        }
    }
    assert_eq!(model().trim_end(), format!("model: {run}/model"));
}

#[test]
fn a_trained_model_writes_and_is_measured() {
    let folder = folder();
    let (data, dir) = (text(&folder), folder.path().join("w"));
    let train = format!(
        "train --layers 2 --hidden 16 --heads 2 --context 16 --depth 2 --steps 60 --lr 0.02 --threads 1 \
         --data {} --save {} --out {}",
        data.display(),
        dir.display(),
        folder.path().join("run").display()
    );
    assert_eq!(chimera(&train).code, Some(0));
    let eval = json(&format!("eval --json --model {} --data {}", dir.display(), data.display()));
    assert_eq!(eval["tokens"], std::fs::metadata(&data).expect("a file").len() - 1);
    let loss = eval["loss"].as_f64().expect("a loss");
    assert!(loss < 3.0, "a trained model foresees words of ten: {loss}");
    let generate = format!("generate --model {} --prompt \"the pipe\" --tokens 30", dir.display());
    let ran = chimera(&generate);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.starts_with("the pipe"), "{}", ran.stdout);

    // The streamed pieces add up to the text of all tokens, including invalid bytes.
    for seed in 1..5 {
        let draw = format!("{generate} --temperature 3 --seed {seed}");
        let whole = json(&format!("{draw} --json"));
        let shown = whole["text"].as_str().expect("a text");
        let shown = shown.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "\u{fffd}");
        assert_eq!(chimera(&draw).stdout, format!("{}\n", shown.trim_end()));
    }
}

#[test]
fn tokens_are_shown_as_they_are_drawn() {
    let generate = format!("generate --model {} --prompt 1", fixture("tied").display());
    let mut running = start(&format!("{generate} --tokens 10000000 --ignore-end"));
    let shown = running.output.path().join("stdout");
    let since = Instant::now();
    while std::fs::metadata(&shown).expect("a file").len() < 40 {
        assert!(since.elapsed() < Duration::from_secs(60), "nothing is shown");
        std::thread::sleep(Duration::from_millis(2));
    }
    running.child.kill().expect("killed");
    let shown = running.end().stdout;
    let all = chimera(&format!("{generate} --tokens 40 --ignore-end")).stdout;
    let n = shown.len().min(all.len()) - 1;
    assert_eq!(shown[..n], all[..n]);
}

/// Its vocabulary alone would suggest GPT-2's tokens.
#[test]
fn a_checkpoint_is_prompted_in_the_tokens_of_its_data() {
    let folder = folder();
    let (data, run) = (text(&folder), folder.path().join("run"));
    let train = format!(
        "train --layers 1 --hidden 4 --heads 1 --context 8 --depth 1 --steps 1 --threads 1 --vocab 50257 \
         --save-every 1 --data {} --out {}",
        data.display(),
        run.display()
    );
    assert_eq!(chimera(&train).code, Some(0));
    let generate = format!("generate --json --tokens 1 --prompt Hello --model {}", run.display());
    assert_eq!(json(&generate)["prompt"], serde_json::json!([72, 101, 108, 108, 111]));
    let ran = json(&format!("{generate} --tokenizer gpt2"));
    assert_eq!(ran["prompt"], serde_json::json!([15496]));
    // The bytes of a text are not the tokens of another model.
    let (bin, other) = (folder.path().join("data.bin"), folder.path().join("other"));
    let prepare = format!("prepare {} --tokenizer gpt2 --out {}", data.display(), bin.display());
    assert_eq!(chimera(&prepare).code, Some(0));
    let train = train
        .replace(&data.display().to_string(), &bin.display().to_string())
        .replace(&run.display().to_string(), &other.display().to_string());
    assert_eq!(chimera(&train).code, Some(0));
    let eval = |data: &std::path::Path| {
        chimera(&format!("eval --model {} --data {}", other.display(), data.display()))
    };
    assert_eq!(eval(&bin).code, Some(0));
    // A text gets the tokens of the model first, and so the same loss.
    assert_eq!(loss_of(&eval(&data)), loss_of(&eval(&bin)));
    // Text is named as such, whether it is still there or not.
    std::fs::remove_file(data).expect("removed");
    assert_eq!(json(&generate)["prompt"].as_array().map(Vec::len), Some(5));
}

/// The loss of an evaluation, as it prints it.
fn loss_of(ran: &crate::command::Ran) -> String {
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran.stdout.split_once(" nats").expect("a loss").0.to_string()
}

/// The data has changed since the training.
#[test]
fn a_run_is_prompted_in_the_tokens_beside_its_weights() {
    const WORDS: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
        "decoder": null, "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[UNK]": 0,
        "pipe": 1, "stage": 2, "worker": 3}}}"#;
    let folder = folder();
    let (text, place) = (text(&folder), folder.path().display());
    let tokenizer = folder.path().join("words.json");
    let prepared = |vocabulary: &str| {
        write(&tokenizer, vocabulary).expect("written");
        let out = format!("--tokenizer {} --out {place}/data.bin", tokenizer.display());
        let ran = chimera(&format!("prepare {} {out}", text.display()));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    };
    let moved = || {
        for name in ["data.bin", "data.bin.json", "data.bin.tokenizer.json"] {
            std::fs::remove_file(folder.path().join(name)).expect("removed");
        }
    };
    prepared(WORDS);
    let train = chimera(&format!(
        "train --layers 1 --hidden 4 --heads 1 --context 8 --depth 1 --steps 1 --threads 1 \
         --data {place}/data.bin --out {place}/run"
    ));
    assert_eq!(train.code, Some(0), "{}", train.stderr);
    moved();
    let generate =
        format!("generate --json --tokens 1 --prompt \"pipe worker\" --model {place}/run");
    assert_eq!(json(&generate)["prompt"], serde_json::json!([1, 3]));
    let export = chimera(&format!("export {place}/run --out {place}/exported"));
    assert_eq!(export.code, Some(0), "{}", export.stderr);
    let exported = std::fs::read_to_string(folder.path().join("exported/tokenizer.json"));
    assert_eq!(exported.expect("a tokenizer"), WORDS);
    prepared(&WORDS.replace("\"pipe\": 1", "\"idle\": 1"));
    assert_eq!(json(&generate)["prompt"], serde_json::json!([1, 3]));
}
