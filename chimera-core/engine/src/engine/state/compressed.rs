//! The transport of a rank on a device. Marks tensors as ready on the device before they are sent,
//! imports received ones, and may compress the messages between workers.
//!
//! Only activations and their gradients are: sums, weights, evaluations and moved activations are
//! sent as they are. Tensors are packed on the host, so no transport and no device knows of it. The
//! device is waited for meanwhile.
//!
//! The error of a gradient in 8 bits is added to the next gradient of the same channel (error
//! feedback; Seide et al., Interspeech 2014). The errors of the micro-batches of a step then nearly
//! cancel in the sums over them. Each program starts without errors, so that a step does not depend
//! on earlier ones: a resume, and a step that is trained again after a death, have the same bits.

use std::time::Instant;

use chimera_schedule::compression::{Compression, MessageFormat};
use chimera_schedule::effects::TokenKind;
use chimera_schedule::ids::{PipeId, Rank, StageId, WorkerId};
use rustc_hash::FxHashMap;

use crate::comm::{
    AllReduce, Comm, CommError, Endpoint, Payload, Tag, Wrap, pack, reducer_of, unpack,
};
use crate::device::{Device, flush, imported, record_ready, wait_ready};
use crate::engine::reduce::bf16::keeps_words;
use crate::engine::{Job, Training};
use crate::fault::{Class, Fault};

/// The gradients that a rank sends along one edge to another rank, of one length.
type GradientPath = (Rank, PipeId, (StageId, StageId), usize);

pub(crate) struct Compressed<D, C> {
    device: D,
    comm: C,
    compression: Compression,
    /// Number of workers of a pipeline group.
    depth: u32,
    /// Rounding errors of the last gradients in the current program.
    lost: FxHashMap<GradientPath, Vec<f32>>,
}

impl<D: Device, C: Endpoint> Compressed<D, C> {
    pub(crate) fn new<I>(job: &Job<'_, I>, device: D, comm: C) -> Self {
        Compressed {
            device,
            comm,
            compression: job.training.compression.clone(),
            depth: job.program.placement().n_workers() as u32,
            lost: FxHashMap::default(),
        }
    }

    /// Forgets what the messages of the last program lost.
    pub(crate) fn begin(&mut self) {
        self.lost.clear();
    }

    /// Returns the format of a message between this rank and another.
    fn format(&self, other: Rank, tag: Tag) -> MessageFormat {
        let Payload::Token(token) = tag.payload() else { return MessageFormat::F32 };
        if self.compression.is_off() || token.edge().is_none() {
            return MessageFormat::F32;
        }
        let worker = |rank: Rank| WorkerId((rank.0 % self.depth) as u16);
        self.compression.between(worker(self.comm.rank()), worker(other))
    }

    /// Packs a message in `format`.
    fn packed(
        &mut self,
        (to, tag): (Rank, Tag),
        format: MessageFormat,
        tensor: &D::Tensor,
    ) -> Result<D::Tensor, CommError> {
        let shape = self.device.shape(tensor);
        let mut values = self.device.download(tensor)?;
        let words = match tag.payload() {
            Payload::Token(token)
                if format == MessageFormat::Int8 && token.kind == TokenKind::Gradient =>
            {
                let of = (to, token.pipe, (token.stage, token.to), values.len());
                for (value, lost) in values.iter_mut().zip(self.lost.get(&of).into_iter().flatten())
                {
                    *value += lost;
                }
                let words = pack(format, &shape, &mut values);
                self.lost.insert(of, values);
                words
            }
            _ => pack(format, &shape, &mut values),
        };
        Ok(self.device.upload_vec(&[words.len()], words)?)
    }

    /// Unpacks a message that arrived in `format`.
    fn unpacked(
        &self,
        (from, format): (Rank, MessageFormat),
        packed: D::Tensor,
    ) -> Result<D::Tensor, CommError> {
        if format == MessageFormat::F32 {
            return Ok(packed);
        }
        let unpacked = unpack(format, &self.device.download(&packed)?);
        let (shape, values) = unpacked.map_err(|reason| CommError::Unreadable { from, reason })?;
        Ok(self.device.upload_vec(&shape, values)?)
    }
}

impl<D: Device, C: Endpoint> Wrap for Compressed<D, C> {
    type Inner = C;

    fn inner(&self) -> &C {
        &self.comm
    }

    fn inner_mut(&mut self) -> &mut C {
        &mut self.comm
    }

    /// The device works on what was requested while its rank waits.
    fn flush(&mut self) -> Result<(), CommError> {
        Ok(flush(&self.device)?)
    }
}

impl<D: Device, C: Comm<D::Tensor>> Comm<D::Tensor> for Compressed<D, C> {
    fn send(&mut self, to: Rank, tag: Tag, tensor: D::Tensor) -> Result<(), CommError> {
        let tensor = match self.format(to, tag) {
            MessageFormat::F32 => tensor,
            format => self.packed((to, tag), format, &tensor)?,
        };
        record_ready(&self.device, &tensor)?;
        self.comm.send(to, tag, tensor)
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<D::Tensor>, CommError> {
        let format = self.format(from, tag);
        let Some(received) = self.comm.try_recv(from, tag)? else { return Ok(None) };
        let received = imported(&self.device, received)?;
        self.unpacked((from, format), received).map(Some)
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<D::Tensor, CommError> {
        let format = self.format(from, tag);
        self.flush()?;
        let received = imported(&self.device, self.comm.recv(from, tag, deadline)?)?;
        // A rank that waits here has nothing else to do meanwhile; one that polls has.
        wait_ready(&self.device, &received)?;
        self.unpacked((from, format), received)
    }

    fn reducer(&mut self, members: &[Rank]) -> Option<&mut dyn AllReduce<D::Tensor>> {
        if self.comm.reducer(members).is_some() { Some(self) } else { None }
    }
}

impl<D: Device, C: Comm<D::Tensor>> AllReduce<D::Tensor> for Compressed<D, C> {
    fn all_reduce(
        &mut self,
        members: &[Rank],
        tag: Tag,
        tensor: D::Tensor,
    ) -> Result<(), CommError> {
        record_ready(&self.device, &tensor)?;
        reducer_of(&mut self.comm, members)?.all_reduce(members, tag, tensor)
    }
}

/// Refuses to send what this training sends in packed words from a device that would round these.
pub(crate) fn check_words<D: Device>(
    device: &D,
    training: &Training,
    rank: Rank,
) -> Result<(), Fault> {
    let packs_gradients = training.bf16_gradients;
    let packs = packs_gradients || !training.compression.is_off();
    if !packs || keeps_words(device).map_err(|e| e.into_fault(rank))? {
        return Ok(());
    }
    let name = device.name();
    let why = if packs_gradients {
        format!("gradients are only sent in bf16 from f32 devices, which {name} is not")
    } else {
        format!(
            "messages between workers are only compressed on f32 devices, which {name} is not: \
             choose tensors of f32, or send messages in f32"
        )
    };
    Err(Fault::new(Class::Usage, rank, why))
}
