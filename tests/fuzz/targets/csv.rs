//! Any CSV that the reader accepts is written and read back unchanged, and proven or refused.

#![no_main]

use chimera::core::ids::PipeId;
use chimera::core::interchange::{from_csv, to_csv};
use chimera::core::lower::{Lowering, lower};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(timetable) = from_csv(bytes, "fuzz") else { return };
    let csv = to_csv(&timetable, PipeId(0)).expect("what is read is written");
    assert_eq!(from_csv(csv.as_bytes(), "fuzz").expect("what is written is read"), timetable);
    let _ = lower(&timetable, &Lowering::default());
});
