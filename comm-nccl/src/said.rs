//! What the other transport carries for the host, as tensors of it: what a message is, and bytes.

use chimera_backend_cuda::gpu::Element;
use chimera_core::comm::{CommError, Host};

use crate::order::{numbers, unreadable, words};

/// What a message is.
pub(crate) struct Header {
    pub(crate) number: u64,
    pub(crate) element: Element,
    pub(crate) shape: Vec<usize>,
}

impl Header {
    pub(crate) fn write(&self) -> Host {
        let element = u64::from(self.element == Element::Bf16);
        let shape = self.shape.iter().map(|extent| *extent as u64);
        words(&[self.number, element].into_iter().chain(shape).collect::<Vec<_>>())
    }

    pub(crate) fn read(said: &Host) -> Result<Header, CommError> {
        let said = numbers(said)?;
        let [number, element, ref extents @ ..] = said[..] else { return Err(unreadable()) };
        let element = if element == 0 { Element::F32 } else { Element::Bf16 };
        let extents = extents.iter().map(|extent| usize::try_from(*extent));
        let shape = extents.collect::<Result<_, _>>().map_err(|_| unreadable())?;
        Ok(Header { number, element, shape })
    }
}

/// Bytes as a tensor: their number, then eight to a number.
pub(crate) fn packed(bytes: &[u8]) -> Host {
    let eight = |bytes: &[u8]| {
        let mut all = [0; 8];
        all[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(all)
    };
    let all: Vec<u64> =
        std::iter::once(bytes.len() as u64).chain(bytes.chunks(8).map(eight)).collect();
    words(&all)
}

pub(crate) fn unpacked(said: &Host) -> Result<Vec<u8>, CommError> {
    let said = numbers(said)?;
    let (len, rest) = said.split_first().ok_or_else(unreadable)?;
    let mut bytes: Vec<u8> = rest.iter().flat_map(|n| n.to_le_bytes()).collect();
    let len = usize::try_from(*len).ok().filter(|len| *len <= bytes.len());
    bytes.truncate(len.ok_or_else(unreadable)?);
    Ok(bytes)
}
