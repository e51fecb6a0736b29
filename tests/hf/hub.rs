//! Models named by their names on a hub, in every command, and what a hub can do wrong.

use std::collections::BTreeMap;
use std::fs::{read_dir, read_to_string, remove_dir_all, write};
use std::path::Path;
use std::thread::scope;

use chimera::data::tokenizer::Tokenizer;
use chimera::formats::hub::named;
use serde_json::Value;
use tempfile::TempDir;

use super::fixture;
use super::hub_server::{COMMIT, Mood, Running, ask};
use super::train::data;
use crate::command::{Ran, chimera, folder};

const WEIGHTS: &str = "model.safetensors";
/// The bytes of the weights of the fixture `tied`.
const N_BYTES: usize = 10688;

/// A cache, and what a command writes.
struct Home(TempDir);

impl Home {
    fn new() -> Home {
        Home(folder())
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Runs a command that must succeed.
    fn succeed(&self, hub: &str, more: &[(&str, &str)], line: &str) -> Ran {
        let ran = ask(hub, self.0.path(), more, line);
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
        ran
    }

    /// Exports the model, which must fail with these words.
    fn refuse(&self, hub: &str, more: &[(&str, &str)], name: &str, words: &[&str]) {
        let out = self.at("refused");
        let ran = ask(hub, self.0.path(), more, &format!("export {name} --out {out}"));
        assert_eq!(
            (ran.code, Path::new(&out).exists()),
            (Some(2), false),
            "{name}: {}",
            ran.stderr
        );
        for word in words {
            assert!(ran.stderr.contains(word), "{name}: not `{word}`: {}", ran.stderr);
        }
    }

    /// The endings of the names of contents in the cache, and their sizes.
    fn blobs(&self) -> Vec<(String, u64)> {
        let folder = self.0.path().join("hub/models--org--tiny/blobs");
        let entries = read_dir(folder).into_iter().flatten().map(|entry| entry.expect("a file"));
        let blob = |entry: std::fs::DirEntry| {
            let name = entry.file_name().into_string().expect("UTF-8");
            (name[name.len().min(40)..].to_string(), entry.metadata().expect("a file").len())
        };
        entries.map(blob).collect()
    }
}

fn losses(run: &str) -> Vec<String> {
    let text = read_to_string(Path::new(run).join("metrics.jsonl")).expect("metrics");
    let loss = |line: &str| {
        let step: Value = serde_json::from_str(line).expect("JSON");
        step["loss"].to_string() + &step["grad_norm"].to_string()
    };
    text.lines().map(loss).collect()
}

#[test]
fn a_model_of_a_hub_trains_as_its_folder_does() {
    for kind in ["tied", "bf16-sharded"] {
        let (home, hub) = (Home::new(), Running::of(&fixture(kind)));
        let (data, at) = (data(&home.0), hub.endpoint());
        let train = |init: &str, out: &str| {
            format!(
                "train --init {init} --data {data} --out {} --depth 2 --micro-batches 2 --micro-batch-size 1 \
                 --threads 1 --steps 3",
                home.at(out)
            )
        };
        let ran = chimera(&train(&fixture(kind).display().to_string(), "local"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let wanted = losses(&home.at("local"));
        let is_same = |out: &str| assert_eq!(losses(&home.at(out)), wanted, "{kind}: {out}");

        let ran = home.succeed(&at, &[], &train("org/tiny", "fetched"));
        is_same("fetched");
        let begins = format!("fetches org/tiny at {at} (commit 01234567)");
        assert!(ran.stderr.contains(&begins), "{}", ran.stderr);
        assert!(ran.stderr.contains("fetched config.json, 8"), "{}", ran.stderr);
        let requests = hub.requests();
        for other in ["pytorch_model.bin", "README.md", "onnx", "expected.json"] {
            assert!(requests.iter().all(|request| !request.contains(other)), "{requests:?}");
        }
        let settings = read_to_string(home.at("fetched/config.toml")).expect("settings");
        assert!(settings.contains(&format!("snapshots/{COMMIT}\"")), "{settings}");

        // What is there is not fetched again, and a commit is not asked for.
        home.succeed(&at, &[], &train("org/tiny@main", "again"));
        is_same("again");
        assert_eq!(hub.requests(), ["GET /api/models/org/tiny/revision/main"]);
        home.succeed(&at, &[], &train(&format!("org/tiny@{COMMIT}"), "pinned"));
        is_same("pinned");
        assert!(hub.requests().is_empty());
        drop(hub);
        let ran = home.succeed(&at, &[], &train("org/tiny", "stale"));
        is_same("stale");
        assert!(ran.stderr.contains("the model in the cache is taken"), "{}", ran.stderr);
        let ran = home.succeed(&at, &[("HF_HUB_OFFLINE", "1")], &train("org/tiny", "offline"));
        is_same("offline");
        assert!(!ran.stderr.contains("cache"), "{}", ran.stderr);
    }
}

#[test]
fn a_resumed_run_fetches_nothing() {
    let (home, hub) = (Home::new(), Running::of(&fixture("tied")));
    let train = format!(
        "train --init org/tiny --data {} --out {} --depth 2 --micro-batch-size 1 --threads 1 --save-every 1 \
         --resume auto",
        data(&home.0),
        home.at("run")
    );
    home.succeed(&hub.endpoint(), &[], &format!("{train} --steps 1"));
    remove_dir_all(home.at("hub")).expect("a cache");
    hub.requests();
    home.succeed(&hub.endpoint(), &[], &format!("{train} --steps 2"));
    assert_eq!((hub.requests().len(), losses(&home.at("run")).len()), (0, 2));
    assert!(!Path::new(&home.at("hub")).exists());
}

#[test]
fn every_command_that_reads_a_model_takes_its_name() {
    let (home, hub) = (Home::new(), Running::of(&fixture("tied")));
    let (data, at, local) = (data(&home.0), hub.endpoint(), fixture("tied").display().to_string());
    // A plan needs no weights.
    let plan = "plan --init org/tiny --ranks 2 --batch 4 --memory 1GiB --flops 1e9";
    let ran = home.succeed(&at, &[], plan);
    assert!(ran.stdout.starts_with("org/tiny: 2048 parameters"), "{}", ran.stdout);
    let requests = hub.requests();
    assert!(requests.iter().any(|request| request.contains("config.json")));
    assert!(requests.iter().all(|request| !request.contains(WEIGHTS)), "{requests:?}");
    for command in [
        "generate --prompt \"3 1 4\" --tokens 5 --temperature 0 --tokenizer ids --model"
            .to_string(),
        format!("eval --data {data} --json --model"),
    ] {
        let ours = home.succeed(&at, &[], &format!("{command} org/tiny")).stdout;
        let theirs = home.succeed(&at, &[], &format!("{command} {local}")).stdout;
        let lines = |text: &str| {
            let is_timed = |line: &&str| !line.contains("seconds") && !line.contains("\"model\"");
            text.lines().filter(is_timed).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(lines(&ours), lines(&theirs), "{command}");
    }
    home.succeed(&at, &[], &format!("export org/tiny --out {}", home.at("exported")));

    // An adapter names its model as other programs do, and its commit.
    let train = format!(
        "train --init org/tiny --lora 2 --data {data} --micro-batch-size 1 --threads 1 --steps 1"
    );
    home.succeed(&at, &[], &format!("{train} --depth 2 --out {}", home.at("tuned")));
    let adapter = home.at("tuned/model/adapter");
    let config = read_to_string(format!("{adapter}/adapter_config.json")).expect("a file");
    let config: Value = serde_json::from_str(&config).expect("JSON");
    assert_eq!(
        (&config["base_model_name_or_path"], &config["revision"]),
        (&"org/tiny".into(), &COMMIT.into())
    );
    drop(hub);
    let line = format!(
        "generate --adapter {adapter} --prompt 3 --tokens 5 --temperature 0 --tokenizer ids"
    );
    let generated = home.succeed(&at, &[], &line).stdout;
    let line = line
        .replace(&format!("--adapter {adapter}"), &format!("--model {}", home.at("tuned/model")));
    assert_eq!(generated, home.succeed(&at, &[], &line).stdout);
}

#[test]
fn chats_are_prepared_with_the_template_of_a_model() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                    {% if add_generation_prompt %}<assistant>{% endif %}";
    let files = [
        ("config.json", b"{}".to_vec()),
        ("chat_template.jinja", template.into()),
        ("tokenizer.json", Tokenizer::Bytes.to_json().expect("a file")),
        (WEIGHTS, b"not fetched".to_vec()),
    ];
    let hub = Running::with(files.map(|(name, content)| (name.to_string(), content)).into());
    let home = Home::new();
    let chat = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    write(home.at("chats.jsonl"), chat).expect("a file");
    let ran = home.succeed(
        &hub.endpoint(),
        &[],
        &format!(
            "prepare {} --chat --tokenizer org/tiny --out {}",
            home.at("chats.jsonl"),
            home.at("a.bin")
        ),
    );
    assert!(ran.stdout.contains("19 tokens, of which 1 are targets"), "{}", ran.stdout);
    assert!(hub.requests().iter().all(|request| !request.contains(WEIGHTS)));
}

#[test]
fn folders_come_before_names() {
    assert!(named(Path::new("tests/hf")).is_none());
    assert!(named(Path::new("tests/none")).is_some());
    let home = Home::new();
    // A plain name without a revision is a folder, which is not there.
    home.refuse("http://127.0.0.1:1", &[], "tiny", &["tiny: there is no such folder"]);
}

#[test]
fn refusals_of_a_hub_say_what_to_do() {
    let (home, hub) = (Home::new(), Running::of(&fixture("tied")));
    let at = hub.endpoint();
    let of_hub = format!("org/tiny at {at}: ");
    let unreachable = "http://127.0.0.1:1";
    home.refuse(
        unreachable,
        &[],
        "org/tiny",
        &["org/tiny at http://127.0.0.1:1: the hub does not answer", "HF_ENDPOINT"],
    );
    home.refuse(
        &at,
        &[("HF_HUB_OFFLINE", "1")],
        "org/tiny",
        &["HF_HUB_OFFLINE forbids", &home.at("hub")],
    );
    home.refuse(
        &at,
        &[("HF_HUB_CACHE", "/dev/null/x")],
        "org/tiny",
        &["/dev/null/x", "HF_HUB_CACHE", "cannot make"],
    );
    home.refuse(&at, &[], "org/other", &["org/other at", "there is no such model", "set HF_TOKEN"]);
    let listing = |status, code| Mood { listing: Some((status, code)), ..Mood::default() };
    let file = |status, code| Mood { file: Some((WEIGHTS, status, code)), ..Mood::default() };
    let no_revision = "has no revision `v9/x`: name one of its branches, tags or commits";
    for (mood, name, words) in [
        (
            listing(401, "RepoNotFound"),
            "org/tiny",
            "there is no such model, and no such folder here",
        ),
        (listing(401, ""), "org/tiny", "or set HF_TOKEN"),
        (listing(404, "RevisionNotFound"), "org/tiny@v9/x", no_revision),
        (listing(429, ""), "org/tiny", "it answers with status 429: try again later"),
        (listing(503, ""), "org/tiny", "it answers with status 503: try again later"),
        (
            file(404, "EntryNotFound"),
            "org/tiny",
            "it has no model.safetensors: choose another model",
        ),
        (Mood { is_other: true, ..Mood::default() }, "org/tiny", "this is not the answer of a hub"),
    ] {
        hub.be(mood);
        let whole = of_hub.replace("org/tiny", name);
        home.refuse(&at, &[], name, &[&whole, words]);
    }
    assert!(
        hub.requests().iter().any(|request| request == "GET /api/models/org/tiny/revision/v9%2Fx")
    );
    assert!(home.blobs().iter().all(|(_, bytes)| *bytes < 1000), "{:?}", home.blobs());
}

#[test]
fn models_without_weights_to_read_are_refused() {
    let config = std::fs::read(fixture("tied").join("config.json")).expect("a fixture");
    let index = r#"{"weight_map": {"a": "one.safetensors", "b": "../two.safetensors"}}"#;
    for (file, content, words) in [
        (
            "pytorch_model.bin",
            "",
            "neither model.safetensors nor its index (pytorch_model.bin is a pickle",
        ),
        ("tiny.safetensors.json", "", "nor its index (one.safetensors is not read)"),
        (
            "model.safetensors.index.json",
            index,
            "it has no ../two.safetensors, which model.safetensors.index.json",
        ),
        ("model.safetensors.index.json", "{", "model.safetensors.index.json cannot be read"),
    ] {
        let files =
            [("config.json", config.clone()), (file, content.into()), ("one.safetensors", vec![0])];
        let files = files.map(|(name, content)| (name.to_string(), content));
        let hub = Running::with(BTreeMap::from(files));
        Home::new().refuse(&hub.endpoint(), &[], "org/tiny", &["org/tiny at ", words]);
    }
}

#[test]
fn tokens_open_gated_models_and_go_to_the_hub_alone() {
    let hub = Running::of(&fixture("tied"));
    hub.be(Mood { token: Some("secret"), ..Mood::default() });
    let at = hub.endpoint();
    let home = Home::new();
    let terms = format!(
        "not everyone may read it (status 401): accept its terms at {at}/org/tiny, or set HF_TOKEN"
    );
    home.refuse(&at, &[], "org/tiny", &[&terms]);
    let wrong = [("HF_TOKEN", "wrong")];
    home.refuse(&at, &wrong, "org/tiny", &["(status 403)", "whether the token of HF_TOKEN"]);
    let export = |home: &Home| format!("export org/tiny --out {}", home.at("out"));
    home.succeed(&at, &[("HF_TOKEN", "secret")], &export(&home));
    let home = Home::new();
    write(home.at("token"), "secret\n").expect("a token");
    hub.requests();
    home.succeed(&at, &[], &export(&home));
    for request in hub.requests() {
        assert_eq!(request.ends_with(" with a token"), !request.contains("/cdn/"), "{request}");
    }
}

#[test]
fn a_download_that_was_cut_goes_on() {
    let hub = Running::of(&fixture("tied"));
    let at = hub.endpoint();
    let export =
        |home: &Home| home.succeed(&at, &[], &format!("export org/tiny --out {}", home.at("out")));
    let ranges = || -> Vec<String> {
        let all = hub.requests().into_iter().filter(|request| request.contains("/cdn/"));
        all.map(|request| request.replace(&format!("GET /cdn/{WEIGHTS}"), "")).collect()
    };
    let cut = |n_bytes, times| Mood { cut: Some(("/cdn/", n_bytes, times)), ..Mood::default() };

    // Within one command, as long as more of it comes.
    let home = Home::new();
    hub.be(cut(4000, 2));
    export(&home);
    assert_eq!(ranges(), ["", " bytes=4000-", " bytes=8000-"]);

    // By the next command.
    let home = Home::new();
    hub.be(cut(1000, usize::MAX));
    let words = format!("the connection ended after 5000 of {N_BYTES} bytes of {WEIGHTS}");
    home.refuse(&at, &[], "org/tiny", &[&words, "the same command goes on from there"]);
    assert!(
        home.blobs()
            .iter()
            .any(|(ending, bytes)| ending.ends_with(".incomplete") && *bytes == 5000)
    );
    assert!(
        home.blobs().iter().all(|(ending, bytes)| ending.ends_with(".incomplete") || *bytes < 1000)
    );
    home.refuse(&at, &[("HF_HUB_OFFLINE", "1")], "org/tiny", &["lacks this model"]);
    hub.be(Mood::default());
    ranges();
    export(&home);
    assert_eq!(ranges(), [" bytes=5000-"]);
    assert!(home.blobs().iter().all(|(ending, _)| !ending.ends_with(".incomplete")));

    // Where the hub begins again, so does the file.
    let home = Home::new();
    hub.be(Mood { ignores_ranges: true, ..cut(4000, 1) });
    export(&home);
    assert_eq!(ranges(), ["", " bytes=4000-"]);
}

#[test]
fn damaged_files_are_removed() {
    let hub = Running::of(&fixture("tied"));
    let at = hub.endpoint();
    let longer = format!("it has {} bytes instead of {N_BYTES}", N_BYTES + 1);
    for (mood, words) in [
        (Mood { damaged: Some(WEIGHTS), ..Mood::default() }, "its hash is "),
        (
            Mood { damaged: Some("config.json"), ..Mood::default() },
            "config.json came damaged, and was removed",
        ),
        (Mood { longer: Some(WEIGHTS), ..Mood::default() }, &*longer),
    ] {
        let home = Home::new();
        hub.be(mood);
        home.refuse(
            &at,
            &[],
            "org/tiny",
            &["came damaged, and was removed", words, "fetches it again"],
        );
        let is_whole =
            |(ending, bytes): &(String, u64)| !ending.ends_with(".incomplete") && *bytes < 1000;
        assert!(home.blobs().iter().all(is_whole), "{:?}", home.blobs());
        hub.be(Mood::default());
        home.succeed(&at, &[], &format!("export org/tiny --out {}", home.at("out")));
    }
}

#[test]
fn processes_that_want_one_model_fetch_it_once() {
    let (home, hub) = (Home::new(), Running::of(&fixture("bf16-sharded")));
    scope(|scope| {
        for nth in 0..3 {
            let (home, at) = (&home, hub.endpoint());
            scope.spawn(move || {
                home.succeed(
                    &at,
                    &[],
                    &format!("export org/tiny --out {}", home.at(&nth.to_string())),
                )
            });
        }
    });
    let contents = hub.requests().into_iter().filter(|request| request.contains("/cdn/"));
    assert_eq!(contents.count(), 3); // one for each shard
}
