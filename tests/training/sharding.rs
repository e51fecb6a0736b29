//! State that is shared by the replicas of a stage.

use std::sync::atomic::AtomicBool;

use chimera::core::engine::StepReport;

use super::{Layers, MODEL, OnDisk, Run, prepare, train};

/// The estimate equals the engine's measurement, to the byte. Gradients of several stages of a worker
/// are not all whole at once.
#[test]
fn the_need_with_sharded_gradients_is_what_a_run_takes() {
    for (schedule, saves) in [
        ("gpipe", Some(false)),
        ("dapple", Some(false)),
        ("gems", Some(true)),
        ("interleaved --chunks 2", Some(true)),
        ("zb-v", None),
        ("dualpipe --micro-batches 4", None),
        ("chimera", Some(true)),
        ("chimera --recompute full --tied false", None),
        ("dapple --split-backward true --freeze h.0.*", None),
    ] {
        let [optimizer, gradients, _] = [1, 2, 3].map(|zero| {
            let n = if schedule.contains("micro-batches") { "" } else { "--micro-batches 2" };
            let run = prepare(&format!(
                "--schedule {schedule} {n} --zero {zero} --width 2 --depth 2 --layers 5 --hidden 8 --heads 2 --context 12 \
                 --micro-batch-size 2 --steps 2 --threads 1 --optimizer adamw --eval-every 1",
            ));
            let mut bytes = 0;
            let observe = |report: &StepReport| {
                bytes = report.bytes();
                Ok(())
            };
            run.train(&AtomicBool::new(false), observe).unwrap();
            let of_group = run.needs().iter().map(|need| need.state + need.activations);
            let need = of_group.sum::<f64>() * run.config().schedule.width as f64;
            assert_eq!(need.round() as u64, bytes, "{schedule} with zero {zero}");
            bytes
        });
        assert!(gradients <= optimizer, "{schedule}: {gradients} of {optimizer}");
        let is_less = gradients < optimizer;
        assert!(saves.is_none_or(|saves| saves == is_less), "{schedule}: {gradients}");
    }
}

#[test]
fn zero_stands_for_other_options() {
    let run = |options: &str| prepare(&format!("{MODEL} --schedule chimera {options}"));
    let of = |options: &str| {
        let replicas = run(options).config().replicas.clone();
        (replicas.shard_optimizer, format!("{:?}", replicas.sync))
    };
    assert_eq!(of(""), (false, "EagerOpt".into()));
    assert_eq!(of("--zero 1"), (true, "EagerOpt".into()));
    assert_eq!(of("--zero 2"), (true, "Eager".into()));
    assert_eq!(of("--zero 2 --sync at-end"), (true, "AtEnd".into()));
}

/// Losses are equal to the bit.
#[test]
fn sharded_gradients_train_the_same() {
    let losses = |zero: u32| {
        let (reports, _) = train(&format!("{MODEL} --schedule chimera --width 2 --zero {zero}"));
        reports.iter().map(|report| report.loss).collect::<Vec<_>>()
    };
    let whole = losses(0);
    assert_eq!([1, 2, 3].map(losses), [(); 3].map(|()| whole.clone()));
}

#[test]
fn sharded_weights_survive_no_rank() {
    let options = format!("{MODEL} --schedule chimera --transport mpi --survive respawn --zero 3");
    let config = Layers::parse(&options).expect("options").resolve(&OnDisk).expect("settings");
    let refusal = format!("{:#}", Run::prepare(config).err().expect("refused"));
    assert!(refusal.contains("zero 3 leaves each shard of the weights on one rank"), "{refusal}");
}

#[test]
fn sums_of_a_library_are_neither_sharded_nor_in_groups() {
    for (option, why) in [
        ("--zero 2", "shard-optimizer and zero give each sum to one replica"),
        ("--reduce-within 2", "survive and reduce-within are for sums by messages"),
    ] {
        let options = format!("{MODEL} --schedule chimera --mpi-allreduce {option}");
        let config = Layers::parse(&options).expect("options").resolve(&OnDisk).expect("settings");
        let refusal = format!("{:#}", Run::prepare(config).err().expect("refused"));
        assert!(refusal.contains(why), "{refusal}");
    }
}
