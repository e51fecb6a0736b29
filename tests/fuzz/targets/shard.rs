//! With any shard under its right size and hash, opening the checkpoint ends, and so does reading
//! its tensors.

#![no_main]

use std::fs::write;

use chimera::formats::checkpoint::Checkpoint;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path().join("shard-0000.safetensors"), bytes).expect("a file");
    let (size, hash) = (bytes.len(), blake3::hash(bytes));
    let shard =
        format!(r#"{{"file": "shard-0000.safetensors", "bytes": {size}, "blake3": "{hash}"}}"#);
    let rest = format!(
        r#""format": 1, "written_by": "", "step": 2, "updates": 2, "samples_per_step": 8,
        "next_samples": "", "settings": {{}}, "shards": [{shard}]}}"#
    );
    let manifest = format!("{{\n  \"blake3\": \"{}\",\n{rest}", blake3::hash(rest.as_bytes()));
    write(folder.path().join("manifest.json"), manifest).expect("a file");
    match Checkpoint::open(folder.path()) {
        Ok(checkpoint) => {
            for (name, shape) in checkpoint.shapes() {
                if let Ok(values) = checkpoint.weights(&name, &shape) {
                    assert_eq!(values.len(), shape.iter().product::<usize>());
                }
            }
        }
        Err(unusable) => assert!(unusable.path.ends_with("shard-0000.safetensors")),
    }
});
