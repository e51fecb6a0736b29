//! Checkpoints of earlier programs.

use std::path::{Path, PathBuf};

use chimera::core::engine::Counts;
use chimera::formats::checkpoint::{Checkpoint, Disk};

use super::{prepare, train};
use crate::command::{chimera, folder};

const MODEL: &str =
    "--layers 1 --hidden 4 --context 8 --vocab 16 --depth 1 --micro-batches 2 --steps 4";
/// Of the two steps behind the checkpoint, in the run that it is of.
const LOSSES: [f64; 2] = [2.806232, 2.653452];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoint").join(name)
}

/// As it was before there was a choice of models, dropout, or a count of skipped steps.
#[test]
fn the_first_format_is_read() {
    let path = fixture("format-1");
    let verified = chimera(&format!("checkpoint verify {}", path.display()));
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);
    assert!(verified.stdout.contains("step 2, 17 tensors in 1 file(s)"), "{}", verified.stdout);
    let checkpoint = Checkpoint::open(&path).expect("a checkpoint");
    let manifest = checkpoint.manifest();
    assert_eq!((manifest.format, manifest.settings.contains_key("model")), (1, false));
    assert_eq!(manifest.counts(), Counts { updates: 2, skipped: 0 });
    let options = format!("{MODEL} --data {}", fixture("ids.bin").display());
    let changes = prepare(&options).resume(Some(checkpoint)).expect("resumes");
    assert!(changes.is_empty(), "{changes:?}");
    let run = folder();
    let (reports, _) = train(&options, Some(&path), run.path(), Disk::default()).expect("trains");
    assert_eq!(reports.len(), LOSSES.len());
    for (report, expected) in reports.iter().zip(LOSSES) {
        assert!((report.loss - expected).abs() < 1e-5, "{} is not {expected}", report.loss);
    }
}
