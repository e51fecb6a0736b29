//! Devices: the ones that this build lacks, and the self-test of a device.

use std::fs::read_to_string;

use serde_json::Value;

use crate::command::{chimera, folder};

#[test]
#[cfg(not(feature = "cuda"))]
fn a_build_without_cuda_says_how_to_get_it() {
    for line in ["train --steps 1 --device cuda:1", "selftest --device cuda"] {
        let ran = chimera(line);
        assert_eq!(ran.code, Some(2), "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains("install chimera with `--features cuda`"), "{}", ran.stderr);
    }
}

/// The CPU trains in bf16, or reports why it cannot, in agreement with the list of devices.
#[test]
fn bf16_is_for_processors_that_have_it() {
    let listed = chimera("devices").stdout;
    let has_it = listed.contains("kernels in f32 or bf16");
    assert!(has_it || listed.contains("kernels in f32"), "{listed}");
    let ran = chimera("train --steps 1 --hidden 16 --heads 2 --device cpu --precision bf16");
    if has_it {
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    } else {
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{}", ran.stderr);
        assert!(ran.stderr.contains("choose precision f32"), "{}", ran.stderr);
    }
    let ran = chimera("config check --device wgpu --precision bf16");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
}

/// Runs the self-test with these options, which must end with this code. Returns its report.
fn report(options: &str, code: i32) -> Value {
    let folder = folder();
    let json = folder.path().join("report.json");
    let ran = chimera(&format!("selftest {options} --json {}", json.display()));
    assert_eq!(ran.code, Some(code), "{}{}", ran.stdout, ran.stderr);
    serde_json::from_str(&read_to_string(&json).expect("a report")).unwrap()
}

#[test]
fn a_part_that_has_no_time_has_not_passed() {
    let report = report("--part kernels --time 0", 101);
    let checks = report["checks"].as_array().expect("checks");
    assert!(!checks.is_empty() && checks.iter().all(|check| check["passed"] == false), "{report}");
}

#[test]
fn the_processor_passes_its_test() {
    let report = report("--device cpu", 0);
    let checks = report["checks"].as_array().expect("checks");
    for what in ["kernel attention_dx, f32", "losses of GPT-2 by chimera with 4 worker(s), f32"] {
        let check = checks.iter().find(|check| check["what"] == what);
        let check = check.unwrap_or_else(|| panic!("{what} is not among {checks:?}"));
        assert!(check["value"].as_f64() <= check["limit"].as_f64(), "{check}");
        assert_eq!(check["passed"], true, "{check}");
    }
    assert!(report["measurements"].as_array().is_some_and(|all| all.len() > 10), "{report}");
}
