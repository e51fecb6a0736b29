//! Descriptions of messages, for errors.

use std::fmt;

use super::{Payload, Tag};

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
            Payload::Shard { bucket, tensor, .. } => {
                write!(f, "the weights {tensor} of {bucket}, which are sharded")
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
