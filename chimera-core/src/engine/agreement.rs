//! What all ranks tell each other once per step.

use crate::ids::Rank;

/// One rank's part of the agreement.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Record {
    /// Sum of the scaled losses of its micro-batches.
    pub(super) loss: f64,
    /// Squared norm of the gradients that it counts; each tensor is counted by one rank.
    pub(super) squared_norm: f64,
    /// Seconds of compute since the last agreement.
    pub(super) busy_s: f64,
    /// Seconds since the last agreement.
    pub(super) span_s: f64,
    /// Bytes of weights, gradients, moments and residuals at their peak.
    pub(super) bytes: f64,
    /// Whether it was asked to stop.
    pub(super) stop: bool,
    /// The first of its losses or gradients that is not finite.
    pub(super) culprit: String,
}

const N_NUMBERS: usize = 6;

impl Record {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let stop = f64::from(u8::from(self.stop));
        let numbers: [f64; N_NUMBERS] =
            [self.loss, self.squared_norm, self.busy_s, self.span_s, self.bytes, stop];
        numbers.iter().flat_map(|n| n.to_le_bytes()).chain(self.culprit.bytes()).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Record> {
        let (numbers, culprit) = bytes.split_at_checked(N_NUMBERS * 8)?;
        let number = |i: usize| {
            let bytes = numbers.get(i * 8..i * 8 + 8)?;
            Some(f64::from_le_bytes(bytes.try_into().ok()?))
        };
        Some(Record {
            loss: number(0)?,
            squared_norm: number(1)?,
            busy_s: number(2)?,
            span_s: number(3)?,
            bytes: number(4)?,
            stop: number(5)? != 0.0,
            culprit: String::from_utf8_lossy(culprit).into_owned(),
        })
    }
}

/// What all ranks conclude from all records; the same on every rank, since sums run in order of rank.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Agreed {
    pub(super) loss: f64,
    pub(super) grad_norm: f64,
    pub(super) bubble_ratio: f64,
    pub(super) span_s: f64,
    pub(super) bytes: f64,
    pub(super) stop: bool,
    /// The first rank with a loss that is not finite, else with such a gradient, and which.
    pub(super) culprit: Option<(Rank, String)>,
}

impl Agreed {
    /// `Err` names the rank whose record cannot be read.
    pub(super) fn of(records: &[Vec<u8>]) -> Result<Agreed, Rank> {
        let mut all = Vec::with_capacity(records.len());
        for (r, bytes) in (0..).zip(records) {
            all.push(Record::from_bytes(bytes).ok_or(Rank(r))?);
        }
        let sum = |f: fn(&Record) -> f64| all.iter().map(f).sum::<f64>();
        let span_s = all.iter().map(|r| r.span_s).fold(0.0, f64::max);
        let culprits = (0..).zip(&all).filter(|(_, r)| !r.culprit.is_empty());
        let first = culprits.min_by_key(|(_, r)| r.loss.is_finite()); // a loss comes before gradients
        Ok(Agreed {
            loss: sum(|r| r.loss),
            grad_norm: sum(|r| r.squared_norm).sqrt(),
            bubble_ratio: (1.0 - sum(|r| r.busy_s) / (span_s * all.len() as f64)).max(0.0),
            span_s,
            bytes: sum(|r| r.bytes),
            stop: all.iter().any(|r| r.stop),
            culprit: first.map(|(rank, r)| (Rank(rank), r.culprit.clone())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_the_wire_and_add_up() {
        let record = |loss, culprit: &str| Record {
            loss,
            squared_norm: 8.0,
            busy_s: 1.0,
            span_s: 2.0,
            bytes: 5.0,
            stop: loss > 1.0,
            culprit: culprit.into(),
        };
        let wire = [record(0.5, ""), record(1.5, "gradient of é")].map(|r| r.to_bytes());
        let agreed = Agreed::of(&wire).expect("sound records");
        assert_eq!((agreed.loss, agreed.grad_norm, agreed.bubble_ratio), (2.0, 4.0, 0.5));
        assert!(agreed.stop);
        assert_eq!(agreed.culprit, Some((Rank(1), "gradient of é".into())));
        assert_eq!(Agreed::of(&[wire[0].clone(), vec![1, 2]]), Err(Rank(1)));
    }
}
