//! Any index of a model's files is refused, or the whole model is read.

#![no_main]

use std::fs::write;

use chimera::formats::hf;

const FILES: [(&str, &[u8]); 4] = [
    ("config.json", include_bytes!("../../fixtures/gpt2/bf16-sharded/config.json")),
    (
        "model-00001-of-00003.safetensors",
        include_bytes!("../../fixtures/gpt2/bf16-sharded/model-00001-of-00003.safetensors"),
    ),
    (
        "model-00002-of-00003.safetensors",
        include_bytes!("../../fixtures/gpt2/bf16-sharded/model-00002-of-00003.safetensors"),
    ),
    (
        "model-00003-of-00003.safetensors",
        include_bytes!("../../fixtures/gpt2/bf16-sharded/model-00003-of-00003.safetensors"),
    ),
];

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, content) in FILES {
        write(folder.path().join(name), content).expect("a file");
    }
    write(folder.path().join("model.safetensors.index.json"), bytes).expect("a file");
    match hf::read(folder.path()) {
        Ok(model) => {
            let n_values: usize = model.weights.iter().map(|(_, values)| values.len()).sum();
            assert_eq!(n_values as u64, model.config.n_params());
        }
        Err(refusal) => assert!(!refusal.to_string().is_empty()),
    }
});
