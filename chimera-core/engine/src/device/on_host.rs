//! Weight updates and offloading in host memory, for devices without functions of their own.

use std::iter::once;

use super::reference::{Reference, Tensor};
use super::{Device, DeviceError, Elements, Reload, Result, Sgd, Updated, WithMomentum};

/// Updates tensors with two moments on the host, by a function of the f64 reference.
pub(super) fn update<D: Device>(
    device: &D,
    tensors: &mut [Updated<'_, D::Tensor>],
    by_reference: impl Fn(&mut [Updated<'_, Tensor>]) -> Result<()>,
) -> Result<()> {
    tensors.iter_mut().try_for_each(|Updated { w, g, m, v }| {
        update_on_host(device, w, g, &mut [m, v], |w, g, state| {
            let [m, v] = state else { unreachable!("two moments") };
            by_reference(&mut [Updated { w, g: &*g, m, v }])
        })
    })
}

/// Updates tensors with a momentum on the host, by the gradient descent of the f64 reference.
pub(super) fn sgd<D: Device>(
    device: &D,
    tensors: &mut [WithMomentum<'_, D::Tensor>],
    by: &Sgd,
) -> Result<()> {
    tensors.iter_mut().try_for_each(|WithMomentum { w, g, m }| {
        update_on_host(device, w, g, &mut [m], |w, g, state| {
            let [m] = state else { unreachable!("one momentum") };
            Reference.sgd(&mut [WithMomentum { w, g: &*g, m }], by)
        })
    })
}

/// Updates a tensor and its optimizer state, all of one shape, by `update` of their values.
pub(crate) fn update_on_host<D: Device>(
    device: &D,
    weights: &mut D::Tensor,
    gradient: &D::Tensor,
    state: &mut [&mut D::Tensor],
    update: impl FnOnce(&mut Tensor, &mut Tensor, &mut [Tensor]) -> Result<()>,
) -> Result<()> {
    let shape = device.shape(weights);
    let kept = state.iter().map(|tensor| &**tensor);
    let all: Vec<_> = [&*weights, gradient].into_iter().chain(kept).collect();
    let values = |elements: Elements| elements.to_f64(shape.iter().product());
    let on_host = device.download_all(&all)?.into_iter();
    let mut on_host = on_host.map(|elements| Tensor::new(&shape, values(elements)));
    let [mut w, mut g] = std::array::from_fn(|_| on_host.next().expect("what was asked for"));
    let mut kept: Vec<_> = on_host.collect();
    update(&mut w, &mut g, &mut kept)?;
    let tensors = once(weights).chain(state.iter_mut().map(|tensor| &mut **tensor));
    for (tensor, values) in tensors.zip(once(&w).chain(&kept)) {
        let Elements { dtype, words } = Elements::of_f64(device.dtype(tensor), &values.data);
        *tensor = device.upload_words(&shape, dtype, words)?;
    }
    Ok(())
}

/// Downloads several tensors, one after the other.
pub(super) fn download_all<D: Device>(device: &D, tensors: &[&D::Tensor]) -> Result<Vec<Elements>> {
    let elements = |tensor: &&D::Tensor| {
        let mut words = Vec::new();
        device.download_words(tensor, &mut words)?;
        Ok(Elements { dtype: device.dtype(tensor), words })
    };
    tensors.iter().map(elements).collect()
}

/// Moves tensors to host memory, in their own types.
pub(super) fn offload<D: Device>(device: &D, tensors: Vec<D::Tensor>) -> Result<Reload<D>> {
    let shapes: Vec<Vec<usize>> = tensors.iter().map(|tensor| device.shape(tensor)).collect();
    let elements = device.download_all(&tensors.iter().collect::<Vec<_>>())?;
    let upload = |device: &D, shape: &[usize], Elements { dtype, words }: Elements| {
        let tensor = device.upload_words(shape, dtype, words)?;
        if device.dtype(&tensor) != dtype {
            let reason = format!("it does not take back elements of {dtype:?}");
            return Err(DeviceError::Failed { device: device.name(), op: "reload", reason });
        }
        Ok(tensor)
    };
    let reload = move |device: &D| {
        let parts = shapes.into_iter().zip(elements);
        parts.map(|(shape, elements)| upload(device, &shape, elements)).collect()
    };
    Ok(Box::new(reload))
}
