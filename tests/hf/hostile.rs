//! Folders that are broken, wrong or malicious: each is refused with the mistake in it.

use std::fs::{copy, read, read_dir, read_to_string, remove_file, write};
use std::path::PathBuf;

use chimera::formats::hf;
use proptest::prelude::*;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::fixture;
use crate::command::folder;

const INDEX: &str = "model.safetensors.index.json";
const SHARD: &str = "model-00001-of-00003.safetensors";

/// A tensor to be written: name, type, shape, bytes.
type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

/// A copy of a fixture that may be broken.
struct Broken(TempDir);

impl Broken {
    fn new(kind: &str) -> Broken {
        let to = folder();
        for entry in read_dir(fixture(kind)).expect("a fixture") {
            let entry = entry.expect("a file");
            copy(entry.path(), to.path().join(entry.file_name())).expect("a copy");
        }
        Broken(to)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The refusal, without the folder.
    fn refusal(&self) -> String {
        let error = hf::read(self.0.path()).expect_err("it is broken");
        format!("{error:#}").replace(&format!("{}", self.0.path().display()), "DIR")
    }

    /// Changes the tensors of a file.
    fn tensors(&self, file: &str, change: impl FnOnce(&mut Vec<Tensor>)) {
        let bytes = read(self.at(file)).expect("a file");
        let tensors = SafeTensors::deserialize(&bytes).expect("safetensors").tensors().into_iter();
        let mut tensors: Vec<Tensor> = tensors
            .map(|(name, t)| (name, t.dtype(), t.shape().to_vec(), t.data().to_vec()))
            .collect();
        change(&mut tensors);
        let views = tensors.iter().map(|(name, dtype, shape, data)| {
            (name, TensorView::new(*dtype, shape.clone(), data).expect("a tensor"))
        });
        write(self.at(file), serialize(views, None).expect("a file")).expect("written");
    }

    /// Changes a key of a JSON file.
    fn json(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let mut value: Value =
            serde_json::from_str(&read_to_string(self.at(file)).expect("a file")).expect("JSON");
        change(&mut value);
        write(self.at(file), value.to_string()).expect("written");
    }
}

/// The refusal of the model `tied` after a change of its tensors.
fn said_of(change: impl FnOnce(&mut Vec<Tensor>)) -> String {
    let broken = Broken::new("tied");
    broken.tensors("model.safetensors", change);
    broken.refusal()
}

fn find<'t>(tensors: &'t mut [Tensor], name: &str) -> &'t mut Tensor {
    tensors.iter_mut().find(|tensor| tensor.0.ends_with(name)).expect("a tensor")
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let cases: [(&str, &dyn Fn(&mut Vec<Tensor>)); 9] = [
        ("DIR: 1 tensor is missing: h.1.ln_2.bias", &|t| {
            t.retain(|t| !t.0.ends_with("h.1.ln_2.bias"))
        }),
        (
            "DIR: 24 tensors are missing: h.0.ln_1.weight, h.0.ln_1.bias, h.0.attn.c_attn.weight, …",
            &|t| t.retain(|t| !t.0.contains(".h.")),
        ),
        ("DIR: 1 tensor is unknown in a GPT-2 of 2 layers: transformer.h.2.ln_1.bias", &|t| {
            t.push(("transformer.h.2.ln_1.bias".into(), Dtype::F32, vec![0], vec![]))
        }),
        // As PyTorch stores a linear layer.
        (
            "DIR/model.safetensors: transformer.h.0.attn.c_attn.weight has shape [24, 8], but config.json \
             makes it [8, 24]",
            &|t| find(t, "h.0.attn.c_attn.weight").2 = vec![24, 8],
        ),
        (
            "DIR/model.safetensors: transformer.wte.weight: element 5 is NaN, not a number to compute with",
            &|t| find(t, "wte.weight").3[20..24].copy_from_slice(&f32::NAN.to_le_bytes()),
        ),
        (
            "DIR/model.safetensors: transformer.ln_f.bias is of type I32: F32, F16 and BF16 can be read",
            &|t| find(t, "ln_f.bias").1 = Dtype::I32,
        ),
        ("wte.weight in DIR/model.safetensors exists twice: as ", &|t| {
            let (_, dtype, shape, data) = find(t, "wte.weight").clone();
            t.push(("wte.weight".into(), dtype, shape, data));
        }),
        (
            "DIR: lm_head.weight differs from wte.weight, but config.json ties them: set \
             `tie_word_embeddings` to false",
            &|t| {
                let (_, dtype, shape, mut data) = find(t, "wte.weight").clone();
                data[3] ^= 1;
                t.push(("lm_head.weight".into(), dtype, shape, data));
            },
        ),
        ("DIR: lm_head.weight differs from wte.weight", &|t| {
            t.push(("lm_head.weight".into(), Dtype::F32, vec![0], vec![]))
        }),
    ];
    for (wanted, change) in cases {
        let refusal = said_of(change);
        assert!(refusal.contains(wanted), "{refusal}\n{wanted}");
    }
}

/// The head may have another type than the table if its values equal the table's as far as that
/// type allows.
#[test]
fn a_tied_head_may_have_fewer_bits() {
    let head = |change: &dyn Fn(f32) -> f32| {
        let broken = Broken::new("tied");
        broken.tensors("model.safetensors", |t| {
            let (_, _, shape, data) = find(t, "wte.weight").clone();
            let values = data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            let halves = values.flat_map(|value| half::f16::from_f32(change(value)).to_le_bytes());
            t.push(("lm_head.weight".into(), Dtype::F16, shape, halves.collect()));
        });
        broken
    };
    let plain = hf::read(&fixture("tied")).expect("a model");
    let rounded = head(&|value| value);
    assert!(hf::read(rounded.0.path()).expect("a model") == plain, "the table counts");
    let other = head(&|value| value * 1.01).refusal();
    assert!(other.contains("lm_head.weight differs from wte.weight"), "{other}");
}

#[test]
fn a_tied_head_and_masks_may_be_saved_too() {
    let broken = Broken::new("tied");
    let plain = hf::read(broken.0.path()).expect("a model");
    broken.tensors("model.safetensors", |t| {
        let (_, dtype, shape, data) = find(t, "wte.weight").clone();
        t.push(("lm_head.weight".into(), dtype, shape, data));
        t.push((
            "transformer.h.0.attn.bias".into(),
            Dtype::BOOL,
            vec![1, 1, 2, 2],
            vec![1, 0, 1, 1],
        ));
        t.push(("h.1.attn.masked_bias".into(), Dtype::F32, vec![], vec![0; 4]));
    });
    assert_eq!(hf::read(broken.0.path()).expect("a model"), plain);
}

/// A header in which every tensor is sound, but together they are longer than any file.
fn beyond_64_bits() -> String {
    const MOST: u64 = (1 << 61) - 4; // the largest size whose bits can be counted
    let mut start = 0u64;
    let sizes = [[MOST; 8].as_slice(), &[28]].concat().into_iter().enumerate();
    let tensors = sizes.map(|(n, size)| {
        let (begin, end) = (start, start + size);
        start = end;
        (n.to_string(), json!({"dtype": "F32", "shape": [size / 4], "data_offsets": [begin, end]}))
    });
    Value::Object(tensors.collect()).to_string()
}

#[test]
fn files_that_are_no_safetensors_are_refused_before_they_are_read() {
    let whole = read(fixture("tied").join("model.safetensors")).expect("a fixture");
    let with_length = |length: u64| [&length.to_le_bytes(), &whole[8..]].concat();
    let header = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    for (bytes, wanted) in [
        (vec![], "DIR/model.safetensors: it has no header of safetensors"),
        (vec![7; 5], "it has no header"),
        (with_length(u64::MAX), "a header of 18446744073709551615 bytes is too long"),
        (with_length(1 << 30), "torn, or not of safetensors: a header of 1073741824 bytes"),
        (with_length(whole.len() as u64 - 7), "bytes is too long"),
        (with_length(40), "its header cannot be read: "),
        (whole[..whole.len() - 1].to_vec(), "torn: its header does not account for its"),
        ([&whole[..], &[0]].concat(), "torn: its header does not account for its"),
        (header("{}"), "28 tensors are missing"),
        (header(&"[".repeat(100_000)), "its header cannot be read: "),
        (
            header(r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}"#),
            "its header cannot be read: ",
        ),
        (
            header(
                r#"{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}"#,
            ),
            "bytes, but for 439804651",
        ),
        (header(&beyond_64_bits()), "bytes, but for 18446744073709552"),
        (
            header(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#),
            "its header cannot be read: ",
        ),
        (
            header(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}}"#),
            "its header cannot be read: ",
        ),
    ] {
        let broken = Broken::new("tied");
        write(broken.at("model.safetensors"), bytes).expect("written");
        let refusal = broken.refusal();
        assert!(refusal.contains(wanted), "{refusal}\n{wanted}");
    }
}

#[test]
fn an_index_names_files_of_its_folder_alone() {
    let outside = folder();
    copy(fixture("bf16-sharded").join(SHARD), outside.path().join(SHARD)).expect("a copy");
    let elsewhere = outside.path().join(SHARD).display().to_string();
    for name in
        ["../x.safetensors", "a/b", "/etc/passwd", elsewhere.as_str(), "..", ".", "", "./a", "a/"]
    {
        let broken = Broken::new("bf16-sharded");
        broken.json(INDEX, |index| index["weight_map"]["lm_head.weight"] = json!(name));
        let wanted =
            format!("DIR/{INDEX}: `{name}` is not the plain name of a file in this folder");
        assert_eq!(broken.refusal(), wanted);
    }
    #[cfg(unix)]
    {
        let broken = Broken::new("bf16-sharded");
        remove_file(broken.at(SHARD)).expect("removed");
        std::os::unix::fs::symlink(elsewhere, broken.at(SHARD)).expect("a link");
        let wanted = format!("`{SHARD}` is a link out of the folder: copy the file itself");
        assert!(broken.refusal().contains(&wanted), "{}", broken.refusal());
    }
}

/// As Hugging Face's tools store downloads.
#[cfg(unix)]
#[test]
fn a_model_in_the_hubs_cache_is_read() {
    use std::fs::create_dir_all;
    use std::os::unix::fs::symlink;

    let cache = folder();
    let [blobs, snapshot] = ["blobs", "snapshots/0123"].map(|name| cache.path().join(name));
    create_dir_all(&blobs).expect("a folder");
    create_dir_all(&snapshot).expect("a folder");
    for (nth, entry) in read_dir(fixture("bf16-sharded")).expect("a fixture").enumerate() {
        let entry = entry.expect("a file");
        copy(entry.path(), blobs.join(nth.to_string())).expect("a copy");
        let link = format!("../../blobs/{nth}");
        symlink(link, snapshot.join(entry.file_name())).expect("a link");
    }
    hf::read(&snapshot).expect("a model");
}

#[test]
fn an_index_and_its_shards_agree() {
    let broken = Broken::new("bf16-sharded");
    remove_file(broken.at(SHARD)).expect("removed");
    assert!(broken.refusal().contains(&format!("cannot read DIR/{SHARD}")), "{}", broken.refusal());

    let said = |change: &dyn Fn(&mut Value)| {
        let broken = Broken::new("bf16-sharded");
        broken.json(INDEX, change);
        broken.refusal()
    };
    let refusal = said(&|index| {
        index["weight_map"]["h.9.nothing"] = json!(SHARD);
    });
    assert_eq!(refusal, format!("DIR/{INDEX}: {SHARD} lacks h.9.nothing"));
    let refusal = said(&|index| {
        let map = index["weight_map"].as_object_mut().expect("a map");
        map.remove("lm_head.weight");
    });
    assert!(
        refusal.ends_with("holds lm_head.weight, which the index does not list there"),
        "{refusal}"
    );
    assert!(said(&|index| *index = json!({})).contains("missing field `weight_map`"));
    assert!(said(&|index| index["weight_map"] = json!({})).contains("29 tensors are missing"));
}

#[test]
fn a_folder_without_a_model_is_refused() {
    let empty = folder();
    let refusal = format!("{:#}", hf::read(empty.path()).expect_err("empty"));
    assert!(
        refusal.ends_with(
            "has no config.json: name the folder of a model, of `train --save` or of Hugging Face"
        ),
        "{refusal}"
    );
    let broken = Broken::new("tied");
    remove_file(broken.at("model.safetensors")).expect("removed");
    assert_eq!(
        broken.refusal(),
        "DIR holds neither model.safetensors nor model.safetensors.index.json; pickle files (.bin, \
         .pt) are never read"
    );
    let refusal = format!("{:#}", hf::read(&broken.at("config.json")).expect_err("a file"));
    assert!(refusal.contains("config.json has no config.json"), "{refusal}");
    write(broken.at("config.json"), vec![b' '; 2 << 20]).expect("written");
    assert_eq!(broken.refusal(), "DIR/config.json is larger than 1048576 bytes");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// With any bytes in the files, reading ends, and a model that is read has the declared sizes.
    #[test]
    fn no_bytes_make_it_panic(
        (kind, file) in prop::sample::select(vec![
            ("tied", "model.safetensors"),
            ("tied", "config.json"),
            ("bf16-sharded", INDEX),
            ("bf16-sharded", SHARD),
        ]),
        at in 0.0..1.0f64,
        len in 0..9usize,
        put in prop::collection::vec(any::<u8>(), 0..9),
    ) {
        let broken = Broken::new(kind);
        let mut bytes = read(broken.at(file)).expect("a file");
        // Half of the changes hit the header.
        let at = ((at * at * bytes.len() as f64) as usize).min(bytes.len() - 1);
        bytes.splice(at..(at + len).min(bytes.len()), put);
        write(broken.at(file), bytes).expect("written");
        if let Ok(gpt2) = hf::read(broken.0.path()) {
            let n: usize = gpt2.weights.iter().map(|(_, values)| values.len()).sum();
            prop_assert_eq!(n as u64, gpt2.config.n_params());
        }
    }
}
