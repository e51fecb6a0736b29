//! Payloads as words, the same on every machine.

use chimera_schedule::effects::{Fill, Token, TokenKind};
use chimera_schedule::ids::{BucketId, PipeId, StageId};
use chimera_schedule::op::{Lane, Span};

use super::Payload;

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
const SHARD: u32 = 42;

/// Kinds of tokens, indexed by code.
pub(super) const TOKENS: [TokenKind; 19] = [
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

pub(super) fn encode(payload: Payload) -> (u32, [u32; 3]) {
    match payload {
        Payload::Token(Token { kind, pipe, stage, to, span }) => {
            let code = TOKENS.iter().position(|known| *known == kind).unwrap_or(TOKENS.len());
            (code as u32, [halves(pipe.0, stage.0), span.start, halves(to.0, span.len)])
        }
        Payload::Gradients { bucket, part } => (GRADIENTS, [bucket.0, part, 0]),
        Payload::Sums { bucket, part } => (SUMS, [bucket.0, part, 0]),
        Payload::Updated { bucket, tensor } => (UPDATED, [bucket.0, tensor, 0]),
        Payload::Shard { bucket, tensor, gathering } => (SHARD, [bucket.0, tensor, gathering]),
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

pub(super) fn decode(code: u32, [x, y, z]: [u32; 3]) -> Option<Payload> {
    let stage = || u16::try_from(x).ok().map(StageId);
    let payload = match code {
        GRADIENTS => Payload::Gradients { bucket: BucketId(x), part: y },
        SUMS => Payload::Sums { bucket: BucketId(x), part: y },
        UPDATED => Payload::Updated { bucket: BucketId(x), tensor: y },
        SHARD => Payload::Shard { bucket: BucketId(x), tensor: y, gathering: z },
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
