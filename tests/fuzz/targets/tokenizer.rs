//! Any `tokenizer.json` is refused, or gives ids below its vocabulary.

#![no_main]

use std::fs::write;

use chimera::data::tokenizer::Tokenizer;

// The library panics on some files, and reading catches that. Only a panic that gets here counts.
libfuzzer_sys::fuzz_target!(init: std::panic::set_hook(Box::new(|_| {})), |bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokenizer.json");
    write(&path, bytes).expect("a file");
    let Ok(tokenizer) = Tokenizer::read(&path) else { return };
    if let Ok(ids) = tokenizer.encode("pipe, stage and worker") {
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab()));
        let _ = tokenizer.decode(&ids);
    }
    if let Ok(ids) = tokenizer.beginning() {
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab()));
    }
});
