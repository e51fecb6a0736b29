//! Checkpoints of earlier versions.

use std::path::{Path, PathBuf};

use chimera::core::engine::{Counts, Optimizer, StateTensor};
use chimera::core::stage::{Init, Param};
use chimera::formats::checkpoint::{Checkpoint, Disk, Manifest, Store, moments};

use super::{at, numbers, prepare, train};
use crate::command::{chimera, folder};

const MODEL: &str =
    "--layers 1 --hidden 4 --context 8 --vocab 16 --depth 1 --micro-batches 2 --steps 4 --warmup 1";
/// The losses of the two steps after the checkpoint, in the run that wrote it.
const LOSSES: [f64; 2] = [2.806232, 2.653452];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoint").join(name)
}

/// The format before models, dropout and a count of skipped steps existed.
#[test]
fn the_first_format_is_read() {
    let path = fixture("format-1");
    let verified = chimera(&format!("checkpoint verify {}", path.display()));
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);
    assert!(verified.stdout.contains("step 2, 17 tensors in 1 file(s)"), "{}", verified.stdout);
    let checkpoint = Checkpoint::open(&path).expect("a checkpoint");
    let manifest = checkpoint.manifest();
    assert_eq!((manifest.format, manifest.settings.contains_key("model")), (1, false));
    assert_eq!(manifest.counts(), Counts { updates: 2, ..Counts::default() });
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

/// Earlier versions kept an unused second moment for SGD.
#[test]
fn a_second_moment_of_sgd_is_left_out() {
    let (whole, earlier, half) = (folder(), folder(), folder());
    let options = "--optimizer sgd --lr 0.1 --depth 2 --save-every 3";
    let (all, trained) = train(options, None, whole.path(), Disk::default()).expect("trains");
    let checkpoint = Checkpoint::open(&at(whole.path(), 3)).expect("a checkpoint");
    assert_eq!(checkpoint.manifest().optimizer_state, ["m"]);
    let tensors = checkpoint.shapes().into_iter().map(|(name, shape)| {
        let param = Param::new(name, shape.clone(), Init::Zeros);
        let mut tensor = checkpoint.tensor(&param, &Optimizer::sgd()).expect("whole");
        let elements = vec![0.0; param.n_elements()].into();
        tensor.state.push(StateTensor { name: "v", shape, elements });
        tensor
    });
    let written = Manifest {
        optimizer_state: moments(),
        shards: Vec::new(),
        ..checkpoint.manifest().clone()
    };
    Store::of(earlier.path()).save(written, &[tensors.collect()]).expect("a checkpoint");
    let from = at(earlier.path(), 3);
    let (rest, again) = train(options, Some(&from), half.path(), Disk::default()).expect("trains");
    assert_eq!(numbers(&rest), numbers(&all[3..]));
    assert!(again.weights == trained.weights);
    let last = Checkpoint::open(&at(half.path(), 6)).expect("a checkpoint");
    assert_eq!(last.manifest().optimizer_state, ["m"]);
}
