//! Any description beside data is refused, or describes this data and a tokenizer with that many
//! ids.

#![no_main]

use std::fs::write;

use chimera::data::Prepared;

/// Each has two bytes.
const N_TOKENS: usize = 4;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    let data = [folder.path().join("data.bin")];
    write(&data[0], [0; 2 * N_TOKENS]).expect("a file");
    write(folder.path().join("data.bin.json"), bytes).expect("a file");
    let Ok(found) = Prepared::of(&data) else { return };
    let (path, prepared) = found.expect("it is there");
    assert_eq!(prepared.tokens, N_TOKENS as u64);
    if let Ok(tokenizer) = prepared.tokenizer(path) {
        assert_eq!(tokenizer.vocab(), prepared.vocab);
    }
});
