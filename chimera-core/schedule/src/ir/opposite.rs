//! A timetable with its workers in the opposite order.

use super::timetable::Timetable;

impl Timetable {
    /// The timetable with its workers in the opposite order.
    pub fn opposite(&self) -> Timetable {
        let rows = self.rows.iter().rev().cloned().collect();
        Timetable { placement: self.placement.opposite(), rows, ..self.clone() }
    }
}
