//! The position of a rank in 64 bits, so that it can be reported with one store.

/// The position of a rank in its row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Position {
    /// Before its first step.
    Start,
    /// At an instruction that it has not finished.
    At {
        /// The first step of the program under way.
        step: u64,
        /// Index of the instruction in its row. After the last one the rank is between two steps.
        instr: u32,
    },
}

const INSTR_BITS: u32 = 24;
const MAX_INSTR: u64 = (1 << INSTR_BITS) - 1;

impl Position {
    /// The position as a number that is larger for later positions. Steps count to 2^40, as in the
    /// settings; instructions from 2^24 on look the same.
    pub fn to_bits(self) -> u64 {
        match self {
            Position::Start => 0,
            Position::At { step, instr } => {
                (step.wrapping_add(1) << INSTR_BITS) | u64::from(instr).min(MAX_INSTR)
            }
        }
    }

    /// The position that gave these bits.
    pub fn from_bits(bits: u64) -> Position {
        match bits >> INSTR_BITS {
            0 => Position::Start,
            next => Position::At { step: next - 1, instr: (bits & MAX_INSTR) as u32 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_survive_as_bits() {
        let at = |step, instr| Position::At { step, instr };
        let all = [Position::Start, at(0, 0), at(0, 9), at(1, 0), at((1 << 40) - 2, 5)];
        for (earlier, later) in all.iter().zip(&all[1..]) {
            assert!(earlier.to_bits() < later.to_bits());
        }
        assert!(all.iter().all(|position| Position::from_bits(position.to_bits()) == *position));
    }
}
