//! Ranks that a launcher has started.

use std::fs::read;

use crate::command::{chimera, folder};
use crate::{free_port, losses, options, start_in, start_ranks, until, wait};

#[test]
fn ranks_train_as_threads_do_to_the_bit() {
    let folder = folder();
    for (nth, (n, shape)) in [
        (4, "--schedule chimera --depth 4"),
        (4, "--schedule chimera --depth 2 --width 2 --shard-optimizer --check-replicas 2"),
        (4, "--schedule chimera --depth 2 --width 2 --zero 2 --reduce-within 2"),
        (4, "--schedule chimera --depth 2 --width 2 --zero 3"),
        (2, "--schedule zb-v --depth 2"),
        (4, "--schedule dualpipe --depth 4"),
        (2, "--schedule 1f1b --depth 2"),
        (2, "--schedule 1f1b --depth 2 --wire bf16"),
        (4, "--schedule chimera --depth 4 --wire int8:0-1,1-2"),
    ]
    .into_iter()
    .enumerate()
    {
        let run = |name: &str| {
            let out = folder.path().join(format!("{name}{nth}"));
            let save = out.join("weights");
            let more = format!("{shape} --steps 5 --save {}", save.display());
            let line = options(&folder, &format!("{name}{nth}"), &more);
            let ran = match name {
                "threads" => vec![chimera(&format!("train {line} --transport threads"))],
                _ => wait(start_ranks(&folder, n, &line)),
            };
            for ran in &ran {
                assert_eq!(ran.code, Some(0), "{shape}: {}", ran.stderr);
            }
            let weights = read(save.join("model.safetensors")).expect("weights");
            (losses(&out), weights, ran[0].stdout.clone())
        };
        let (alone, together) = (run("threads"), run("quic"));
        assert_eq!((alone.0.len(), &together.0), (5, &alone.0), "{shape}");
        assert!(together.1 == alone.1, "{shape}: other weights");
        let who = format!("{n} ranks over QUIC (");
        assert!(together.2.starts_with(&who), "{shape}: {}", together.2);
    }
}

#[test]
fn torchrun_says_who_is_who() {
    let folder = folder();
    let line = options(&folder, "torchrun", "--depth 2 --steps 3 --transport quic");
    let port = free_port().to_string();
    let rank = |rank: &str| {
        let variables = [
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", port.as_str()),
            ("WORLD_SIZE", "2"),
            ("RANK", rank),
            ("LOCAL_WORLD_SIZE", "2"),
            ("LOCAL_RANK", rank),
            ("CHIMERA_TICKET", "a secret of the tests of QUIC"),
        ];
        start_in(&format!("train {line}"), &variables)
    };
    for ran in wait(vec![rank("0"), rank("1")]) {
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
    assert_eq!(losses(&folder.path().join("torchrun")).len(), 3);
}

/// The others end and name the dead rank; the run continues from its checkpoint, to the same bits.
#[test]
fn a_killed_rank_is_named_and_the_run_resumes() {
    let folder = folder();
    let line = |name: &str| {
        let more = "--schedule 1f1b --depth 2 --steps 400 --save-every 5 --no-save --resume auto";
        options(&folder, name, more)
    };
    let out = folder.path().join("killed");
    let mut ranks = start_ranks(&folder, 2, &line("killed"));
    let manifest = || {
        let saved = out.join("checkpoints").read_dir().into_iter().flatten().flatten();
        saved.into_iter().any(|entry| entry.path().join("manifest.json").exists())
    };
    until("no checkpoint", manifest);
    ranks[1].child.kill().expect("killed");
    let ended = ranks.remove(0).wait();
    assert_eq!(ended.code, Some(5), "{}", ended.stderr);
    assert!(ended.stderr.contains("rank 1 ended before it sent"), "{}", ended.stderr);
    drop(ranks.remove(0).end());
    for ran in wait(start_ranks(&folder, 2, &line("killed"))) {
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
    let alone = chimera(&format!("train {} --transport threads", line("alone")));
    assert_eq!(alone.code, Some(0), "{}", alone.stderr);
    assert_eq!(losses(&out), losses(&folder.path().join("alone")));
}
