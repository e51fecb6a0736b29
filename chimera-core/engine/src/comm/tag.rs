//! Tags of messages between two ranks.

use std::fmt;

use chimera_schedule::effects::{Fill, Token, TokenKind};
use chimera_schedule::ids::{BucketId, PipeId, StageId};
use chimera_schedule::op::{Lane, Span};

/// The name of a message. Each (sender, receiver, tag) is used once.
///
/// Transports compare tags and carry their [bytes](Tag::to_bytes). Only the engine interprets them.
/// In errors they [display](fmt::Display) as a description of the message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    step: u64,
    payload: Payload,
}

/// The content of a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Payload {
    /// The value of a token.
    Token(Token),
    /// Gradients for another replica to add. Sent to a rank at most once per reduction.
    Gradients {
        /// The bucket being reduced.
        bucket: BucketId,
        /// Index of the part of the bucket.
        part: u32,
    },
    /// Sums of gradients over all replicas. Sent to a rank at most once per reduction.
    Sums {
        /// The bucket being reduced.
        bucket: BucketId,
        /// Index of the part of the bucket.
        part: u32,
    },
    /// Updated weights of one tensor of a bucket, from the replica that updates it to the others.
    Updated {
        /// The bucket.
        bucket: BucketId,
        /// Index of the tensor in the bucket.
        tensor: u32,
    },
    /// The activation of a sample in an evaluation.
    Evaluated {
        /// Number of the sample.
        sample: u64,
        /// The stage that made it.
        stage: StageId,
        /// The stage that receives it.
        to: StageId,
    },
    /// Weights of a stage, for rank 0.
    Weight {
        /// The stage.
        stage: StageId,
        /// Index of the parameter.
        tensor: u32,
    },
    /// A tensor of a stage, for the replacement of a dead rank.
    Replica {
        /// The stage.
        stage: StageId,
        /// Index of the parameter.
        tensor: u32,
        /// 0 for the weights; the optimizer's state for the tensor follows from 1.
        slot: u32,
    },
    /// A backup copy of a tensor that the sender holds, in case the sender dies.
    Shadow {
        /// The stage.
        stage: StageId,
        /// Index of the parameter.
        tensor: u32,
        /// 0 for the weights; the optimizer's state for the tensor follows from 1.
        slot: u32,
    },
    /// A tensor of saved activations kept by another worker; the first message has their number.
    Moved {
        /// Whether the tensor returns to its own worker.
        returns: bool,
        /// The pipe.
        pipe: PipeId,
        /// The stage that saved them.
        stage: StageId,
        /// The micro-batch unit.
        unit: u32,
        /// Index among the tensors, from 1; 0 for the message with their number.
        tensor: u32,
    },
    /// Control data of a transport built on another transport.
    Private {
        /// The purpose, chosen by the transport.
        channel: u8,
    },
}

impl Tag {
    /// Length of a tag as bytes.
    pub const N_BYTES: usize = 24;

    /// Names a message of `step`, the first of its window; for reductions, of update `step`.
    pub const fn new(step: u64, payload: Payload) -> Tag {
        Tag { step, payload }
    }

    /// Names a message that a transport sends over another one for its own use. `channel` and
    /// `number` distinguish such messages.
    pub const fn private(channel: u8, number: u64) -> Tag {
        Tag { step: number, payload: Payload::Private { channel } }
    }

    /// The step of the message, or the number of a private one.
    pub fn step(self) -> u64 {
        self.step
    }

    /// The content of the message.
    pub fn payload(self) -> Payload {
        self.payload
    }

    /// The tag as bytes, the same on every machine.
    pub fn to_bytes(self) -> [u8; Tag::N_BYTES] {
        let (code, [x, y, z]) = encode(self.payload);
        let words = [code, self.step as u32, (self.step >> 32) as u32, x, y, z];
        let mut bytes = [0; Tag::N_BYTES];
        for (four, word) in bytes.chunks_exact_mut(4).zip(words) {
            four.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes the bytes of a tag; `None` if they are not those of a tag.
    pub fn from_bytes(bytes: [u8; Tag::N_BYTES]) -> Option<Tag> {
        let (words, _) = bytes.as_chunks();
        let [code, low, high, x, y, z] = [0, 1, 2, 3, 4, 5].map(|i| u32::from_le_bytes(words[i]));
        let payload = decode(code, [x, y, z])?;
        Some(Tag { step: u64::from(low) | u64::from(high) << 32, payload })
    }
}

const GRADIENTS: u32 = 32;
const SUMS: u32 = 33;
const UPDATED: u32 = 34;
const EVALUATED: u32 = 35;
const WEIGHT: u32 = 36;
const PRIVATE: u32 = 37;
const REPLICA: u32 = 38;
const SHADOW: u32 = 39;
const AWAY: u32 = 40;
const BACK: u32 = 41;

/// Kinds of tokens, indexed by code.
const TOKENS: [TokenKind; 19] = [
    TokenKind::Activation,
    TokenKind::Gradient,
    TokenKind::Saved,
    TokenKind::Kept,
    TokenKind::Deferred,
    TokenKind::Version,
    TokenKind::Past,
    TokenKind::PastGradient,
    TokenKind::Away,
    TokenKind::Guest,
    TokenKind::Back,
    TokenKind::Reloaded,
    TokenKind::Memory(Lane::Moves, Fill::Forward),
    TokenKind::Memory(Lane::Moves, Fill::Recompute),
    TokenKind::Memory(Lane::Compute, Fill::Guest),
    TokenKind::Memory(Lane::Moves, Fill::Guest),
    TokenKind::Memory(Lane::Compute, Fill::Reload),
    TokenKind::Memory(Lane::Moves, Fill::Reload),
    TokenKind::RecomputedVersion,
];

fn encode(payload: Payload) -> (u32, [u32; 3]) {
    match payload {
        Payload::Token(Token { kind, pipe, stage, to, span }) => {
            let code = TOKENS.iter().position(|known| *known == kind).unwrap_or(TOKENS.len());
            (code as u32, [halves(pipe.0, stage.0), span.start, halves(to.0, span.len)])
        }
        Payload::Gradients { bucket, part } => (GRADIENTS, [bucket.0, part, 0]),
        Payload::Sums { bucket, part } => (SUMS, [bucket.0, part, 0]),
        Payload::Updated { bucket, tensor } => (UPDATED, [bucket.0, tensor, 0]),
        Payload::Evaluated { sample, stage, to } => {
            (EVALUATED, [halves(to.0, stage.0), sample as u32, (sample >> 32) as u32])
        }
        Payload::Weight { stage, tensor } => (WEIGHT, [stage.0.into(), tensor, 0]),
        Payload::Replica { stage, tensor, slot } => (REPLICA, [stage.0.into(), tensor, slot]),
        Payload::Shadow { stage, tensor, slot } => (SHADOW, [stage.0.into(), tensor, slot]),
        Payload::Moved { returns, pipe, stage, unit, tensor } => {
            (if returns { BACK } else { AWAY }, [halves(pipe.0, stage.0), unit, tensor])
        }
        Payload::Private { channel } => (PRIVATE, [channel.into(), 0, 0]),
    }
}

/// A word of two halves, the high one first.
fn halves(high: u16, low: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

fn decode(code: u32, [x, y, z]: [u32; 3]) -> Option<Payload> {
    let stage = || u16::try_from(x).ok().map(StageId);
    let payload = match code {
        GRADIENTS => Payload::Gradients { bucket: BucketId(x), part: y },
        SUMS => Payload::Sums { bucket: BucketId(x), part: y },
        UPDATED => Payload::Updated { bucket: BucketId(x), tensor: y },
        EVALUATED => {
            let sample = u64::from(y) | u64::from(z) << 32;
            let (to, stage) = (StageId((x >> 16) as u16), StageId(x as u16)); // a half each
            Payload::Evaluated { sample, stage, to }
        }
        WEIGHT => Payload::Weight { stage: stage()?, tensor: y },
        REPLICA => Payload::Replica { stage: stage()?, tensor: y, slot: z },
        SHADOW => Payload::Shadow { stage: stage()?, tensor: y, slot: z },
        AWAY | BACK => Payload::Moved {
            returns: code == BACK,
            pipe: PipeId((x >> 16) as u16),
            stage: StageId(x as u16), // a half each
            unit: y,
            tensor: z,
        },
        PRIVATE => Payload::Private { channel: u8::try_from(x).ok()? },
        _ => {
            let kind = *TOKENS.get(code as usize)?;
            let (pipe, stage) = (PipeId((x >> 16) as u16), StageId(x as u16)); // a half each
            let (to, len) = (StageId((z >> 16) as u16), z as u16);
            let token = Token { kind, pipe, stage, to, span: Span { start: y, len } };
            let is_sound = token.edge().map_or(stage == to, |(from, to)| from < to);
            Some(Payload::Token(token)).filter(|_| is_sound)?
        }
    };
    // Each tag has exactly one encoding: words that a payload does not use are zero.
    (encode(payload).1 == [x, y, z]).then_some(payload)
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Payload::Token(token) => write!(f, "{token}"),
            Payload::Gradients { bucket, part: 0 } => write!(f, "gradients of {bucket}"),
            Payload::Gradients { bucket, part } => write!(f, "gradients of {bucket}, part {part}"),
            Payload::Sums { bucket, part: 0 } => write!(f, "summed gradients of {bucket}"),
            Payload::Sums { bucket, part } => {
                write!(f, "summed gradients of {bucket}, part {part}")
            }
            Payload::Updated { bucket, tensor } => {
                write!(f, "the updated tensor {tensor} of {bucket}")
            }
            Payload::Evaluated { sample, stage, to } => {
                write!(f, "validation sample {sample} from {stage} to {to}")
            }
            Payload::Weight { stage, tensor } => write!(f, "weights {tensor} of {stage}"),
            Payload::Replica { stage, tensor, slot: 0 } => {
                write!(f, "weights {tensor} of {stage} from a replica")
            }
            Payload::Replica { stage, tensor, slot } => {
                write!(f, "optimizer state {slot} of tensor {tensor} of {stage} from a replica")
            }
            Payload::Shadow { stage, tensor, slot } => {
                write!(f, "a copy of slot {slot} of tensor {tensor} of {stage}")
            }
            Payload::Moved { returns, pipe, stage, unit, .. } => {
                let what = if *returns { "returned" } else { "offloaded" };
                write!(f, "{what} activations({pipe}, {stage}, micro-batch {unit})")
            }
            Payload::Private { channel } => write!(f, "control data of channel {channel}"),
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.payload, f)
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.step, self.payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Tag> {
        let (bucket, stage) = (BucketId(70_000), StageId(7));
        let token = |kind| {
            let span = Span { start: u32::MAX, len: 2 };
            let stage = StageId(0xfffe);
            let to = match kind {
                TokenKind::Activation => StageId(0xffff),
                TokenKind::Gradient => StageId(0xff),
                _ => stage,
            };
            Payload::Token(Token { kind, pipe: PipeId(3), stage, to, span })
        };
        let others = [
            Payload::Gradients { bucket, part: 0 },
            Payload::Gradients { bucket, part: 7 },
            Payload::Sums { bucket, part: u32::MAX },
            Payload::Updated { bucket, tensor: 3 },
            Payload::Evaluated { sample: u64::MAX - 1, stage, to: StageId(0xfffe) },
            Payload::Weight { stage, tensor: 5 },
            Payload::Replica { stage, tensor: 5, slot: 2 },
            Payload::Shadow { stage, tensor: 5, slot: 2 },
            Payload::Moved { returns: true, pipe: PipeId(3), stage, unit: 5, tensor: 70_000 },
            Payload::Private { channel: 3 },
        ];
        let payloads = TOKENS.map(token).into_iter().chain(others);
        payloads.flat_map(|payload| [0, 1 << 40].map(|step| Tag::new(step, payload))).collect()
    }

    #[test]
    fn tags_survive_as_bytes() {
        for tag in all() {
            assert_eq!(Tag::from_bytes(tag.to_bytes()), Some(tag));
        }
    }

    /// Other encodings are refused, so that one tag cannot be taken for two.
    #[test]
    fn other_bytes_are_no_tag() {
        let refused = |mut bytes: [u8; Tag::N_BYTES], at: usize, byte: u8| {
            bytes[at] = byte;
            Tag::from_bytes(bytes).is_none()
        };
        let private = Tag::private(3, 0).to_bytes();
        assert!(refused(private, 0, 99) && refused(private, 13, 1) && refused(private, 20, 1));
        let stage = StageId(7);
        assert!(refused(Tag::new(0, Payload::Weight { stage, tensor: 0 }).to_bytes(), 14, 1));
        assert!(refused(all()[0].to_bytes(), 22, 1), "an activation that goes back");
        assert!(refused(all()[2].to_bytes(), 23, 0xff), "a gradient that goes forth");
        assert!(refused(all()[4].to_bytes(), 22, 0), "saved activations that travel");
    }
}
