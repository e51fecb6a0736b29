//! A WebAssembly module that makes a schedule by name, proves it, simulates it and draws it.
//!
//! Text goes in and out through one buffer in the module's memory. A caller reserves room for a
//! name, writes it there, calls `show` and reads the answer, a drawing or a refusal, from the same
//! place.

use std::error::Error;
use std::sync::{Mutex, PoisonError};

use chimera_schedule::analyze::simulate;
use chimera_schedule::costs::GivenTimes;
use chimera_schedule::lower::{Lowering, Passes};
use chimera_schedule::render::text;
use chimera_schedule::request::{Request, Source};
use chimera_schedule::schedule::{Shape, find};
use chimera_schedule::search::{AUTO, Search, Where};
use chimera_schedule::timetable::Timetable;

static TEXT: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn with_text<T>(f: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    f(&mut TEXT.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Reserves `n_bytes` for the name of a schedule and returns their address.
#[unsafe(no_mangle)]
pub extern "C" fn reserve(n_bytes: usize) -> *mut u8 {
    with_text(|text| {
        *text = vec![0; n_bytes];
        text.as_mut_ptr()
    })
}

/// The address of the last answer.
#[unsafe(no_mangle)]
pub extern "C" fn answer() -> *const u8 {
    with_text(|text| text.as_ptr())
}

/// The length of the last answer in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn answer_bytes() -> usize {
    with_text(|text| text.len())
}

/// Draws the schedule in the buffer at a shape and returns its makespan, or NaN if it is refused.
#[unsafe(no_mangle)]
pub extern "C" fn show(depth: usize, n_micro_batches: u32) -> f64 {
    let name = with_text(|text| String::from_utf8_lossy(text).into_owned());
    let (answer, makespan) = match drawn(&name, Shape::new(depth, n_micro_batches)) {
        Ok((drawing, makespan)) => (drawing, makespan),
        Err(refusal) => (refusal.to_string(), f64::NAN),
    };
    with_text(|text| *text = answer.into_bytes());
    makespan
}

/// The drawing of a proven program's simulation, and its makespan.
fn drawn(name: &str, shape: Shape) -> Result<(String, f64), Box<dyn Error>> {
    let source = match name {
        AUTO => Source::Search(Where::Wave, Search::default()),
        name => Source::Schedule(find(name)?),
    };
    let costs = |timetable: &Timetable| GivenTimes::default().of_stages(timetable);
    let mut request = Request { source, shape, passes: Passes::default() };
    request.take_shorter_scaling::<_, Box<dyn Error>>(&|timetable| Ok(costs(timetable)?))?;
    let ordered =
        request.timetable::<_, Box<dyn Error>>(&|timetable| Ok(costs(timetable)?), &mut |_| ())?;
    let costs = costs(&ordered.timetable)?;
    let program = ordered.program(&Lowering::default(), &costs)?;
    let timeline = simulate(&program, &costs);
    Ok((text::timeline(&timeline), timeline.makespan()))
}
