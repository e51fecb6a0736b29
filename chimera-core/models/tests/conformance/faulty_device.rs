//! Memory, sums and updates with faults.

use std::sync::{Arc, Mutex};

use chimera_engine::device::reference::{Reference, Tensor};
use chimera_engine::device::{
    AdamW, Asynchronous, Clock, Device, Elements, Fetch, Products, Result, Sgd, Updated,
    WithMomentum,
};

use super::{Fault, Faulty, Shared, read, share};

/// A copy that only happens when it is finished.
struct Copying(Shared);

impl Fetch for Copying {
    fn is_there(&mut self) -> Result<bool> {
        Ok(true)
    }

    fn finish(self: Box<Self>, into: &mut Vec<f32>) -> Result<()> {
        into.extend(Reference.download(&read(&self.0))?);
        Ok(())
    }
}

/// A clock whose marks are a second apart.
struct Ticks {
    n_marks: usize,
    lost: usize,
}

impl Clock for Ticks {
    fn mark(&mut self) {
        self.n_marks += 1;
    }

    fn ages(&mut self) -> Result<Vec<f64>> {
        let n = std::mem::take(&mut self.n_marks) - self.lost;
        Ok((0..n).rev().map(|age| age as f64).collect())
    }
}

impl Device for Faulty {
    type Tensor = Shared;

    fn name(&self) -> String {
        format!("reference with {:?}", self.fault)
    }

    fn upload(&self, shape: &[usize], data: &[f32]) -> Result<Shared> {
        Reference.upload(shape, data).map(share)
    }

    fn download(&self, tensor: &Shared) -> Result<Vec<f32>> {
        Reference.download(&read(tensor))
    }

    fn zeros(&self, shape: &[usize]) -> Result<Shared> {
        static ZEROS: Mutex<Vec<Shared>> = Mutex::new(Vec::new());
        let fresh = share(Tensor::zeros(shape));
        if !self.has(Fault::ZerosShared) {
            return Ok(fresh);
        }
        let mut cache = ZEROS.lock().unwrap();
        let found = cache.iter().find(|zeros| read(zeros).shape == shape).cloned();
        Ok(found.unwrap_or_else(|| {
            cache.push(fresh.clone());
            fresh
        }))
    }

    fn upload_vec(&self, shape: &[usize], mut data: Vec<f32>) -> Result<Shared> {
        if self.has(Fault::VecReversed) {
            data.reverse();
        }
        self.upload(shape, &data)
    }

    fn download_into(&self, tensor: &Shared, into: &mut Vec<f32>) -> Result<()> {
        if self.has(Fault::CopyOverwrites) {
            into.clear();
        }
        into.extend(self.download(tensor)?);
        Ok(())
    }

    fn download_all(&self, tensors: &[&Shared]) -> Result<Vec<Elements>> {
        let each = |tensor: &&Shared| Ok(self.download(tensor)?.into());
        let mut all = tensors.iter().map(each).collect::<Result<Vec<_>>>()?;
        if self.has(Fault::CopiesSwapped) {
            all.reverse();
        }
        Ok(all)
    }

    fn clock(&self) -> Result<Option<Box<dyn Clock>>> {
        let lost = usize::from(self.has(Fault::MarkLost));
        Ok(Some(Box::new(Ticks { n_marks: 0, lost })))
    }

    fn shape(&self, tensor: &Shared) -> Vec<usize> {
        read(tensor).shape
    }

    fn rows(&self, tensor: &Shared, start: usize, len: usize) -> Result<Shared> {
        let start = if self.has(Fault::RowsFromTheStart) { 0 } else { start };
        Reference.rows(&read(tensor), start, len).map(share)
    }

    fn reshape(&self, tensor: &Shared, shape: &[usize]) -> Result<Shared> {
        Reference.reshape(&read(tensor), shape).map(share)
    }

    fn join(&self, tensors: &[&Shared]) -> Result<Shared> {
        if let ([only], true) = (tensors, self.has(Fault::JoinAliases)) {
            return Ok(Arc::clone(only));
        }
        let tensors: Vec<_> = tensors.iter().map(|x| read(x)).collect();
        Reference.join(&tensors.iter().collect::<Vec<_>>()).map(share)
    }

    fn accumulate(&self, into: &mut Shared, x: &Shared) -> Result<()> {
        let mut x = read(x);
        if self.has(Fault::TooFewThreads) {
            x.data.iter_mut().skip(1 << 20).for_each(|x| *x = 0.0);
        }
        Reference.accumulate(&mut into.lock().unwrap(), &x)
    }

    fn squared_norms(&self, tensors: &[&Shared]) -> Result<Shared> {
        let mut tensors: Vec<_> = tensors.iter().map(|x| read(x)).collect();
        for x in tensors.iter_mut().filter(|_| self.has(Fault::NanLost)) {
            x.data.retain(|x| !x.is_nan());
            x.shape = vec![x.data.len()];
        }
        Reference.squared_norms(&tensors.iter().collect::<Vec<_>>()).map(share)
    }

    fn adamw(&self, tensors: &mut [Updated<'_, Shared>], by: &AdamW) -> Result<()> {
        self.update(tensors.iter().map(with_moments), |_, w, g, [m, v]| {
            Reference.adamw(&mut [Updated { w, g, m, v }], by)
        })
    }

    fn lamb(&self, tensors: &mut [Updated<'_, Shared>], by: &AdamW) -> Result<()> {
        self.update(tensors.iter().map(with_moments), |zero, w, g, [m, v]| {
            let one = &mut [Updated { w, g, m, v }];
            match self.fault {
                Fault::TrustIgnored => Reference.adamw(one, by),
                Fault::ZeroNormStays if zero => Ok(()),
                _ => Reference.lamb(one, by),
            }
        })
    }

    fn sgd(&self, tensors: &mut [WithMomentum<'_, Shared>], by: &Sgd) -> Result<()> {
        let momentum = if self.has(Fault::MomentumLost) { 0.0 } else { by.momentum };
        let tensors = tensors.iter().map(|tensor| (&*tensor.w, tensor.g, [&*tensor.m]));
        self.update(tensors, |_, w, g, [m]| {
            Reference.sgd(&mut [WithMomentum { w, g, m }], &Sgd { momentum, ..*by })
        })
    }

    fn products(&self) -> Option<&dyn Products<Shared>> {
        Some(self)
    }

    fn asynchronous(&self) -> Option<&dyn Asynchronous<Shared>> {
        Some(self)
    }
}

impl Products<Shared> for Faulty {
    fn product(&self, a: &Shared, b: &Shared) -> Result<Shared> {
        let (a, mut b) = (read(a), read(b));
        if self.has(Fault::ProductOfOne) {
            b.data.iter_mut().skip(1).for_each(|x| *x = 0.0);
        }
        Reference.product(&a, &b).map(share)
    }

    fn newton_schulz(&self, x: &Shared, [a, b, c]: [f64; 3], n: usize) -> Result<Shared> {
        let c = if self.has(Fault::IterationOfTwoTerms) { 0.0 } else { c };
        Reference.newton_schulz(&read(x), [a, b, c], n).map(share)
    }
}

impl Asynchronous<Shared> for Faulty {
    fn fetch(&self, tensor: &Shared) -> Result<Option<Box<dyn Fetch>>> {
        let of = if self.has(Fault::FetchedLate) { tensor.clone() } else { share(read(tensor)) };
        Ok(Some(Box::new(Copying(of))))
    }

    fn import(&self, tensor: Shared) -> Result<Shared> {
        if self.has(Fault::ImportEmpty) { self.zeros(&self.shape(&tensor)) } else { Ok(tensor) }
    }
}

/// Weights, gradient and both moments of a tensor.
fn with_moments<'t>(tensor: &'t Updated<'_, Shared>) -> (&'t Shared, &'t Shared, [&'t Shared; 2]) {
    (&*tensor.w, tensor.g, [&*tensor.m, &*tensor.v])
}
