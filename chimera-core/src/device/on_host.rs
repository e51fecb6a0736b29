//! Updates of weights for devices without optimizers of their own.

use super::reference::Tensor;
use super::{Device, Elements, Result, Updated};

/// Updates tensors by what the reference, which computes in f64, does with their values.
pub(super) fn update<D: Device>(
    device: &D,
    tensors: &mut [Updated<'_, D::Tensor>],
    by_reference: impl Fn(&mut [Updated<'_, Tensor>]) -> Result<()>,
) -> Result<()> {
    for Updated { w, g, m, v } in tensors {
        let shape = device.shape(w);
        let to_host = |tensor: &D::Tensor| -> Result<Tensor> {
            let mut words = Vec::new();
            device.download_words(tensor, &mut words)?;
            let elements = Elements { dtype: device.dtype(tensor), words };
            Ok(Tensor::new(&shape, elements.to_f64(shape.iter().product())))
        };
        let g = to_host(g)?;
        let [mut w_host, mut m_host, mut v_host] = [to_host(w)?, to_host(m)?, to_host(v)?];
        by_reference(&mut [Updated { w: &mut w_host, g: &g, m: &mut m_host, v: &mut v_host }])?;
        for (tensor, values) in [(w, w_host), (m, m_host), (v, v_host)] {
            let Elements { dtype, words } = Elements::of_f64(device.dtype(tensor), &values.data);
            **tensor = device.upload_words(&shape, dtype, words)?;
        }
    }
    Ok(())
}
