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
        let on_host = device.download_all(&[&**w, g, &**m, &**v])?.into_iter();
        let values = |elements: Elements| elements.to_f64(shape.iter().product());
        let mut on_host = on_host.map(|elements| Tensor::new(&shape, values(elements)));
        let [mut w_host, g, mut m_host, mut v_host] =
            std::array::from_fn(|_| on_host.next().expect("four tensors"));
        by_reference(&mut [Updated { w: &mut w_host, g: &g, m: &mut m_host, v: &mut v_host }])?;
        for (tensor, values) in [(w, w_host), (m, m_host), (v, v_host)] {
            let Elements { dtype, words } = Elements::of_f64(device.dtype(tensor), &values.data);
            **tensor = device.upload_words(&shape, dtype, words)?;
        }
    }
    Ok(())
}
