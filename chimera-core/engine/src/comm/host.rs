//! Tensors in host memory, and the transport of device tensors through them.

use std::collections::VecDeque;
use std::time::Instant;

use chimera_schedule::ids::Rank;

use super::{AllReduce, Comm, CommError, Tag, Wrap, reducer_of};
use crate::device::{Device, Dtype, Fetch};

/// A tensor in host memory, as transported between processes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Host {
    /// Extents.
    pub shape: Vec<usize>,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Elements, row-major, as words of the element type.
    pub data: Vec<f32>,
}

impl Host {
    /// A tensor of f32.
    pub fn new(shape: impl Into<Vec<usize>>, data: Vec<f32>) -> Host {
        Host { shape: shape.into(), dtype: Dtype::F32, data }
    }

    /// Spare capacity, in elements, that `data` should have, so that a transport can append a
    /// description of the tensor without reallocation.
    pub const ROOM: usize = 16;

    /// Encodes bytes: their number in two elements, then four bytes per element, padded.
    pub fn of_bytes(bytes: &[u8]) -> Host {
        let n = (bytes.len() as u64).to_le_bytes();
        let words = n.chunks(WORD).chain(bytes.chunks(WORD));
        let mut data = Vec::with_capacity(2 + bytes.len().div_ceil(WORD) + Host::ROOM);
        data.extend(words.map(|chunk| {
            let mut word = [0; WORD];
            word[..chunk.len()].copy_from_slice(chunk);
            f32::from_le_bytes(word)
        }));
        Host::new([data.len()], data)
    }

    /// Decodes bytes encoded by [`of_bytes`](Host::of_bytes); `None` for other tensors.
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        let (n, words) = self.data.split_first_chunk::<2>()?;
        let n = u64::from(n[0].to_bits()) | u64::from(n[1].to_bits()) << 32;
        let n = usize::try_from(n).ok().filter(|n| n.div_ceil(WORD) == words.len())?;
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(n);
        Some(bytes)
    }
}

const WORD: usize = size_of::<f32>();

/// Carries the tensors of a device over a transport of [`Host`] tensors. A sent tensor is copied to
/// the host, once; a received one is uploaded to the device.
///
/// A device that can [fetch](crate::device::Asynchronous::fetch) works on during the copy. The
/// message is then sent when this rank next sends or polls, and at the latest when it waits.
pub struct HostStaged<D: Device, C: Comm<Host>> {
    device: D,
    inner: C,
    /// Messages being copied to the host, in order.
    outgoing: VecDeque<Outgoing>,
}

struct Outgoing {
    to: Rank,
    tag: Tag,
    shape: Vec<usize>,
    dtype: Dtype,
    fetch: Box<dyn Fetch>,
}

impl<D: Device, C: Comm<Host>> HostStaged<D, C> {
    /// Wraps `inner` to carry tensors of `device`.
    pub fn new(device: D, inner: C) -> HostStaged<D, C> {
        HostStaged { device, inner, outgoing: VecDeque::new() }
    }

    fn to_host(&self, tensor: &D::Tensor) -> Result<Host, CommError> {
        let (shape, dtype) = (self.device.shape(tensor), self.device.dtype(tensor));
        let mut data = room(&shape, dtype);
        self.device.download_words(tensor, &mut data)?;
        Ok(Host { shape, dtype, data })
    }

    fn to_device(&self, Host { shape, dtype, data }: Host) -> Result<D::Tensor, CommError> {
        Ok(match dtype {
            Dtype::F32 => self.device.upload_vec(&shape, data)?,
            dtype => self.device.upload_words(&shape, dtype, data)?,
        })
    }

    /// Sends the messages that have been copied to the host; with `awaited`, waits for all of them.
    fn forward(&mut self, awaited: bool) -> Result<(), CommError> {
        while let Some(mut next) = self.outgoing.pop_front() {
            if !awaited && !next.fetch.is_there()? {
                self.outgoing.push_front(next);
                break;
            }
            let Outgoing { to, tag, shape, dtype, fetch } = next;
            let mut data = room(&shape, dtype);
            fetch.finish(&mut data)?;
            self.inner.send(to, tag, Host { shape, dtype, data })?;
        }
        Ok(())
    }
}

/// Allocates memory for the elements of a tensor and the spare capacity for a transport.
fn room(shape: &[usize], dtype: Dtype) -> Vec<f32> {
    let n_words = dtype.n_words(shape.iter().product());
    Vec::with_capacity(n_words.unwrap_or_default() + Host::ROOM)
}

impl<D: Device, C: Comm<Host>> Drop for HostStaged<D, C> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // The transport reports a failed message to the rank that waits for it.
            let _ = self.forward(true);
        }
    }
}

impl<D: Device, C: Comm<Host>> Wrap for HostStaged<D, C> {
    type Inner = C;

    fn inner(&self) -> &C {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut C {
        &mut self.inner
    }

    fn flush(&mut self) -> Result<(), CommError> {
        self.forward(true)
    }

    fn discard(&mut self) {
        self.outgoing.clear();
    }
}

impl<D: Device, C: Comm<Host>> Comm<D::Tensor> for HostStaged<D, C> {
    fn send(&mut self, to: Rank, tag: Tag, tensor: D::Tensor) -> Result<(), CommError> {
        let fetch = self.device.asynchronous().map(|device| device.fetch(&tensor)).transpose()?;
        if let Some(fetch) = fetch.flatten() {
            let (shape, dtype) = (self.device.shape(&tensor), self.device.dtype(&tensor));
            self.outgoing.push_back(Outgoing { to, tag, shape, dtype, fetch });
            return self.forward(false);
        }
        let host = self.to_host(&tensor)?;
        self.inner.send(to, tag, host)
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<D::Tensor>, CommError> {
        self.forward(false)?;
        let received = self.inner.try_recv(from, tag)?;
        received.map(|host| self.to_device(host)).transpose()
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<D::Tensor, CommError> {
        if let Some(received) = self.try_recv(from, tag)? {
            return Ok(received);
        }
        self.flush()?;
        let host = self.inner.recv(from, tag, deadline)?;
        self.to_device(host)
    }

    fn reducer(&mut self, members: &[Rank]) -> Option<&mut dyn AllReduce<D::Tensor>> {
        if self.inner.reducer(members).is_some() { Some(self) } else { None }
    }
}

impl<D: Device, C: Comm<Host>> AllReduce<D::Tensor> for HostStaged<D, C> {
    fn all_reduce(
        &mut self,
        members: &[Rank],
        tag: Tag,
        tensor: D::Tensor,
    ) -> Result<(), CommError> {
        let host = self.to_host(&tensor)?;
        reducer_of(&mut self.inner, members)?.all_reduce(members, tag, host)
    }
}

#[cfg(test)]
mod tests {
    use chimera_schedule::ids::Rank;

    use super::{CommError, Host};
    use crate::device::DeviceError;
    use crate::fault::Class;

    #[test]
    fn a_message_that_no_memory_holds_is_out_of_memory() {
        let (device, what) = ("a device".to_owned(), "a message".to_owned());
        let full = DeviceError::OutOfMemory { device, what, asked_bytes: 7 };
        let fault = CommError::from(full).into_fault(Rank(1));
        assert_eq!((fault.class, fault.rank), (Class::OutOfMemory, Rank(1)));
        assert!(fault.message.contains("7 bytes asked for a message"), "{fault}");
    }

    #[test]
    fn bytes_come_back() {
        for n in 0..10 {
            let bytes: Vec<u8> = (0..n).map(|i| 255 - i).collect();
            assert_eq!(Host::of_bytes(&bytes).into_bytes(), Some(bytes));
        }
        let data = Host::of_bytes(&[7; 5]).data;
        for other in [&data[1..], &data[..3], &data[..1], &[]] {
            assert_eq!(Host::new([other.len()], other.to_vec()).into_bytes(), None);
        }
    }
}
