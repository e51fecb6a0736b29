//! `chimera simulate` on a network of nodes.

use std::fs::write;
#[cfg(not(feature = "mpi"))]
use std::process::Command;

use serde_json::{Value, json};

#[cfg(not(feature = "mpi"))]
use crate::command::start_with;
use crate::command::{chimera, folder};

fn simulate(line: &str) -> Value {
    let ran = chimera(&format!("simulate {line} --json"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{line}");
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// Two groups of two workers, as in the tests of chimera-core, computed by hand.
#[test]
fn nodes_links_and_bytes_are_those_that_were_said() {
    let job = "dapple --depth 2 --micro-batches 1 --width 2 --inside 1,0.5 --sync eager --activation-bytes 4 \
               --gradient-bytes 6";
    for (nodes, makespan, agreement) in [
        ("", 20.0, 2.0),
        ("--ranks-per-node 4 --between 2,1", 20.0, 2.0),
        ("--ranks-per-node 2 --between 2,1", 35.0, 4.0),
        ("--ranks-per-node 1 --between 2,1", 34.0, 4.0),
    ] {
        let simulated = simulate(&format!("{job} {nodes}"));
        assert_eq!(simulated["makespan"], makespan, "{nodes}");
        assert_eq!(simulated["agreement"], agreement, "{nodes}");
        assert_eq!(simulated["step"], makespan + agreement, "{nodes}");
    }
}

/// Orders depend on the time of messages, whether it comes from a network or from `--message`.
#[test]
fn orders_are_made_for_the_network() {
    let found = simulate("auto --placement line --depth 8 --micro-batches 24 --inside 1,0");
    let said = simulate("auto --placement line --depth 8 --micro-batches 24 --message 1");
    assert_eq!(found["makespan"], said["makespan"]);
    assert_eq!(found["search"], said["search"]);
    let bound = &found["search"]["lower_bound"];
    assert!(bound.as_f64() <= found["makespan"].as_f64(), "{found:#}");
    for job in [
        "1f1b --depth 8 --micro-batches 24 --split-backward",
        "1f1b --depth 8 --micro-batches 24 --recompute full --hoist auto",
    ] {
        let [on, said] = ["--inside 1,0", "--message 1"]
            .map(|messages| simulate(&format!("{job} {messages}"))["makespan"].as_f64());
        assert_eq!(on, said, "{job}");
    }
}

/// If workers idle only because of messages, they have the time to start sums early.
#[test]
fn sums_start_early_where_workers_wait_for_messages() {
    let job = "chimera --scaling direct --pipes 8 --depth 8 --micro-batches 16 --message 0.3 --width 4 \
               --ranks-per-node 1 --between 0,1e-9 --gradient-bytes 5e8";
    let [opt, eager, at_end] = ["eager-opt", "eager", "at-end"].map(|sync| {
        let simulated = simulate(&format!("{job} --sync {sync}"));
        simulated["makespan"].as_f64().expect("a time")
    });
    assert!(opt <= eager && eager < at_end, "{opt} {eager} {at_end}");
}

#[test]
fn a_link_may_be_a_report_of_comm_bench() {
    let folder = folder();
    let file = folder.path().join("node.json");
    let report = r#"{"transport": "Open MPI", "ranks": 2, "alpha_s": 1e-3, "beta_s_per_byte": 1e-6,
                     "messages": [{"bytes": 4, "seconds": 1e-3}], "sums": [{"bytes": 4, "seconds": 1e-3}]}"#;
    write(&file, report).expect("a report");
    let line = |link: &str| {
        let job = "dapple --depth 2 --micro-batches 1 --forward 1 --backward 2";
        format!("{job} --activation-bytes 2000 --inside {link}")
    };
    let simulated = simulate(&line(&file.display().to_string()));
    assert_eq!(simulated["makespan"], simulate(&line("1e-3,1e-6"))["makespan"]);
    write(&file, "{}").expect("no report");
    let refused = chimera(&format!("simulate {}", line(&file.display().to_string())));
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.stderr.contains("not what `chimera comm bench --json` prints"),
        "{}",
        refused.stderr
    );
    write(&file, " ".repeat((1 << 20) + 1)).expect("no report");
    let refused = chimera(&format!("simulate {}", line(&file.display().to_string())));
    assert_eq!(refused.code, Some(2));
    assert!(
        refused.stderr.contains("longer than the limit of 1048576 bytes"),
        "{}",
        refused.stderr
    );
}

/// One file has the nodes and both links. Options on the command line take precedence.
#[test]
fn a_network_may_be_a_report_of_comm_bench() {
    let folder = folder();
    let file = folder.path().join("network.json");
    let link = |alpha: f64| json!({"alpha_s": alpha, "beta_s_per_byte": 1e-6});
    let report = |between: Value| {
        let report = json!({"ranks_per_node": 2, "inside": link(1e-3), "between": between});
        write(&file, report.to_string()).expect("a report");
    };
    let times = "--forward 1 --backward 2";
    let job = format!(
        "dapple --depth 2 --micro-batches 1 {times} --width 2 --activation-bytes 2000 --gradient-bytes 1000"
    );
    let network = format!("--network {}", file.display());
    report(link(2e-3));
    let said = "--ranks-per-node 2 --inside 1e-3,1e-6 --between 2e-3,1e-6";
    assert_eq!(simulate(&format!("{job} {network}")), simulate(&format!("{job} {said}")));
    let other = "--between 1,0";
    assert_eq!(
        simulate(&format!("{job} {network} {other}")),
        simulate(&format!("{job} --ranks-per-node 2 --inside 1e-3,1e-6 {other}"))
    );
    report(Value::Null);
    let refused = chimera(&format!("simulate {job} {network}"));
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("was measured on one node"), "{}", refused.stderr);
    // Two ranks need only one link.
    simulate(&format!("dapple --depth 2 --micro-batches 1 {times} {network}"));
    let refused = chimera(&format!("simulate {job} --network {}", folder.path().display()));
    assert!(refused.stderr.contains(": the file cannot be read: "), "{}", refused.stderr);
}

#[test]
fn what_comm_bench_measures_between_threads_is_a_link() {
    let folder = folder();
    let file = folder.path().join("threads.json");
    let ran = chimera(&format!("comm bench --transport threads --json --out {}", file.display()));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let report: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!((&report["transport"], &report["ranks"]), (&json!("threads"), &json!(2)));
    for key in ["messages", "sums"] {
        let timed = report[key].as_array().expect(key);
        assert!(timed.is_sorted_by_key(|one| one["bytes"].as_u64()), "{timed:?}");
        assert!(timed.len() == 8 && timed.iter().all(|one| one["seconds"].as_f64() > Some(0.0)));
    }
    assert_eq!(report["alpha_s"], report["messages"][0]["seconds"]);
    assert_eq!((&report["beta_s_per_byte"], &report["handed_over"]), (&json!(0.0), &json!(true)));
    assert_eq!((&report["ranks_per_node"], &report["between"]), (&json!(2), &Value::Null));
    let line = |link: &str| {
        let job = "dapple --depth 2 --micro-batches 1 --forward 1e-6 --backward 2e-6";
        format!("{job} --activation-bytes 1e6 {link}")
    };
    let measured = line(&format!("--inside {}", file.display()));
    let network = line(&format!("--network {}", file.display()));
    assert_eq!(simulate(&network), simulate(&measured));
    let [alpha, beta] =
        ["alpha_s", "beta_s_per_byte"].map(|key| report[key].as_f64().expect("a number"));
    let [measured, said] = [measured, line(&format!("--inside {alpha},{beta}"))]
        .map(|line| simulate(&line)["makespan"].as_f64().expect("seconds"));
    assert!((measured - said).abs() < 1e-9 * said, "{measured} and {said}");
    assert!(said > 2.0 * (alpha + 1e6 * beta), "{said}: a message there and one back");
}

/// Links in seconds are useless if ops take 1 in a unit of their own.
#[test]
fn measured_links_need_ops_in_seconds() {
    let folder = folder();
    let file = folder.path().join("network.json");
    let link = json!({"alpha_s": 1e-3, "beta_s_per_byte": 1e-6});
    let mut report = link.clone();
    report["ranks_per_node"] = json!(2);
    report["inside"] = link.clone();
    report["between"] = link;
    write(&file, report.to_string()).expect("a report");
    for (option, more) in
        [("--network", ""), ("--inside", ""), ("--between", "--ranks-per-node 2 --message 1")]
    {
        let line = format!("simulate 1f1b {option} {} {more}", file.display());
        let refused = chimera(&line);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{line}");
        let hint = "is in seconds, and no option says how many an op takes: give --forward";
        assert!(refused.stderr.contains(&format!("{option} {hint}")), "{}", refused.stderr);
        assert_eq!(chimera(&format!("{line} --forward 0.1")).code, Some(0), "{line}");
    }
}

#[test]
fn a_link_between_nodes_needs_nodes() {
    for command in ["simulate 1f1b", "plan --ranks 4 --batch 32 --memory 1GiB --flops 1e11"] {
        let refused = chimera(&format!("{command} --between 1e-5,1e-9"));
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{command}");
        let hint =
            "--between is for links between nodes: give the ranks of a node with --ranks-per-node";
        assert!(refused.stderr.contains(hint), "{command}: {}", refused.stderr);
    }
}

/// Ranks that a launcher started would each run by themselves.
#[cfg(not(feature = "mpi"))]
#[test]
fn ranks_of_a_launcher_need_mpi() {
    for line in ["comm bench", "simulate 1f1b --execute 1e-3", "train --steps 1"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_chimera"));
        command.env("OMPI_COMM_WORLD_SIZE", "2").env("OMPI_COMM_WORLD_RANK", "1");
        let refused = start_with(command, line).wait();
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{line}");
        let hint = "this build has no MPI; found: Open MPI says OMPI_COMM_WORLD_SIZE=2: build with";
        assert!(refused.stderr.contains(hint), "{line}: {}", refused.stderr);
    }
}

#[test]
fn comm_bench_names_the_transports_that_it_measures() {
    for (transport, hint) in
        [("x", "choose one of auto, threads, mpi\n"), ("nccl", "choose mpi or threads")]
    {
        let ran = chimera(&format!("comm bench --transport {transport}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{transport}");
        assert!(ran.stderr.contains(hint), "{transport}: {}", ran.stderr);
    }
}

#[test]
fn a_job_of_two_thousand_ranks_is_simulated() {
    let ran = chimera(
        "simulate --width 64 --depth 32 --micro-batches 64 --forward 0.02 --backward 0.04 \
         --ranks-per-node 8 --inside 5e-6,5e-12 --between 1e-5,4e-11 \
         --activation-bytes 8e6 --gradient-bytes 1e8",
    );
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!(ran.stdout);
}

#[test]
fn what_is_no_network_is_refused() {
    for (options, hint) in [
        ("--depth 4 --width 2 --ranks-per-node 3", "choose a divisor or a multiple of 4"),
        ("--gradient-bytes 1,2", "--gradient-bytes has 2 numbers, but chimera has 4 stages"),
        ("--inside 1", "neither a link such as 5us,300GB/s or 5e-6,3e-12 nor a file that is there"),
        ("--inside 1,-1", "`-1` is not a number"),
        ("--inside -1,1", "`-1` is not a number"),
        ("--forward -1,1,1,1", "`-1` is not a number"),
        ("--gradient-bytes -1,1,1,1", "`-1` is not a number"),
        ("--width 0", "`width` is 0; it must be a whole number from 1 to 65535"),
        ("--width 70000", "`width` is 70000; it must be a whole number from 1 to 65535"),
        ("--width nan", "`nan` is not a whole number from 1 to 65535"),
        ("--width -1", "`-1` is not a whole number from 1 to 65535"),
        ("--ranks-per-node x", "`x` is not a whole number from 1 to 4294967295"),
    ] {
        let ran = chimera(&format!("simulate chimera {options}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{options}: {}", ran.stderr);
        assert!(ran.stderr.contains(hint), "{options}: {}", ran.stderr);
    }
}

/// Rounded messages take as long as messages of fewer bytes, also on shared links.
#[test]
fn messages_in_fewer_bits_are_fewer_bytes() {
    let job = "1f1b --depth 4 --micro-batches 8";
    for links in ["--inside 1,0.5", "--topology ethernet --forward 1e-8 --backward 2e-8"] {
        let step = |rest: &str| simulate(&format!("{job} {links} {rest}"))["step"].clone();
        let few = step("--activation-bytes 17");
        assert_eq!(step("--activation-bytes 64 --wire int8"), few, "{links}");
        assert_eq!(step("--activation-bytes 34 --wire bf16"), few, "{links}");
        assert_eq!(step("--activation-bytes 17,17,64,17 --wire int8:2-3"), few, "{links}");
        assert_ne!(step("--activation-bytes 64"), few, "{links}");
    }
    let ran = chimera(&format!("simulate {job} --inside 1,0.5 --wire int8:3-4"));
    assert_eq!(ran.code, Some(2), "{}", ran.stdout);
    assert!(ran.stderr.contains("wire int8:3-4 names worker 4"), "{}", ran.stderr);
}
