//! The records that all ranks exchange once per program, and the conclusions from them.

use chimera_schedule::ids::Rank;

use crate::engine::report::load::{Load, Waits};

/// One rank's record in the step sync.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Record {
    /// Totals of each step of the program.
    pub(crate) steps: Vec<Totals>,
    /// Seconds of compute since the last step sync.
    pub(crate) busy_s: f64,
    /// Seconds of copying the state to the host since the last step sync.
    pub(crate) copy_s: f64,
    /// Seconds since the last step sync.
    pub(crate) span_s: f64,
    /// Peak bytes of weights, gradients, moments and saved activations.
    pub(crate) bytes: f64,
    /// Waits and links of the rank since the last step sync.
    pub(crate) waits: Waits,
    /// Whether the rank was asked to stop.
    pub(crate) stop: bool,
    /// Whether the rank has left the step unfinished, so that all must discard it.
    pub(crate) discards: bool,
    /// The first of its losses or gradients that is not finite.
    pub(crate) culprit: String,
}

/// Totals of one step that are summed over ranks.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Totals {
    /// Sum of the scaled losses of the rank's micro-batches.
    pub(crate) loss: f64,
    /// Squared norm of the gradients that the rank counts; each tensor is counted by one rank.
    pub(crate) squared_norm: f64,
}

impl Totals {
    fn add(self, other: Totals) -> Totals {
        Totals {
            loss: self.loss + other.loss,
            squared_norm: self.squared_norm + other.squared_norm,
        }
    }

    pub(crate) fn grad_norm(self) -> f64 {
        self.squared_norm.sqrt()
    }
}

/// Count of the numbers in a record besides two per step.
const N_NUMBERS: usize = 6;

impl Record {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let [stop, discards] = [self.stop, self.discards].map(|flag| f64::from(u8::from(flag)));
        let numbers: [f64; N_NUMBERS] =
            [self.busy_s, self.copy_s, self.span_s, self.bytes, stop, discards];
        let totals = self.steps.iter().flat_map(|t| [t.loss, t.squared_norm]);
        let numbers = numbers.into_iter().chain(totals).chain(self.waits.numbers());
        let bytes = numbers.flat_map(f64::to_le_bytes);
        bytes.chain(self.culprit.bytes()).collect()
    }

    fn from_bytes(bytes: &[u8], n_steps: usize) -> Option<Record> {
        let (numbers, rest) = bytes.split_at_checked((N_NUMBERS + 2 * n_steps) * 8)?;
        let (waits, culprit) = Waits::read(rest)?;
        let number = |i: usize| {
            let bytes = numbers.get(i * 8..i * 8 + 8)?;
            Some(f64::from_le_bytes(bytes.try_into().ok()?))
        };
        let totals = |step| {
            let at = N_NUMBERS + 2 * step;
            Some(Totals { loss: number(at)?, squared_norm: number(at + 1)? })
        };
        Some(Record {
            steps: (0..n_steps).map(totals).collect::<Option<_>>()?,
            busy_s: number(0)?,
            copy_s: number(1)?,
            span_s: number(2)?,
            bytes: number(3)?,
            waits,
            stop: number(4)? != 0.0,
            discards: number(5)? != 0.0,
            culprit: String::from_utf8_lossy(culprit).into_owned(),
        })
    }

    /// The first step with a loss that is not finite.
    fn unsound_step(&self) -> Option<usize> {
        self.steps.iter().position(|t| !t.loss.is_finite())
    }
}

/// The conclusions from all records; equal on every rank, since sums run in order of rank.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Agreed {
    pub(crate) steps: Vec<Totals>,
    pub(crate) span_s: f64,
    pub(crate) copy_s: f64,
    pub(crate) ranks: Vec<Load>,
    pub(crate) stop: bool,
    pub(crate) is_discarded: bool,
    pub(crate) culprit: Option<Culprit>,
}

/// The first rank with a loss that is not finite, or else with such a gradient.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Culprit {
    pub(crate) rank: Rank,
    pub(crate) what: String,
    /// Index of the step in the program.
    pub(crate) step: usize,
}

impl Agreed {
    /// Concludes from all records. An error names the rank with an unreadable record.
    pub(crate) fn of(records: &[Vec<u8>], n_steps: usize) -> Result<Agreed, Rank> {
        let mut all = Vec::with_capacity(records.len());
        for (r, bytes) in (0..).zip(records) {
            all.push(Record::from_bytes(bytes, n_steps).ok_or(Rank(r))?);
        }
        let totals =
            |step: usize| all.iter().map(|r| r.steps[step]).fold(Totals::default(), Totals::add);
        let slowest = |seconds: fn(&Record) -> f64| all.iter().map(seconds).fold(0.0, f64::max);
        let (span_s, copy_s) = (slowest(|r| r.span_s), slowest(|r| r.copy_s));
        let load = |r: &Record| Load {
            bubble_ratio: (1.0 - r.busy_s / span_s).max(0.0),
            bytes: r.bytes as u64,
            sync_s: (span_s - r.span_s) / n_steps as f64,
            waits: r.waits.clone().per_step(n_steps),
        };
        let culprits = (0..).zip(&all).filter(|(_, r)| !r.culprit.is_empty());
        let first = culprits.min_by_key(|(_, r)| r.unsound_step().is_none()); // a loss comes first
        Ok(Agreed {
            steps: (0..n_steps).map(totals).collect(),
            span_s,
            copy_s,
            ranks: all.iter().map(load).collect(),
            stop: all.iter().any(|r| r.stop),
            is_discarded: all.iter().any(|r| r.discards),
            culprit: first.map(|(rank, r)| Culprit {
                rank: Rank(rank),
                what: r.culprit.clone(),
                step: r.unsound_step().unwrap_or(0),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_the_wire_and_add_up() {
        let record = |loss, culprit: &str| Record {
            steps: vec![
                Totals { loss, squared_norm: 8.0 },
                Totals { loss: 2.0 * loss, squared_norm: 0.5 },
            ],
            busy_s: 1.0,
            copy_s: loss,
            span_s: if loss < 1.0 { 2.0 } else { 1.0 },
            bytes: 5.0,
            waits: Waits::default(),
            stop: loss > 1.0,
            discards: loss < 1.0,
            culprit: culprit.into(),
        };
        let wire = [record(0.5, ""), record(1.5, "gradient of é")].map(|r| r.to_bytes());
        let agreed = Agreed::of(&wire, 2).expect("sound records");
        let steps: Vec<_> = agreed.steps.iter().map(|t| (t.loss, t.grad_norm())).collect();
        assert_eq!(steps, [(2.0, 4.0), (4.0, 1.0)]);
        let load = Load { bubble_ratio: 0.5, bytes: 5, ..Load::default() };
        assert_eq!(agreed.ranks, [load.clone(), Load { sync_s: 0.5, ..load }]);
        assert_eq!((agreed.span_s, agreed.copy_s, agreed.stop), (2.0, 1.5, true));
        assert!(agreed.is_discarded);
        let culprit = Culprit { rank: Rank(1), what: "gradient of é".into(), step: 0 };
        assert_eq!(agreed.culprit, Some(culprit));
        assert_eq!(Agreed::of(&[wire[0].clone(), vec![1, 2]], 2), Err(Rank(1)));
    }

    #[test]
    fn a_loss_that_is_not_finite_names_its_step() {
        let of = |losses: [f64; 2], culprit: &str| {
            let steps = losses.map(|loss| Totals { loss, squared_norm: 0.0 }).to_vec();
            Record { steps, culprit: culprit.into(), ..Record::default() }.to_bytes()
        };
        let wire = [of([0.0, 0.0], "a gradient"), of([0.0, f64::NAN], "a loss")];
        let culprit = Culprit { rank: Rank(1), what: "a loss".into(), step: 1 };
        assert_eq!(Agreed::of(&wire, 2).expect("sound records").culprit, Some(culprit));
    }
}
