//! Questions of the page, and the part that answers each.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use chimera_schedule::ids::WorkerId;
use chimera_schedule::interchange::row_to_text;
use chimera_schedule::schedule::{NUMBERS, SCHEDULES};
use chimera_schedule::search::{ABOUT, AUTO, Where};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::plan::{Made, Plan, Refused};
use crate::step;
use crate::written::{Format, written};

#[derive(Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
enum Question {
    /// Every schedule, with the parameters that it reads.
    Schedules,
    /// The step of a plan, with events.
    Step { plan: Plan },
    /// The figures of a plan's step, without events.
    Figures { plan: Plan },
    /// The bubble of a step by cause, for steps with too many ops to include it in `Step`.
    Causes { plan: Plan },
    /// The row of a worker as text.
    Row { plan: Plan, worker: u16 },
    /// Files of a step.
    Files { plan: Plan, format: Format },
}

/// The last plans that were made, without edits: a search is not done again for each edit.
static LAST: Mutex<VecDeque<(Plan, Made)>> = Mutex::new(VecDeque::new());
/// Plans that are kept: as many as the page shows at once.
const N_KEPT: usize = 6;

/// Answers a question in JSON: with JSON, and the events of a step.
pub fn answer_to(question: &[u8]) -> (String, Vec<u8>) {
    let question = match serde_json::from_slice(question) {
        Ok(question) => question,
        Err(error) => {
            return (json!({"error": format!("not a question: {error}")}).to_string(), vec![]);
        }
    };
    let answered = match question {
        Question::Schedules => Ok((schedules(), Vec::new())),
        Question::Step { plan } => Ok(step::answer(&plan, made(&plan))),
        Question::Figures { plan } => Ok((step::answer(&plan, made(&plan)).0, Vec::new())),
        Question::Causes { plan } => {
            let causes = made(&plan).and_then(|made| step::causes(&made));
            causes.map(|causes| (causes, Vec::new()))
        }
        Question::Row { plan, worker } => row(&plan, worker).map(|row| (row, Vec::new())),
        Question::Files { plan, format } => {
            let files = made(&plan).and_then(|made| written(&plan, &made, format));
            files.map(|files| (files, Vec::new()))
        }
    };
    match answered {
        Ok((answer, events)) => (answer.to_string(), events),
        Err(error) => (json!({"error": error.to_string()}).to_string(), Vec::new()),
    }
}

/// The timetable of a plan, with its edited rows.
fn made(plan: &Plan) -> Result<Made, Refused> {
    let unedited = plan.unedited();
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let known = last.iter().find(|(plan, _)| *plan == unedited).map(|(_, made)| made.clone());
    let mut made = match known {
        Some(made) => made,
        None => {
            let made = unedited.make()?;
            last.truncate(N_KEPT - 1);
            last.push_front((unedited, made.clone()));
            made
        }
    };
    plan.edit(&mut made)?;
    Ok(made)
}

fn row(plan: &Plan, worker: u16) -> Result<Value, Refused> {
    // Letters of stages are those of the row before it was edited.
    let made = made(&plan.unedited())?;
    if usize::from(worker) >= made.timetable.rows.len() {
        return Err(format!("there is no worker {worker}").into());
    }
    Ok(json!({"row": row_to_text(&made.timetable, WorkerId(worker))}))
}

fn schedules() -> Value {
    let entries = SCHEDULES.iter().map(|schedule| {
        let source = schedule.source();
        let reads: Vec<&str> = schedule.reads().iter().map(|parameter| parameter.name()).collect();
        json!({
            "name": schedule.name(), "about": schedule.about(), "paper": source.paper,
            "place": source.place, "reads": reads, "variants": schedule.variants(),
        })
    });
    let auto = json!({
        "name": AUTO, "about": ABOUT, "paper": "", "place": "", "variants": [""],
        "reads": ["placement", "pipes", "chunks", "waves", "scaling"],
    });
    let numbers = NUMBERS.iter().map(|row| {
        let is_read = |(_, place): &&(&str, Where)| place.reads().contains(&row.parameter);
        let places = Where::ALL.iter().filter(is_read).map(|(name, _)| *name).collect::<Vec<_>>();
        json!({
            "name": row.name.replace('-', "_"), "label": row.name.replace('-', " "),
            "usual": row.default.unwrap_or(0), "step": row.step, "field": row.field,
            "is_optional": row.default.is_none(), "places": places,
        })
    });
    let numbers = numbers.collect::<Vec<_>>();
    json!({"schedules": entries.chain([auto]).collect::<Vec<_>>(), "numbers": numbers})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(question: Value) -> Value {
        serde_json::from_str(&answer_to(question.to_string().as_bytes()).0).expect("JSON")
    }

    #[test]
    fn a_step_has_its_figures_and_an_event_for_every_op() {
        let question =
            json!({"ask": "step", "plan": {"schedule": "1f1b", "depth": 4, "micro_batches": 8}});
        let (answer, events) = answer_to(question.to_string().as_bytes());
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["figures"]["makespan"], 33.0);
        assert_eq!(answer["refusal"], Value::Null);
        assert_eq!(events.len(), 64 * crate::events::BYTES);
    }

    #[test]
    fn an_edited_row_is_refused_at_its_cell() {
        let plan = json!({"schedule": "1f1b", "depth": 2, "micro_batches": 2});
        let row = ask(json!({"ask": "row", "plan": plan, "worker": 0}));
        assert_eq!(row["row"], "0 1 0' 1'");
        let mut edited = plan;
        edited["rows"] = json!({"1": "0 1 1' 0'"});
        let answer = ask(json!({"ask": "step", "plan": edited}));
        assert_eq!(
            (&answer["refusal"]["worker"], &answer["refusal"]["cell"]),
            (&json!(0), &json!(2))
        );
        let text = answer["refusal"]["text"].as_str().expect("a refusal");
        let said = "1f1b is not a safe schedule: worker 0, cell 2: it waits for ";
        assert!(text.starts_with(said), "{text}");
    }

    #[test]
    fn what_is_not_a_question_is_refused() {
        for question in ["", "{}", r#"{"ask":"stp"}"#] {
            let (answer, _) = answer_to(question.as_bytes());
            assert!(answer.starts_with(r#"{"error":"not a question: "#), "{answer}");
        }
        let misspelt = ask(json!({"ask": "step", "plan": {"depht": 4}}));
        assert_eq!(misspelt["refusal"]["text"], "unknown field `depht`");
        let unknown = ask(json!({"ask": "step", "plan": {"schedule": "1f2b"}}));
        assert_eq!(unknown["refusal"]["text"], "unknown schedule `1f2b`: did you mean `1f1b`?");
    }
}
