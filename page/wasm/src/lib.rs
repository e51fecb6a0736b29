//! Schedules for the page in the browser: proven, simulated and exported by the code of the command.
//!
//! A question in JSON goes in, an answer in JSON comes out, through one buffer in the module's
//! memory: a caller reserves room, writes the question there, calls [`ask`] and reads the answer
//! from the same place. What is drawn follows in a second buffer, see [`events`].

mod events;
mod host;
mod plan;
mod question;
mod step;
mod written;

use std::sync::{Mutex, PoisonError};

pub use question::answer_to;

/// The last question or answer.
static TEXT: Mutex<Vec<u8>> = Mutex::new(Vec::new());
/// The events of the last step.
static EVENTS: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn with<T>(buffer: &Mutex<Vec<u8>>, f: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    f(&mut buffer.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Reserves `n_bytes` for a question and returns their address.
#[unsafe(no_mangle)]
pub extern "C" fn reserve(n_bytes: usize) -> *mut u8 {
    with(&TEXT, |text| {
        *text = vec![0; n_bytes];
        text.as_mut_ptr()
    })
}

/// Answers the question in the buffer.
#[unsafe(no_mangle)]
pub extern "C" fn ask() {
    let question = with(&TEXT, std::mem::take);
    let (answer, events) = answer_to(&question);
    with(&TEXT, |text| *text = answer.into_bytes());
    with(&EVENTS, |bytes| *bytes = events);
}

/// The address of the last answer.
#[unsafe(no_mangle)]
pub extern "C" fn answer() -> *const u8 {
    with(&TEXT, |text| text.as_ptr())
}

/// Length of the last answer in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn answer_bytes() -> usize {
    with(&TEXT, |text| text.len())
}

/// The address of the last step's events, each of `events::BYTES` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn drawn() -> *const u8 {
    with(&EVENTS, |events| events.as_ptr())
}

/// Length of the last step's events in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn drawn_bytes() -> usize {
    with(&EVENTS, |events| events.len())
}
