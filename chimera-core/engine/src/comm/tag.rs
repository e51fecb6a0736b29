//! Tags of messages between two ranks.

mod bytes;
mod words;

use chimera_schedule::effects::Token;
use chimera_schedule::ids::{BucketId, PipeId, StageId};

use self::bytes::{decode, encode};

/// The name of a message. Each (sender, receiver, tag) is used once.
///
/// Transports compare tags and carry their [bytes](Tag::to_bytes). Only the engine interprets them.
/// In errors they [display](std::fmt::Display) as a description of the message.
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
    /// Weights of one tensor of a bucket, from the replica that owns it to one that gathers them.
    Shard {
        /// The bucket.
        bucket: BucketId,
        /// Index of the tensor in the bucket.
        tensor: u32,
        /// Number of the receiver's gathering.
        gathering: u32,
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
        /// The stage that saved the activations.
        stage: StageId,
        /// The micro-batch unit.
        unit: u32,
        /// Index of the tensor, from 1; 0 for the message with the number of tensors.
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

#[cfg(test)]
mod tests {
    use chimera_schedule::effects::TokenKind;
    use chimera_schedule::op::Span;

    use super::bytes::TOKENS;
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
            Payload::Shard { bucket, tensor: 3, gathering: u32::MAX },
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
