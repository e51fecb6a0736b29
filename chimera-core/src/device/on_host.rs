//! Updates of weights for devices without optimizers of their own.

use super::reference::{Reference, Tensor};
use super::{Device, Result, Updated};

/// Updates tensors by what the reference does with their values.
pub(super) fn update<D: Device>(
    device: &D,
    tensors: &mut [Updated<'_, D::Tensor>],
    by_reference: impl Fn(&mut [Updated<'_, Tensor>]) -> Result<()>,
) -> Result<()> {
    for Updated { w, g, m, v } in tensors {
        let shape = device.shape(w);
        let to_host = |tensor: &D::Tensor| Reference.upload(&shape, &device.download(tensor)?);
        let g = to_host(g)?;
        let [mut w_host, mut m_host, mut v_host] = [to_host(w)?, to_host(m)?, to_host(v)?];
        by_reference(&mut [Updated { w: &mut w_host, g: &g, m: &mut m_host, v: &mut v_host }])?;
        for (tensor, values) in [(w, w_host), (m, m_host), (v, v_host)] {
            **tensor = device.upload_vec(&shape, Reference.download(&values)?)?;
        }
    }
    Ok(())
}
