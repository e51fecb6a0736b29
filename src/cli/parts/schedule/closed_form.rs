//! The closed form of a step's time, for comparison with its simulation.

use chimera_core::analyze::ClosedForm;
use serde_json::{Value, json};

use crate::cli::parts::terminal::console::figure;

/// Formats the terms, and the difference between their sum and `simulated`.
pub(crate) fn line(form: &ClosedForm, simulated: f64) -> String {
    let ClosedForm { forwards, backwards, messages, forward, backward, message, reduction } = *form;
    let step = form.step();
    let percent = (step / simulated - 1.0) * 100.0;
    let side = if percent < 0.0 { "below" } else { "above" };
    let distance = if simulated > 0.0 {
        format!(", {:.1} % {side} the simulation", percent.abs())
    } else {
        String::new()
    };
    format!(
        "closed form: F {} x C_f {} + B {} x C_b {} + c {} x C_m {} + R {} = {}{distance}",
        figure(forward),
        figure(forwards),
        figure(backward),
        figure(backwards),
        figure(message),
        figure(messages),
        figure(reduction),
        figure(step)
    )
}

/// Returns the terms as JSON.
pub(crate) fn terms(form: &ClosedForm, simulated: f64) -> Value {
    json!({
        "c_f": form.forwards, "c_b": form.backwards, "c_m": form.messages, "forward": form.forward, "backward": form.backward,
        "message": form.message, "unoverlapped_reduction": form.reduction, "step": form.step(),
        "over_simulated": form.step() / simulated,
    })
}
