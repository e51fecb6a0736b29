//! For any `config.json`, the model is sound or refused.

#![no_main]

use std::fs::write;

use chimera::formats::hf::read_config;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path().join("config.json"), bytes).expect("a file");
    if let Ok((config, _)) = read_config(folder.path()) {
        config.validate().expect("what is accepted is sound");
    }
});
