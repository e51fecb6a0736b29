//! Any JSON that the reader accepts is written and read back unchanged, and proven or refused.

#![no_main]

use chimera::core::ids::PipeId;
use chimera::core::interchange::{from_csv, from_json, to_csv, to_json};
use chimera::core::lower::{Lowering, lower};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(timetable) = from_json(bytes) else { return };
    let again = from_json(to_json(&timetable).as_bytes()).expect("what is written is read");
    assert_eq!(again, timetable);
    let proven = lower(&timetable, &Lowering::default()).is_ok();
    for pipe in (0..timetable.placement.n_pipes()).map(|pipe| PipeId(pipe as u16)) {
        if let Ok(csv) = to_csv(&timetable, pipe) {
            let read = from_csv(csv.as_bytes(), "fuzz");
            assert!(!proven || read.is_ok(), "{pipe} of a proven timetable: {read:?}");
        }
    }
});
