//! With any safetensors file, reading a small model from it ends.

#![no_main]

use std::fs::write;

use chimera::formats::hf;

const CONFIG: &str = include_str!("../../fixtures/gpt2/tied/config.json");

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path().join("config.json"), CONFIG).expect("a file");
    write(folder.path().join("model.safetensors"), bytes).expect("a file");
    if let Err(refusal) = hf::read(folder.path()) {
        assert!(!refusal.to_string().is_empty());
    }
});
