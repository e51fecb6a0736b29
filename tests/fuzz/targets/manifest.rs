//! With any manifest under its right hash, opening a checkpoint ends, with a reason.

#![no_main]

use std::fs::write;

use chimera::formats::checkpoint::Checkpoint;

libfuzzer_sys::fuzz_target!(|rest: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    let head = format!("{{\n  \"blake3\": \"{}\",\n", blake3::hash(rest));
    write(folder.path().join("manifest.json"), [head.as_bytes(), rest].concat()).expect("a file");
    if let Err(unusable) = Checkpoint::open(folder.path()) {
        assert!(!unusable.to_string().is_empty());
    }
});
