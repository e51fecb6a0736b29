//! Ranks train the same as threads.

use std::fs::read;

use crate::command::{chimera, folder};
use crate::{losses, number, options, ranks};

#[test]
fn ranks_train_as_threads_do_to_the_bit() {
    let folder = folder();
    for (nth, shape) in [
        "--schedule dapple --depth 2",
        "--schedule dapple --depth 2 --wire int8",
        "--schedule dapple --depth 2 --width 2",
        "--schedule chimera --depth 2 --width 2 --tied",
        "--schedule chimera --depth 2 --width 2 --shard-optimizer --check-replicas 2",
        "--schedule chimera --depth 2 --width 2 --zero 2 --reduce-within 2",
        "--schedule chimera --depth 2 --width 2 --zero 3",
        "--schedule chimera --depth 2 --width 2 --reduce-precision bf16 --check-replicas 1",
        "--schedule chimera --depth 4 --pipes 2 --eval-every 2",
        "--schedule chimera --depth 4 --pipes 4",
        "--schedule chimera --depth 4 --pipes 4 --width 2",
        "--schedule auto --depth 2 --search-time 1",
        "--schedule pipedream-2bw --depth 2 --window 2",
    ]
    .into_iter()
    .enumerate()
    {
        let n = if shape.contains("depth 4") { 4 } else { 2 };
        let n = if shape.contains("width 2") { 2 * n } else { n };
        let run = |name: &str, transport: &str| {
            let out = folder.path().join(format!("{name}{nth}"));
            let save = out.join("weights");
            let more = format!("{shape} --transport {transport} --save {}", save.display());
            let line = options(&folder, &format!("{name}{nth}"), &more);
            let ran = if name == "mpi" { ranks(n, &line) } else { chimera(&line) };
            assert_eq!(ran.code, Some(0), "{shape}: {}", ran.stderr);
            (losses(&out), read(save.join("model.safetensors")).expect("weights"), ran.stdout)
        };
        let (alone, together) = (run("threads", "threads"), run("mpi", "auto"));
        assert_eq!((alone.0.len(), &together.0), (5, &alone.0), "{shape}");
        assert!(together.1 == alone.1, "{shape}: other weights");
        let who = format!("{n} ranks over MPI (");
        assert!(together.2.starts_with(&who), "{shape}: {}", together.2);
        assert_eq!(together.2.matches(" 0  loss ").count(), 1, "one rank prints");
    }
}

/// Ranks that share an adapter train to the same bits as threads on it, and as the CPU. So do ranks
/// of which some compute on the CPU.
#[cfg(feature = "wgpu")]
#[test]
fn ranks_train_on_adapters() {
    let folder = folder();
    let run = |name: &str, n: usize, more: &str| {
        let line = options(&folder, name, more);
        let ran = if n > 1 { ranks(n, &line) } else { chimera(&line) };
        assert_eq!(ran.code, Some(0), "{more}: {}", ran.stderr);
        losses(&folder.path().join(name))
    };
    for schedule in ["zb-h1", "chimera"] {
        let shape = format!("--schedule {schedule} --depth 4 --check-replicas 1");
        let on = |device: &str| format!("{shape} --device {device}");
        let cpu = run(&format!("{schedule}-cpu"), 1, &on("cpu"));
        let threads = run(&format!("{schedule}-threads"), 1, &on("wgpu"));
        let ranks = run(&format!("{schedule}-ranks"), 4, &on("wgpu"));
        let mixed = run(&format!("{schedule}-mixed"), 4, &on("cpu,wgpu,wgpu,cpu"));
        assert_eq!((ranks.len(), &ranks), (5, &threads), "{schedule}");
        assert_eq!((cpu.len(), mixed.len()), (5, 5), "{schedule}");
        for gpu in [&ranks, &mixed] {
            for (cpu, gpu) in cpu.iter().zip(gpu) {
                assert!((number(&cpu.1) - number(&gpu.1)).abs() < 1e-4, "{cpu:?} {gpu:?}");
            }
        }
    }
    let unlike = "--schedule chimera --depth 4 --device cpu,cpu,wgpu,wgpu";
    let refused = ranks(4, &options(&folder, "unlike", unlike));
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let told = "stage 0 has replicas on worker 0 (cpu) and worker 3 (wgpu (";
    assert_eq!(refused.stderr.matches(told).count(), 1, "{}", refused.stderr);
}

/// MPI adds in an order of its own, the same for all replicas.
#[test]
fn sums_of_mpi_differ_by_rounding_and_never_between_replicas() {
    let folder = folder();
    for (nth, shape) in ["--schedule chimera --depth 2 --width 2 --tied", "--depth 4 --pipes 4"]
        .into_iter()
        .enumerate()
    {
        let run = |name: &str, more: &str| {
            let name = format!("{name}{nth}");
            let ran =
                ranks(4, &options(&folder, &name, &format!("{shape} --check-replicas 1 {more}")));
            assert_eq!(ran.code, Some(0), "{shape}: {}", ran.stderr);
            losses(&folder.path().join(name))
        };
        let (own, theirs) = (run("own", ""), run("theirs", "--mpi-allreduce"));
        assert_eq!((own.len(), theirs.len()), (5, 5), "{shape}");
        // With two parts the sum is the same in any order; with four it shows the order.
        assert!(!shape.contains("--pipes 4") || own != theirs, "{shape}: core's sums");
        for ((_, own, _), (_, theirs, _)) in own.iter().zip(&theirs) {
            let [own, theirs] = [own, theirs].map(|loss| number(loss));
            assert!((own - theirs).abs() < 1e-5 * own, "{shape}: {own} and {theirs}");
        }
    }
    let refused = chimera(&options(&folder, "alone", "--transport threads --mpi-allreduce"));
    assert!(refused.stderr.contains("start ranks with mpirun"), "{}", refused.stderr);
    let refused =
        ranks(2, &options(&folder, "both", "--depth 2 --mpi-allreduce --shard-optimizer"));
    assert!(refused.stderr.contains("choose one of them"), "{}", refused.stderr);
}
