//! The memory that a run is expected to need.

use std::sync::atomic::AtomicBool;

use chimera::core::engine::StepReport;

use super::prepare;

/// The estimate equals the engine's measurement, to the byte.
#[test]
fn the_need_is_what_a_run_takes() {
    for (model, schedule) in [
        ("gpt2", "gpipe"),
        ("gpt2", "dapple"),
        ("gpt2", "interleaved"),
        ("gpt2", "zb-h1"),
        ("gpt2", "zb-h1 --border free --window 2"),
        ("gpt2", "dualpipe"),
        ("gpt2", "chimera"),
        ("bert", "dapple"),
        ("bert", "chimera"),
    ] {
        let shard_optimizer = ["dapple", "dualpipe", "chimera"].contains(&schedule);
        for recompute in ["none", "selective", "full"] {
            let stages = if recompute == "full" { &["all", "0:1,1"][..] } else { &["all"] };
            let ways = [(false, "doubling"), (true, "halving")];
            let ways = ways.iter().flat_map(|way| stages.iter().map(move |s| (way, s)));
            for ((split_backward, scaling), stages) in ways {
                let split_backward = *split_backward;
                let (width, is_sharded) =
                    (1 + usize::from(shard_optimizer), shard_optimizer && split_backward);
                let run = prepare(&format!(
                    "--model {model} --schedule {schedule} --scaling {scaling} --recompute {recompute} \
                     --recompute-stages {stages} --split-backward {split_backward} --shard-optimizer {is_sharded} --width {width} \
                     --tied {} --depth 2 --layers 5 --hidden 8 --heads 2 --context 12 --sequence {} --steps 2 \
                     --threads 1",
                    recompute == "full" && !schedule.contains("free"),
                    if split_backward { 12 } else { 9 },
                ));
                let mut bytes = 0;
                let observe = |report: &StepReport| {
                    bytes = report.bytes();
                    Ok(())
                };
                run.train(&AtomicBool::new(false), observe).unwrap();
                let of_group = run.needs().iter().map(|need| need.state + need.activations);
                let need = of_group.sum::<f64>() * run.config().schedule.width as f64;
                let case = format!("{model} {schedule} {recompute} {split_backward}");
                assert_eq!(need.round() as u64, bytes, "{case}");
            }
        }
    }
}
